# SPDX-License-Identifier: Apache-2.0
"""Let one agent at a time run on a host."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import StateLocked
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Name of the lock file in the state directory.
LOCK = 'agent'


@contextlib.contextmanager
def hold_agent_lock(directory: str) -> Iterator[None]:
    """Hold the lock of the host's agent inside the ``with`` block.

    :param directory: path of the state directory
    :raises StateLocked: another agent is running
    :raises StateError: the state directory cannot be trusted or created
    """
    with state_files.StateDirectory(directory) as state_directory:
        try:
            lock = state_directory.lock(LOCK, 0)
        except StateLocked:
            raise StateLocked(
                '%s: locked: another nova-numa-agent is running on this host (see fuser(1))'
                % os.path.join(directory, LOCK)
            ) from None
        with lock:
            yield
