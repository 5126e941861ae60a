# SPDX-License-Identifier: Apache-2.0
"""libvirt's qemu hook: give a guest its place when it starts.

hooks/qemu calls this module with libvirt's arguments (guest, operation, sub-operation,
extra) and the domain's XML on stdin (https://libvirt.org/hooks.html).

``start``
    decide on a place, record the promise, and leave a process behind that narrows the guest's CPUs
    before they run (:mod:`nova_numa_pmc.hook.early`)
``started``
    write the guest's cpusets
``stopped``, ``release``
    drop the promise

Nothing is done at ``migrate`` and ``restore``: libvirt calls these before it knows whether the
guest already runs here; if it does not, a ``start`` follows.

libvirt holds the guest's lock while it waits for the hook. The wait for the lock of the promises
file is bounded, but writing cpusets may sleep in the kernel. ``started`` therefore runs in a
child process, and the hook ends within the operator's time limit whatever happens to that. A late
child process finishes, records what it did and logs it. The lock of the promises file is held only
to decide and to record, never while a cpuset is written. hooks/qemu sets an alarm that ends
the process if anything else hangs. A signal could not end a late child process: a write to a
cpuset sleeps uninterruptibly in the kernel while the host migrates pages for another process, and
even SIGKILL takes effect only afterwards.
"""

# ruff: noqa: E402
from __future__ import annotations

import gc

from nova_numa_pmc.record import TYPE_CHECKING

# The process lives for milliseconds, and importing records with a hundred annotations would start
# a garbage collection.
gc.disable()

import _signal  # signal would import enum
import _socket
import os
import select
import sys
import time

from nova_numa_pmc import installed_version, model
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import eligibility
from nova_numa_pmc.cpulist import format_cpulist, format_nodes, name_nodes
from nova_numa_pmc.exceptions import NumaPmcError, StateError, describe
from nova_numa_pmc.host import domain_xml, files, guests
from nova_numa_pmc.placing import decide
from nova_numa_pmc.state import overrides, promises_file

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import NoReturn

    Report = Callable[[BaseException], object]
    RunDetached = Callable[[Callable[[], object], Report], object]

#: Exit status that makes hooks/qemu let a start fail (option ``strict``).
STRICT_STATUS = 77

#: Share of the time limit for which a start may wait for the promises file's lock.
_LOCK_RATIO = 0.75
#: Time reserved for logging a timeout, before the alarm of hooks/qemu ends the process [s].
_LOG_RESERVE_S = 0.5
#: Maximum number of problems to log: thousands of guests may have unreadable files.
_PROBLEMS_MAX = 20
#: Severities of syslog(3).
ERROR, WARNING, INFO = 3, 4, 6
_DAEMON = 3 << 3
#: Time for which all lines of one process may wait together [s]: guests that start at the same
#: time can fill the daemon's queue for a moment, and libvirt waits for the hook.
WAIT_MAX_S = 0.2
_LINE_MAX_BYTES = 8192


def main(argv: list[str], root: str = '/') -> NoReturn:
    """Run one operation and end the process, with status 0 unless ``strict`` makes a start fail.

    :param argv: libvirt's arguments: script, guest, operation, sub-operation, extra
    :param root: root of the host's file system
    """
    status, lines = 0, JournalLines(root)
    try:
        status = run(argv[1], argv[2], 0, root, run_detached, lines)
    except BaseException as error:
        lines.log(
            ERROR,
            'hook %s: %s; the guest is left as it is' % (' '.join(argv[1:3]), describe(error)),
        )
    finally:
        os._exit(status)  # skips finalization, which would take a tenth of the whole time


