# SPDX-License-Identifier: Apache-2.0
"""Find the guest that an operator names."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import NumaPmcError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nova_numa_pmc.model import Guest

_NAMES_SHOWN = 8


class UnknownGuest(NumaPmcError):
    """No running guest matches the one that the operator named."""


def find(text: str, running: Collection[Guest], problems: Iterable[str] = ()) -> Guest:
    """Return the guest with this name, uuid or libvirt id; a name is preferred, then a uuid.

    :param problems: why other guests could not be read, for the error message
    :raises UnknownGuest: there is none; the message lists similar names
    """
    identifiers: tuple[Callable[[Guest], str | None], ...] = (
        lambda guest: guest.name,
        lambda guest: guest.uuid,
        lambda guest: None if guest.id is None else str(guest.id),
    )
    for identifier_of in identifiers:
        for guest in running:
            if text == identifier_of(guest):
                return guest
    error = unknown(text, [guest.name for guest in running], 'is running here', 'guests here')
    raise UnknownGuest('; '.join((str(error), *problems)))


def unknown(text: str, known_names: Iterable[str], lacks: str, known: str) -> UnknownGuest:
    """Return the error about a guest that was not found, which lists similar names.

    :param lacks: what no guest of that name does, such as 'is running here'
    :param known: what the guests with ``known_names`` are, such as 'guests here'
    """
    names = sorted(known_names)
    similar_names = difflib.get_close_matches(text, names, _NAMES_SHOWN)
    similar_names += [
        name for name in names if text and text in name and name not in similar_names
    ]
    names_shown = (similar_names or names)[:_NAMES_SHOWN]
    return UnknownGuest(
        'no guest %.80r %s; %s: %s'
        % (
            text,
            lacks,
            'similar names' if similar_names else known,
            ', '.join(names_shown) or 'none',
        )
        + (
            ' and %d more' % (len(names) - len(names_shown))
            if not similar_names and len(names) > len(names_shown)
            else ''
        )
    )
