# SPDX-License-Identifier: Apache-2.0
"""The kernel calls of the code that moves guests; tests substitute a model of the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.host import writes
from nova_numa_pmc.host.page_moves import move_pages

if TYPE_CHECKING:
    from array import array


class KernelCalls:
    """The kernel calls of a move, on a guest's control files and a process's pages."""

    def write(self, path: str, text: str) -> None:
        """Write a control file, as :func:`writes.write_file` does."""
        writes.write_file(path, text)

    def locate(self, pid: int, addresses: array[int]) -> array[int]:
        """Return the node of each page, as :func:`move_pages.locate` does."""
        return move_pages.locate(pid, addresses)

    def move(
        self, pid: int, addresses: array[int], node: int, shared: bool
    ) -> tuple[int, array[int]]:
        """Move pages to a node, as :func:`move_pages.move` does."""
        return move_pages.move(pid, addresses, node, shared)

    def touch(self, pid: int, addresses: array[int], cpus: frozenset[int]) -> None:
        """Read a byte of each page, as :func:`move_pages.touch` does."""
        move_pages.touch(pid, addresses, cpus)


#: The calls to this host's kernel.
KERNEL_CALLS = KernelCalls()
