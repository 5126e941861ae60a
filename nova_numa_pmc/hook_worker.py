# SPDX-License-Identifier: Apache-2.0
"""Run work in a child process and wait for it no longer than a bound.

A signal would not help: a write to a cpuset sleeps uninterruptibly in the
kernel while the host migrates pages for another process, and SIGKILL waits
with it. The child is left to finish alone.
"""

from __future__ import annotations

import os
import select

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn


def run(
    work: Callable[[], bytes], timeout_s: float, report: Callable[[BaseException], object]
) -> bytes | None:
    """Run ``work()`` in a child process.

    The child has no standard streams, since libvirt waits for the end of a hook's
    stdout and stderr as well as of the process (virCommandRun in its src/util/vircommand.c), and
    is in a session of its own, so that timeout(1), which kills a process group, spares it.

    :param work: called in the child; returns bytes, at most 4096, never empty
    :param timeout_s: how long to wait [s]
    :param report: called in the child with an exception that ``work`` raised
    :returns: what ``work`` returned; b'' if the child died or raised; None if it is late
    :raises OSError: no process or pipe is available
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        _child(work, writer, report)
    os.close(writer)
    try:
        ready, _, _ = select.select((reader,), (), (), max(0, timeout_s))
        if not ready:
            return None
        answer = os.read(reader, 4096)
    finally:
        os.close(reader)
    os.waitpid(pid, 0)
    return answer


def leave_behind(work: Callable[[], object], report: Callable[[BaseException], object]) -> None:
    """Run ``work()`` in a child process, without waiting for it.

    It has no descriptor of ours: libvirt waits until every holder of a hook's stdout and stderr
    has closed them.

    :param report: called in the child with an exception that ``work`` raised
    :raises OSError: no process is available
    """
    if os.fork():
        return
    try:
        os.setsid()
        for name in os.listdir('/proc/self/fd'):
            try:
                os.close(int(name))
            except OSError:
                pass  # that of the directory itself
        for _ in range(3):
            os.open(os.devnull, os.O_RDWR)
        try:
            work()
        except BaseException as error:
            report(error)
    finally:
        os._exit(0)


def _child(
    work: Callable[[], bytes], writer: int, report: Callable[[BaseException], object]
) -> NoReturn:
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        try:
            answer = work()
        except BaseException as error:
            report(error)
        else:
            os.write(writer, answer)
    finally:
        os._exit(0)
