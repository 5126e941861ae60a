# SPDX-License-Identifier: Apache-2.0
from typing import Any

# The classes are set when they are registered.
def __getattr__(name: str) -> Any: ...
