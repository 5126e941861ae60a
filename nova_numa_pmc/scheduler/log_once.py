# SPDX-License-Identifier: Apache-2.0
"""Log a problem once that every request may have."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


@functools.lru_cache(maxsize=1000)
def log_once(log: Callable[..., None], message: str, problem: str) -> None:
    """Log a problem, unless it is one of the last thousand different ones.

    :param log: a method of a logger, such as ``LOG.error``
    :param message: a text with ``%s`` for the problem
    """
    log(message, problem)
