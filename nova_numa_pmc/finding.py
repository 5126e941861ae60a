# SPDX-License-Identifier: Apache-2.0
"""The record of a check's finding and its remedy."""

from __future__ import annotations

from nova_numa_pmc.record import Record

#: ERROR: it does not work. WARNING: it works less well than it could, or is likely to. NOTE: it is
#: good to know.
ERROR, WARNING, NOTE = 'error', 'warning', 'note'
SEVERITIES = (ERROR, WARNING, NOTE)


class Finding(Record):
    """A finding of a check.

    :param code: stable identifier for the guide's table and for scripts ('monitor-not-enabled')
    :param severity: one of :data:`SEVERITIES`
    :param message: the finding in one sentence, without a full stop
    :param remedy: what to do about it
    :param file: the file to look at; empty if there is none
    """

    code: str
    severity: str
    message: str
    remedy: str
    file: str = ''
