# SPDX-License-Identifier: Apache-2.0
"""Open, read and close hardware counters: a thin binding of perf_event_open(2).

This is a binding of our own, because PyPI has no maintained one that reads groups:
performance-features (2023) counts whole processes only, perfmon is unmaintained, and
python3-libpfm is not packaged for Debian.

Structures: include/uapi/linux/perf_event.h.
"""

from __future__ import annotations

import errno
import os
import resource
import struct
from typing import TYPE_CHECKING

from nova_numa_pmc import exceptions
from nova_numa_pmc.core import rates
from nova_numa_pmc.core.rates import CounterReading
from nova_numa_pmc.host import files, system_calls
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from nova_numa_pmc.host.perf.events import Event

    #: Readings of a group's events, in their order; None: not reported.
    GroupReadings = tuple[CounterReading | None, ...]

# type, size, config, sample_period, sample_type, read_format, flags, wakeup, bp_type, config1,
# config2, then fields up to PERF_ATTR_SIZE_VER5 that are not used here.
_ATTR = struct.Struct('=IIQQQQQIIQQ40x')
#: {PMU: the most events of a group}, for PMUs whose drivers accept groups that can never be
#: counted: amd_uncore has four counters (NUM_COUNTERS_NB in arch/x86/events/amd/uncore.c).
GROUP_MAX = {'amd_df': 4}
# TOTAL_TIME_ENABLED | TOTAL_TIME_RUNNING | GROUP
_READ_FORMAT = 1 | 2 | 8
# No exclude_* bit is set, because guests are to be counted. perf sets exclude_guest
# by default, so the counts are to be compared with `perf stat -e event:GH`.
_FLAGS = 0
_FD_CLOEXEC = 8

CPU, THREAD = 'cpu', 'thread'

#: Path relative to the root.
PARANOID = 'proc/sys/kernel/perf_event_paranoid'


class Target(Record):
    """The thread or CPU that is counted.

    :param kind: CPU for all that runs on a CPU, THREAD for a thread wherever it runs
    :param id: thread id; None for a CPU
    :param cpu: CPU number; -1 for a thread
    :param start_ticks: a thread's start time, which distinguishes two holders of the same id
        (:func:`thread`)
    """

    kind: str
    id: int | None
    cpu: int = -1
    start_ticks: int | None = None


def on_cpu(cpu: int) -> Target:
    """Return the target of a CPU."""
    return Target(CPU, None, cpu)


def thread(tid: int, root: str = '/') -> Target | None:
    """Return a thread's target; None if the thread has ended.

    This reads ``/proc/TID/task/TID/stat``, because ``/proc/TID/stat`` adds up all
    threads of the process, and reading that for each thread takes quadratic time.
    """
    try:
        stat = files.read_kernel_file('%s/proc/%d/task/%d/stat' % (root.rstrip('/'), tid, tid))
        return Target(THREAD, tid, start_ticks=files.start_ticks(stat))
    except (OSError, IndexError, ValueError):
        return None


def pack_attr(event: Event) -> bytes:
    """Return an event's perf_event_attr."""
    return _ATTR.pack(
        event.type,
        _ATTR.size,
        event.config,
        0,
        0,
        _READ_FORMAT,
        _FLAGS,
        0,
        0,
        event.config1,
        event.config2,
    )


def open_event(event: Event, target: Target, group_fd: int = -1) -> int:
    """Open one counter and return its descriptor.

    :raises CounterError: the subclass tells what can be done about it
    """
    number = system_calls.number_of('perf_event_open')
    if number is None or event.type is None:
        raise exceptions.CounterUnsupported('%s: not on this machine' % event.name)
    attr, pid = pack_attr(event), -1 if target.id is None else target.id
    try:
        return system_calls.call(number, attr, pid, target.cpu, group_fd, _FD_CLOEXEC)
    except OSError as error:
        raise _explain(error, event, target) from error


def read_paranoid(root: str = '/') -> int | None:
    """Return kernel.perf_event_paranoid; None if this kernel has no perf events."""
    try:
        return int(files.read_optional(root, PARANOID) or '')
    except ValueError:
        return None


#: {errno: (exception, remedy)}
_REFUSED = (
    exceptions.CounterRefused,
    ' (kernel.perf_event_paranoid is %s); run with CAP_PERFMON (CAP_SYS_ADMIN before Linux 5.8, '
    'and on Debian and Ubuntu while the sysctl is above 2), or set the sysctl to -1, and in a '
    'container allow perf_event_open in its seccomp profile',
)
_EXHAUSTED = (
    exceptions.CountersExhausted,
    '; raise LimitNOFILE of the service or count fewer guests',
)
_EXPLAINED: dict[int | None, tuple[type[exceptions.CounterError], str]] = {
    errno.EACCES: _REFUSED,
    errno.EPERM: _REFUSED,
    errno.EMFILE: _EXHAUSTED,
    errno.ENFILE: _EXHAUSTED,
    errno.ENOMEM: _EXHAUSTED,
    errno.ESRCH: (exceptions.CounterTargetGone, ''),
    errno.ENOSYS: (exceptions.CounterUnsupported, '; this kernel has no perf events'),
    errno.EBUSY: (
        exceptions.CounterUnsupported,
        '; another perf user has exclusive use of the PMU',
    ),
    errno.EOPNOTSUPP: (
        exceptions.CounterUnsupported,
        "; the PMU cannot count this way (a guest with KVM's mediated vPMU?)",
    ),
}


