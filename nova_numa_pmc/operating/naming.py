# SPDX-License-Identifier: Apache-2.0
"""Find the guest that an operator names."""

from __future__ import annotations

import difflib

from nova_numa_pmc.exceptions import UnknownGuest

_SHOWN = 8


def find(text, running, problems=()):
    """Return the guest of a name, a uuid or libvirt's id, in this order.

    :param running: list of :class:`model.Guest`
    :param problems: strings: guests that could not be read, for the message
    :raises UnknownGuest: there is none; lists those with names like it
    """
    for names in (lambda guest: guest.name, lambda guest: guest.uuid,
                  lambda guest: guest.id is not None and str(guest.id)):
        for guest in running:
            if text == names(guest):
                return guest
    names = sorted(guest.name for guest in running)
    near = difflib.get_close_matches(text, names, _SHOWN)
    near += [name for name in names if text and text in name and name not in near]
    shown = (near or names)[:_SHOWN]
    raise UnknownGuest('no guest %.80r runs here; %s: %s' % (
        text, 'there are names like it' if near else 'there are', ', '.join(shown) or 'none')
        + (' and %d more' % (len(names) - len(shown)) if not near and len(names) > len(shown)
           else '') + ''.join('; ' + problem for problem in problems))