def run(
    name: str,
    operation: str,
    stdin_fd: int,
    root: str,
    run_detached: RunDetached | None = None,
    lines: JournalLines | None = None,
) -> int:
    """Run one operation, and wait for it no longer than the operator allows.

    :param name: the guest's name, as libvirt passes it
    :param stdin_fd: descriptor from which the domain's XML is read
    :param root: root of the host's file system
    :param run_detached: runs a function in a process that outlasts the operation; None: the
        function is not run
    :param lines: where to log; None: the journal of the host at ``root``
    :returns: the exit status: 0, or :data:`STRICT_STATUS`
    """
    call = HookCall(name, operation, root, run_detached, lines or JournalLines(root))
    if operation == 'selftest':
        return _selftest(call)
    if operation not in _OPERATIONS or not call.options.enabled:
        return 0
    xml = _read(stdin_fd)
    if operation == 'started':
        if not run_in_child(lambda: call.perform(xml), call.time_left_s(), call.report):
            call.log(
                WARNING,
                'not finished within [hook] timeout_s: libvirt continues, and a child process '
                'finishes it',
            )
        return 0
    why_not_placed = call.perform(xml)
    if not why_not_placed or not call.options.strict or operation != 'start':
        return 0
    text = 'nova-numa-pmc: not placed: %s; the start fails because of [hook] strict\n'
    os.write(2, (text % why_not_placed).encode('utf-8', 'backslashreplace'))
    return STRICT_STATUS


class HookCall:
    """One call of the hook."""

    def __init__(
        self,
        name: str,
        operation: str,
        root: str,
        run_detached: RunDetached | None,
        lines: JournalLines,
    ) -> None:
        self.name, self.operation, self.root = name, operation, root
        self.run_detached, self._lines = run_detached, lines
        self.began_ns = time.monotonic_ns()
        self.options = host_options.read_under_root(root)
        self._problems = list(self.options.problems)

    def age_s(self) -> float:
        """Return the time since the call began [s]."""
        return (time.monotonic_ns() - self.began_ns) / 1e9

    def time_left_s(self) -> float:
        """Return the time left for the operation [s], which must end before hooks/qemu's alarm."""
        left_s = self.options.timeout_s - self.age_s()
        alarm_s = _signal.getitimer(_signal.ITIMER_REAL)[0]
        if alarm_s:
            left_s = min(left_s, max(alarm_s - _LOG_RESERVE_S, alarm_s / 2))
        return left_s

    def read_guest(self, xml: bytes) -> model.Guest:
        """Return the guest with its grant and the operator's override, if that can be read.

        :raises DomainError: the XML cannot be understood
        """
        guest = guests.parse_live(xml, self.root)
        try:
            (guest,), problems = overrides.with_overrides((guest,), self.root)
        except StateError as error:
            problems = [str(error)]
        self._problems += problems
        return guest

    def perform(self, xml: bytes) -> str:
        """Run the operation, and return why the guest was not placed; empty if that is right."""
        try:
            return _OPERATIONS[self.operation](self, xml)
        except (NumaPmcError, OSError) as error:
            self.report(error)
            return str(error)
        finally:
            self._log_problems()

    def report(self, error: BaseException, result: str = 'the guest is left as it is') -> None:
        """Log an error and what results from it."""
        self.log(WARNING, '%s; %s' % (describe(error), result))

    def log(self, severity: int, message: str) -> None:
        """Log one line about this guest."""
        self._lines.log(
            severity,
            'guest %s: %s: %s (%.0f ms)'
            % (self.name, self.operation, message, self.age_s() * 1e3),
        )

    def _log_problems(self) -> None:
        """Log the problems after the decision, as a slow log may not accept all of them."""
        for problem in self._problems[:_PROBLEMS_MAX]:
            self.log(WARNING, problem)
        lost = self._lines.lost + max(0, len(self._problems) - _PROBLEMS_MAX)
        if lost:
            self.log(
                WARNING,
                "lines not logged: %d (the system's log did not accept them, or there were more "
                'than %d)' % (lost, _PROBLEMS_MAX),
            )

    def lock_timeout_s(self) -> float:
        """Return how long to wait for the promises file's lock [s]."""
        if self.operation == 'started':
            return self.options.timeout_s
        left_s = _LOCK_RATIO * self.options.timeout_s - self.age_s()
        return max(0.1, min(left_s, self.time_left_s()))

    def log_decision(self, decision: decide.Decision, after: str = '') -> None:
        """Log the decision, its reasons and its outcome.

        :param after: the outcome for its memory, beginning with a space
        """
        promise = decision.promise
        self._problems += decision.problems
        line = decision.why
        if promise.origin == model.PLACED:
            line += '; CPUs %s; memory on %s%s' % (
                format_cpulist(decision.cpus or ()),
                name_nodes(promise.mem_nodes),
                after,
            )
        self.log(INFO, '%s; %d MiB promised' % (line, promise.memory_bytes >> 20))


