# SPDX-License-Identifier: Apache-2.0
class Stats(dict[str, object]):
    def __init__(self) -> None: ...
    states: dict[str, dict[str, str | None]]
