# SPDX-License-Identifier: Apache-2.0
"""Run work in a child process, and wait for it for a limited time.

A signal could not end a late child process: a write to a cpuset sleeps uninterruptibly in the
kernel while the host migrates pages for another process, and even SIGKILL takes effect only
afterwards. A late child process is therefore left to finish by itself.
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

    The child process has no standard streams, because libvirt waits for the end of a hook's stdout
    and stderr as well as of the process (virCommandRun in its src/util/vircommand.c). It is in a
    session of its own, so that timeout(1), which kills a process group, spares it.

    :param work: called in the child process; returns 1 to 4096 bytes
    :param timeout_s: how long to wait [s]
    :param report: called in the child process with an exception that ``work`` raised
    :returns: what ``work`` returned; b'' if it raised or the child process died; None if it is
        late
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


def run_detached(work: Callable[[], object], report: Callable[[BaseException], object]) -> None:
    """Run ``work()`` in a child process, without waiting for it.

    The child process closes all inherited descriptors, because libvirt waits until every holder of
    a hook's stdout and stderr has closed them.

    :param report: called in the child process with an exception that ``work`` raised
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
                pass  # the descriptor of the listing itself, which is closed by now
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
