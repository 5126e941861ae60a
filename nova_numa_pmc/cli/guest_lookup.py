# SPDX-License-Identifier: Apache-2.0
"""Find the guest that an operator names."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import UnknownGuest

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from nova_numa_pmc.model import Guest

_SHOWN = 8


def find(text: str, running: Collection[Guest], problems: Iterable[str] = ()) -> Guest:
    """Return the guest with this name, uuid or libvirt id, tried in this order.

    :param problems: guests that could not be read, for the message
    :raises UnknownGuest: there is none; the message lists similar names
    """
    ways: tuple[Callable[[Guest], str | None], ...] = (
        lambda guest: guest.name,
        lambda guest: guest.uuid,
        lambda guest: None if guest.id is None else str(guest.id),
    )
    for way in ways:
        for guest in running:
            if text == way(guest):
                return guest
    names = sorted(guest.name for guest in running)
    near = difflib.get_close_matches(text, names, _SHOWN)
    near += [name for name in names if text and text in name and name not in near]
    shown = (near or names)[:_SHOWN]
    raise UnknownGuest(
        'no guest %.80r is running here; %s: %s'
        % (text, 'similar names' if near else 'guests here', ', '.join(shown) or 'none')
        + (
            ' and %d more' % (len(names) - len(shown))
            if not near and len(names) > len(shown)
            else ''
        )
        + ''.join('; ' + problem for problem in problems)
    )