def _on_start(call: HookCall, xml: bytes) -> str:
    guest = call.read_guest(xml)
    try:
        decision = decide.decide_promise(guest, call.options, call.root, call.lock_timeout_s())
    except NumaPmcError as error:
        if not eligibility.is_left_alone(guest):
            raise
        call.report(error)
        return ''
    call.log_decision(decision)
    if call.run_detached and decision.cpus and decision.promise.origin == model.PLACED:
        _hold_early(call, call.run_detached, guest, decision.promise, decision.cpus)
    return decision.why if decision.has_no_place else ''


def _hold_early(
    call: HookCall,
    run_detached: RunDetached,
    guest: model.Guest,
    promise: model.Promise,
    cpus: frozenset[int],
) -> None:
    """Leave a process behind that narrows the guest's CPUs once QEMU is executed.

    If that fails, ``started`` narrows them.
    """
    # Identifies the pid file of an earlier start, if libvirt has not unlinked it.
    old_pid_file = guests.runtime_file_identity(call.root, guest.name, '.pid')

    def work() -> None:
        from nova_numa_pmc.hook import early  # only in the child process

        hold = early.EarlyHold(promise, guest, cpus, call.options, call.root, old_pid_file)
        early.run(hold, host_options.START_GRACE_S)

    def report(error: BaseException) -> None:
        call.report(error, "the guest's CPUs are held once they run")

    try:
        run_detached(work, report)
    except OSError as error:
        report(error)


def _on_stopped(call: HookCall, xml: bytes) -> str:
    """Forget the promise by the guest's name, so that the XML need not be readable."""
    with promises_file.locked(call.options, call.root, call.lock_timeout_s()) as draft:
        draft.forget(call.name)
    return ''


def _on_started(call: HookCall, xml: bytes) -> str:
    """Finish a guest's start, and log how."""
    from nova_numa_pmc.placing import starts  # causes half of all imports; only needed here

    guest = call.read_guest(xml)
    try:
        promise = promises_file.read(call.options, call.root).promises.get(guest.uuid)
    except StateError:
        promise = None  # a new decision creates the file again, and reports the error
    finished = starts.finish(guest, promise, call.options, call.root, call.lock_timeout_s())
    decision = finished.decision
    if finished.is_held:
        call.log_decision(decision, _memory_text(decision.promise, finished.bytes_by_node))
    elif decision.view or decision.problems:  # not what the start has logged already
        call.log_decision(decision)
    return ''


def _memory_text(promise: model.Promise, bytes_by_node: Mapping[int, int]) -> str:
    homes = promise.mem_nodes or promise.cpu_nodes
    elsewhere_bytes = sum(size for node, size in bytes_by_node.items() if node not in homes)
    if not elsewhere_bytes:
        return ' (local)'
    return ' (unbound, %d of %d KiB were elsewhere)' % (
        elsewhere_bytes + 1023 >> 10,
        sum(bytes_by_node.values()) >> 10,
    )


_OPERATIONS = {
    'start': _on_start,
    'started': _on_started,
    'stopped': _on_stopped,
    'release': _on_stopped,
}


