# SPDX-License-Identifier: Apache-2.0
"""Check the types and bounds of values from JSON that another program may have written.

Each function returns the value, or raises ValueError with a message that quotes at most 40
characters of it; only :func:`printable` accepts any text. Types must match exactly: JSON's true is
not a number, although Python's bool is a subclass of int.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from typing import Any, TypeVar

    _T = TypeVar('_T')

#: The largest finite number: NaN and infinities are never in bounds.
NUMBER_MAX = 1.7976931348623157e308
#: Beyond any real amount; a file in which a member is larger is damaged.
MEMBER_MAX = 2**60
_REQUIRED = object()


def printable(string: str) -> str:
    """Return the text with each unprintable character, which could control a terminal, as '?'."""
    return ''.join(char if char.isprintable() else '?' for char in string)


def of_type(kind: type[_T], value: object) -> _T:
    """Return the value, which must be of exactly this type."""
    if type(value) is not kind:
        raise ValueError('%.40r is not of type %s' % (value, kind.__name__))
    return value


def number(value: Any, maximum: float = NUMBER_MAX, minimum: float = 0) -> float:
    """Return the value, which must be an int or a float from ``minimum`` to ``maximum``."""
    # Written so that NaN, for which every comparison is false, is refused.
    if type(value) not in (int, float) or not minimum <= value <= maximum:
        raise ValueError('%.40r is not a number from %g to %g' % (value, minimum, maximum))
    amount: float = value
    return amount


def integer(value: Any, maximum: float = NUMBER_MAX) -> int:
    """Return the value, which must be an int from 0 to ``maximum``."""
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError('%.40r is not a whole number up to %g' % (value, maximum))
    return value


def text(value: object, max_length: int) -> str:
    """Return the value, which must be a printable str of at most ``max_length`` characters.

    Line breaks are not printable.
    """
    if type(value) is not str or len(value) > max_length or not value.isprintable():
        raise ValueError('%.40r is not a string of at most %d characters' % (value, max_length))
    return value


def one_of(value: object, known: Collection[str]) -> str:
    """Return the member of ``known`` that equals the value."""
    for word in known:
        if value == word:
            return word
    raise ValueError('%.40r is not a known value' % (value,))


def sequence(value: object, max_length: int, min_length: int = 0) -> list[Any]:
    """Return the value, which must be a list of ``min_length`` to ``max_length`` items.

    The items are not checked.
    """
    if type(value) is not list or not min_length <= len(value) <= max_length:
        raise ValueError('%.40r is not a list of %d to %d items' % (value, min_length, max_length))
    return value


def mapping(value: object, max_length: int | None = None) -> dict[str, Any]:
    """Return the value, which must be a dict of at most ``max_length`` members.

    The members are not checked.
    """
    if type(value) is not dict:
        raise ValueError('%.40r is not an object' % (value,))
    if max_length is not None and len(value) > max_length:
        raise ValueError('%.40r has more than %d members' % (value, max_length))
    return value


def member(name: str, check: Callable[[Any, Any], _T], value: object, bound: float) -> _T:
    """Check the value of a member with one of the functions above; errors name the member."""
    try:
        return check(value, bound)
    except ValueError as error:
        raise ValueError('%s: %s' % (name, error)) from None


class Members:
    """A JSON object whose members are checked when they are read; errors name the member."""

    __slots__ = ('_members',)

    def __init__(self, value: object) -> None:
        self._members = mapping(value)

    def get(self, name: str, default: object = _REQUIRED) -> Any:
        """Return a member without checking it."""
        value = self._members.get(name, default)
        if value is _REQUIRED:
            raise ValueError('missing member %s' % name)
        return value

    @overload
    def number(self, name: str, default: float = ..., maximum: float = ...) -> float: ...

    @overload
    def number(self, name: str, default: None, maximum: float = ...) -> float | None: ...

    def number(
        self, name: str, default: object = _REQUIRED, maximum: float = MEMBER_MAX
    ) -> float | None:
        """Return a number from 0 to ``maximum``; if the default is None, also accept null."""
        value = self.get(name, default)
        if value is None and default is None:
            return None
        return member(name, number, value, maximum)

    def integer(self, name: str, default: object = _REQUIRED) -> int:
        """Return an int from 0 to :data:`MEMBER_MAX`."""
        return member(name, integer, self.get(name, default), MEMBER_MAX)

    def text(self, name: str, max_length: int, default: object = _REQUIRED) -> str:
        """Return a printable str."""
        return member(name, text, self.get(name, default), max_length)

    def sequence(self, name: str, max_length: int, default: Any = _REQUIRED) -> Sequence[Any]:
        """Return a list, or the default."""
        value: Any = self.get(name, default)
        return value if value is default else member(name, sequence, value, max_length)