def _explain(error: OSError, event: Event, target: Target) -> exceptions.CounterError:
    """Return the exception for a failed call, with its remedy."""
    where = 'CPU %s' % target.cpu if target.kind == CPU else 'thread %s' % target.id
    text = '%s on %s: %s' % (event.name, where, error.strerror)
    if target.kind == CPU and error.errno in (errno.ENODEV, errno.ENXIO):
        return exceptions.CounterTargetGone(text)
    kind, remedy = _EXPLAINED.get(error.errno, (exceptions.CounterUnsupported, ''))
    if kind is exceptions.CounterRefused:
        remedy %= read_paranoid()
    return kind(text + remedy)


def raise_descriptor_limit() -> None:
    """Raise this process's soft limit of descriptors to the hard one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def parse_group(data: bytes, number: int) -> GroupReadings:
    """Return the counts of a group of so many events, in the order in which they were opened.

    The kernel appends each event to those of its group (perf_group_attach, kernel/events/core.c).

    :param data: what read(2) returned: nr, enabled, running, then the value of each event
    :returns: None for all events if the data are not of such a group, as after an event was
        removed from it because the CPU went offline
    """
    unknown = (None,) * number
    if len(data) != 24 + 8 * number:
        return unknown
    reported, enabled, running, *values = struct.unpack('=%dQ' % (3 + number), data)
    # running > enabled is impossible: it means a leader in an error state or in another format.
    if reported != number or running > enabled:
        return unknown
    # CounterReading(...), a named tuple's own constructor, would take twice as long.
    return tuple([CounterReading._make((value, enabled, running)) for value in values])


class EventGroup:
    """Events that the hardware counts together, on one target."""

    def __init__(self, events: Iterable[Event], target: Target) -> None:
        """Open the events; if one fails, none stays open.

        :raises CounterError: see :func:`open_event`
        """
        self.events: tuple[Event, ...] = ()
        self.target = target
        self.fds: list[int] = []
        #: The data that were read last, and their counts.
        self._last: tuple[bytes | None, GroupReadings] = None, ()
        try:
            for event in events:
                self.add(event)
        except exceptions.CounterError:
            self.close()
            raise

    def add(self, event: Event) -> None:
        """Open one more event in this group."""
        leader = self.fds[0] if self.fds else -1
        self.fds.append(open_event(event, self.target, leader))
        self.events += (event,)

    def read(self) -> GroupReadings:
        """Return the counts so far, in the order of ``events``.

        As long as the target has not run, the same object is returned.
        """
        try:
            data = os.read(self.fds[0], 24 + 8 * len(self.fds))
        except (OSError, IndexError):
            return (None,) * len(self.events)
        if data != self._last[0]:
            self._last = data, parse_group(data, len(self.fds))
        return self._last[1]

    def close(self) -> None:
        """Close the counters, the group's leader last."""
        for fd in reversed(self.fds):
            os.close(fd)
        self.fds = []


def open_groups(
    events: Iterable[Event], target: Target, group_max: Mapping[str, int] = GROUP_MAX
) -> tuple[tuple[EventGroup, ...], tuple[tuple[Event, exceptions.CounterUnsupported], ...]]:
    """Open events in as few groups as the hardware allows, in their order.

    The kernel refuses a group that can never be counted at once (EINVAL). The event then
    starts the next group, and the kernel multiplexes the groups.
    :data:`rates.GUEST_ROLE` also begins a group of its own, so that it takes no counter
    from the others. An event that this machine does not have is left out.

    :param group_max: {PMU: the most events of a group}
    :returns: (groups, ((event, error) of each event that was left out))
    :raises CounterError: an error other than an unsupported event; no counter stays open
    """
    groups: list[EventGroup] = []
    missing: list[tuple[Event, exceptions.CounterUnsupported]] = []
    try:
        for event in events:
            try:
                _add_event(event, groups, target, group_max)
            except exceptions.CounterUnsupported as error:
                missing.append((event, error))
    except exceptions.CounterError:
        for group in groups:
            group.close()
        raise
    return tuple(groups), tuple(missing)


def _may_join(present: tuple[Event, ...], event: Event, group_max: Mapping[str, int]) -> bool:
    """Return whether an event may be added to a group with these."""
    if len(present) >= group_max.get(event.pmu, len(present) + 1):
        return False
    role, other = present[-1].role, event.role
    return role == other or rates.GUEST_ROLE not in (role, other)


def _add_event(
    event: Event, groups: list[EventGroup], target: Target, group_max: Mapping[str, int]
) -> None:
    if groups and _may_join(groups[-1].events, event, group_max):
        try:
            groups[-1].add(event)
            return
        except exceptions.CounterUnsupported:
            pass  # it does not fit or is not supported; opening it on its own tells which
    groups.append(EventGroup((event,), target))
