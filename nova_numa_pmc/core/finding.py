# SPDX-License-Identifier: Apache-2.0
"""The record of a check's finding and its remedy."""

from __future__ import annotations

import sys

from nova_numa_pmc.record import Record

#: ERROR: it does not work. WARNING: it works less well than it could, or is likely to. NOTE: it is
#: good to know.
ERROR, WARNING, NOTE = 'error', 'warning', 'note'
SEVERITIES = (ERROR, WARNING, NOTE)


def install_remedy(package: str) -> str:
    """Return how to install a module that the package can do without.

    The remedy names no package of a public index: what is built from source there needs a
    compiler and headers, and the name of this project's own extras is not ours there.

    :param package: the distribution's package, by its name in Debian
    """
    text = 'install %s from the distribution' % package
    if sys.prefix == sys.base_prefix:
        return text
    return '%s, and let the virtual environment see it: /usr/bin/python3 -m venv %s %s' % (
        text,
        '--system-site-packages',
        sys.prefix,
    )


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
