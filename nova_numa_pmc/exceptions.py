# SPDX-License-Identifier: Apache-2.0
"""The errors that several modules raise or catch; each message names the file and the remedy.

An error that only one module raises is defined in that module and derives from one of these.
The module also has what is common to all: how an error is described, and the check of a format's
version, which the readers of files and of metrics share. It imports nothing, because the libvirt
hook loads it at every guest start.
"""

from __future__ import annotations


class NumaPmcError(Exception):
    """The base of this package's errors: anything that it refuses or fails to do."""


class CpusetError(NumaPmcError):
    """A guest's control groups cannot be found, read or written; earlier writes are undone."""


class GuestGone(CpusetError):
    """The guest's process or its control groups are gone: the guest has ended."""


class PinnedByOthers(CpusetError):
    """A group of the guest has a cpuset that is not ours and contradicts the requested one."""


class StateError(NumaPmcError):
    """A state file or its directory cannot be trusted, read or written."""


class StateLocked(StateError):
    """Another process held the state's lock for longer than we may wait."""


class StateUnavailable(StateError):
    """A state file cannot be used at the moment, for a reason that is not in the file itself."""


class CpuListError(NumaPmcError):
    """A list of CPUs or nodes ('0-3,8') is malformed or out of bounds."""


class TopologyError(NumaPmcError):
    """The host's nodes and CPUs, as the kernel shows them, cannot be understood."""


class DomainError(NumaPmcError):
    """A domain's XML is hostile, malformed or unlike libvirt's; its guest is left alone."""


class EventError(NumaPmcError):
    """An event's name, terms or layout cannot be understood or encoded."""


class CounterError(NumaPmcError):
    """A counter cannot be opened; the message names the remedy."""


class CounterRefused(CounterError):
    """perf_event_paranoid, missing capabilities or seccomp keep this process from counting."""


class CounterUnsupported(CounterError):
    """The machine lacks the event, its group does not fit, or another user has the PMU."""


class CountersExhausted(CounterError):
    """No more descriptors are available; the open counters keep counting."""


class CounterTargetGone(CounterError):
    """The thread, control group or CPU that was to be counted is gone."""


class SourceUnavailable(NumaPmcError):
    """A source of evidence cannot be used on this host now; the message names the remedy."""


class OptionsError(NumaPmcError):
    """The operator's configuration file cannot be read, or an option has an invalid value."""


class RecordingError(NumaPmcError):
    """A recording of samples cannot be read or written; its intact samples are kept."""


class PageMoveError(NumaPmcError):
    """A guest's memory cannot be moved; pages that were already moved stay where they are."""


class PageMoveRefused(PageMoveError):
    """Missing capabilities, seccomp or a cpuset keep this process from moving guest memory."""


def require_major(version: object, ours: int) -> None:
    """Refuse a format whose major version is not the one that this release reads.

    :param version: the version found: ``major.minor``, or the major version as a number
    :param ours: the major version that this release reads
    :raises ValueError: the versions differ
    """
    major = str(version).partition('.')[0]
    if major != str(ours):
        raise ValueError(
            'format %.20s.x is not supported by this release, which reads %d.x' % (major, ours)
        )


def is_expected(error: BaseException) -> bool:
    """Return whether an error is one of ours or of the system, and not a bug."""
    return isinstance(error, (NumaPmcError, OSError))


def describe(error: BaseException) -> str:
    """Return the message of an expected error; that of a bug follows the name of its type."""
    return str(error) if is_expected(error) else '%s: %s' % (type(error).__name__, error)
