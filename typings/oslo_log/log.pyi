# SPDX-License-Identifier: Apache-2.0
import logging
from typing import Any

from oslo_config import cfg

DEBUG: int

def register_options(conf: cfg.ConfigOpts) -> None: ...
def setup(conf: cfg.ConfigOpts, product_name: str, version: str = ...,
          *, fix_eventlet: bool = ...) -> None: ...

class KeywordArgumentAdapter(logging.LoggerAdapter[logging.Logger]):
    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]: ...

def getLogger(name: str | None = ..., project: str = ...,
              version: str = ...) -> KeywordArgumentAdapter: ...
