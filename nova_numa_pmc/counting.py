# SPDX-License-Identifier: Apache-2.0
"""What the operator has set on measuring: the group ``[counters]``.

Plain oslo.config, as the libvirt hook needs none of it.
"""

from nova_numa_pmc.record import Record


class Options(Record, fields='interval_s', defaults=(5.0,)):
    """The group ``[counters]``, checked; a field is named as its option."""

    __slots__ = ()


def read(path=None):
    """Read the operator's file; None: the installed one.

    :rtype: Options
    """
    return Options()
