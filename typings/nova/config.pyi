# SPDX-License-Identifier: Apache-2.0
from collections.abc import Sequence

def parse_args(
    argv: Sequence[str],
    default_config_files: Sequence[str] | None = ...,
    configure_db: bool = ...,
    init_rpc: bool = ...,
    prog: str | None = ...,
) -> None: ...
