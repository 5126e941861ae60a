# SPDX-License-Identifier: Apache-2.0
"""The operator's overrides of single guests (pin, ignore), kept across reboots.

The file is text with one line for each guest: ``UUID pin|ignore NAME``. The name is for human
readers, and is '-' if it is not known. The libvirt hook imports this module at every guest start,
so it imports only light modules.
"""

from __future__ import annotations

import os

from nova_numa_pmc.exceptions import DomainError, StateError
from nova_numa_pmc.host import domain_xml
from nova_numa_pmc.model import IGNORE, PIN
from nova_numa_pmc.record import TYPE_CHECKING, Record
from nova_numa_pmc.state import state_files

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nova_numa_pmc.model import Guest

DIRECTORY, FILE, LOCK = state_files.PERSISTENT, 'guests', 'guests.lock'
_SIZE_MAX_BYTES = 4 << 20
#: A command holds the lock for milliseconds only.
_LOCK_TIMEOUT_S = 5.0


class Override(Record):
    """The override of one guest.

    :param kind: :data:`PIN` or :data:`IGNORE`
    """

    uuid: str
    kind: str
    name: str


def read(root: str = '/') -> tuple[dict[str, Override], list[str]]:
    """Read the overrides, leaving out and reporting malformed lines.

    :returns: ({uuid: :class:`Override`}, problems)
    :raises StateError: the file cannot be trusted or read
    """
    directory = os.path.join(root, DIRECTORY)
    data = state_files.read(directory, FILE, _SIZE_MAX_BYTES)
    return _parse(data, os.path.join(directory, FILE)) if data else ({}, [])


def _parse(data: bytes, path: str) -> tuple[dict[str, Override], list[str]]:
    overrides: dict[str, Override] = {}
    problems = []
    for line_number, line in enumerate(data.decode('utf-8', 'surrogateescape').splitlines(), 1):
        if not line or line[0] == '#':
            continue
        try:
            override = _override(*line.split(' ', 2))
        except (DomainError, TypeError):
            problems.append(
                '%s: line %d is not "UUID pin|ignore NAME": left out' % (path, line_number)
            )
        else:
            overrides[override.uuid] = override
    return overrides, problems


def _override(uuid: str, kind: str, name: str) -> Override:
    if kind not in (PIN, IGNORE):
        raise DomainError('%.40r is neither %s nor %s' % (kind, PIN, IGNORE))
    return Override(domain_xml.parse_uuid(uuid), kind, domain_xml.parse_name(name))


def with_overrides(
    guests: Iterable[Guest], root: str = '/'
) -> tuple[tuple[Guest, ...], list[str]]:
    """Return guests with the operator's overrides set in them.

    :returns: (guests, problems)
    :raises StateError: as :func:`read` does
    """
    overrides, problems = read(root)
    return tuple(
        guest._replace(override=overrides[guest.uuid].kind) if guest.uuid in overrides else guest
        for guest in guests
    ), problems


def put(override: Override, root: str = '/') -> None:
    """Write the override of a guest, replacing an earlier one.

    :raises StateError: the file cannot be trusted or written
    """
    _change(override.uuid, override, root)


def drop(uuid: str, root: str = '/') -> Override | None:
    """Remove a guest's override.

    :returns: the removed override, or None if there was none
    :raises StateError: the file cannot be trusted or written
    """
    return _change(uuid, None, root)


def _change(uuid: str, override: Override | None, root: str) -> Override | None:
    with (
        state_files.StateDirectory(os.path.join(root, DIRECTORY)) as directory,
        directory.lock(LOCK, _LOCK_TIMEOUT_S),
    ):
        overrides, problems = read(root)
        if problems:
            raise StateError('%s: correct the file first' % problems[0])
        before = overrides.pop(uuid, None)
        if override:
            overrides[uuid] = override
        if override != before:
            text = ''.join('%s %s %s\n' % entry for entry in overrides.values())
            directory.replace(FILE, text.encode('utf-8', 'surrogateescape'), durable=True)
        return before
