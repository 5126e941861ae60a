# SPDX-License-Identifier: Apache-2.0
class Stats(dict[str, object]):
    states: dict[str, dict[str, str | None]]