def _selftest(call: HookCall) -> int:
    """Exercise the imports and the readers without writing anything; report on stderr."""
    try:
        from nova_numa_pmc.placing import starts  # noqa: F401 -- imported for the trial

        host = decide.host_with_pool_cpus(call.root)
        running, problems = guests.read_running(call.root)
        line = 'ok, version %s, python %s, nodes %s, %d guests, %d unreadable, label %s' % (
            installed_version(),
            sys.version.split()[0],
            format_nodes(node.id for node in host.nodes),
            len(running),
            len(problems),
            files.read_optional(call.root, 'proc/self/attr/current') or 'none',
        )
    except (NumaPmcError, OSError) as error:
        line = 'failed: ' + describe(error)
    os.write(2, ('selftest: %s\n' % line).encode('utf-8', 'backslashreplace'))
    return 0


def run_in_child(
    work: Callable[[], object], timeout_s: float, report: Callable[[BaseException], object]
) -> bool:
    """Run ``work()`` in a child process, as :func:`run_detached`, and wait for its end.

    :param timeout_s: how long to wait [s]
    :returns: whether the child process has ended
    :raises OSError: no process or pipe is available
    """
    reader, writer = os.pipe()  # the child process closes its end when it ends
    run_detached(work, report, writer)
    os.close(writer)
    ready, _, _ = select.select((reader,), (), (), max(0, timeout_s))
    os.close(reader)
    return bool(ready)


def run_detached(
    work: Callable[[], object], report: Callable[[BaseException], object], kept_fd: int = -1
) -> None:
    """Run ``work()`` in a child process, without waiting for it.

    The child process closes all inherited descriptors, because libvirt waits until every holder of
    a hook's stdout and stderr has closed them, as well as for the end of the process
    (virCommandRun in its src/util/vircommand.c). It is in a session of its own, so that
    timeout(1), which kills a process group, spares it.

    :param report: called in the child process with an exception that ``work`` raised
    :param kept_fd: a descriptor that stays open until the child process ends
    :raises OSError: no process is available
    """
    if os.fork():
        return
    try:
        os.setsid()
        for name in os.listdir('/proc/self/fd'):
            try:
                if int(name) != kept_fd:
                    os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself, which is closed by now
        while os.open(os.devnull, os.O_RDWR) < 2:
            pass  # also the standard streams, if the kept descriptor is none of them
        try:
            work()
        except BaseException as error:
            report(error)
    finally:
        os._exit(0)


def _read(stdin_fd: int) -> bytes:
    parts, size = [], 0
    while size <= domain_xml.SIZE_MAX_BYTES:
        part = os.read(stdin_fd, 1 << 16)
        if not part:
            break
        parts.append(part)
        size += len(part)
    return b''.join(parts)


class JournalLines:
    """The log of one process of the hook, which waits for the system's log for a short time only.

    The protocol is that of syslog(3) (RFC 3164) over the datagram socket /dev/log, which journald
    and the syslog daemons serve. libc's own syslog() blocks until the daemon reads, and would
    block libvirt together with the hook.

    :ivar lost: number of lines that could not be sent
    """

    def __init__(self, root: str) -> None:
        self._path = os.path.join(root, 'dev/log')
        self._left_s = WAIT_MAX_S
        self.lost = 0

    def log(self, severity: int, message: str) -> None:
        """Log one line; count it as lost if it cannot be sent in time."""
        text = '<%d>%s nova-numa-pmc[%d]: %s' % (
            _DAEMON | severity,
            time.strftime('%b %e %H:%M:%S'),
            os.getpid(),
            message if message.isprintable() else ascii(message)[1:-1],
        )
        sender, began_s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM), time.monotonic()
        try:
            sender.settimeout(self._left_s)
            sender.connect(self._path)
            sender.send(text.encode('utf-8', 'backslashreplace')[:_LINE_MAX_BYTES])
        except OSError:
            self.lost += 1
        finally:
            sender.close()
            self._left_s = max(0.0, self._left_s - (time.monotonic() - began_s))
