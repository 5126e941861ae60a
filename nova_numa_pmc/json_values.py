# SPDX-License-Identifier: Apache-2.0
"""Records as JSON and back: one format for all of our files, declared by the records' fields.

The annotation of a field says what its value must be. The types are checked exactly: JSON's true
is not a number, although Python's bool is a subclass of int. Besides Python's types there are
those that state narrower or wider bounds, and which type checkers see as plain numbers::

    int             whole number from 0 to 2**60
    float           number from 0 to 1e30; never NaN or infinite
    Signed          number from -1e30 to 1e30
    Share           number from 0 to 1
    str             text of at most 4096 characters
    bool            true or false
    X | None        null, or as X
    tuple[X, ...]   list of at most 65,536 values as X; as are frozenset[X] and sequences of pairs
    tuple[X, Y]     list of two values
    a record        object; members that the record lacks are those of a newer writer, and ignored,
                    and fields that the object lacks take their defaults

The checks return the value, or raise ValueError with a message that quotes at most 40 characters
of it. The libvirt hook imports this module at every guest start.
"""

from __future__ import annotations

import json
import sys

from nova_numa_pmc.exceptions import require_major
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    _T = TypeVar('_T', bound=tuple[Any, ...])
    Check = Callable[[Any], Any]
    #: Numbers with other bounds than ``float``, for annotations.
    Signed = float
    Share = float

#: Beyond any real amount; a file in which a member is larger is damaged.
INTEGER_MAX, NUMBER_MAX = 2**60, 1e30
#: More characters than any text has, and more items than any list.
TEXT_MAX, ITEMS_MAX = 4096, 1 << 16
#: {record: {field: its check}}
_checks_of_records: dict[type, dict[str, Check]] = {}


def printable(string: str) -> str:
    """Return the text with each unprintable character, which could control a terminal, as '?'."""
    return ''.join(char if char.isprintable() else '?' for char in string)


def number(value: Any, maximum: float = NUMBER_MAX, minimum: float = 0) -> float:
    """Return the value, which must be an int or a float from ``minimum`` to ``maximum``."""
    # Written so that NaN, for which every comparison is false, is refused.
    if type(value) not in (int, float) or not minimum <= value <= maximum:
        raise ValueError('%.40r is not a number from %g to %g' % (value, minimum, maximum))
    amount: float = value
    return amount


def integer(value: Any, maximum: int = INTEGER_MAX) -> int:
    """Return the value, which must be an int from 0 to ``maximum``."""
    if type(value) is not int or not 0 <= value <= maximum:
        raise ValueError('%.40r is not a whole number up to %g' % (value, maximum))
    return value


def text(value: Any) -> str:
    """Return the value, which must be a str of at most :data:`TEXT_MAX` characters."""
    if type(value) is not str or len(value) > TEXT_MAX:
        raise ValueError('%.40r is not a text of at most %d characters' % (value, TEXT_MAX))
    return value


def boolean(value: Any) -> bool:
    """Return the value, which must be true or false."""
    if type(value) is not bool:
        raise ValueError('%.40r is neither true nor false' % (value,))
    return value


def sequence(value: Any, max_length: int = ITEMS_MAX, min_length: int = 0) -> list[Any]:
    """Return the value, which must be a list of so many items, which are not checked."""
    if type(value) is not list or not min_length <= len(value) <= max_length:
        raise ValueError('%.40r is not a list of %d to %d items' % (value, min_length, max_length))
    return value


def mapping(value: Any, max_length: int = ITEMS_MAX) -> dict[str, Any]:
    """Return the value, which must be an object of at most so many members, unchecked."""
    if type(value) is not dict or len(value) > max_length:
        raise ValueError('%.40r is not an object of at most %d members' % (value, max_length))
    return value


def to_json(value: Any) -> Any:
    """Return a record, or tuples of records, as dicts, lists and plain values."""
    if hasattr(value, '_asdict'):
        return {name: to_json(item) for name, item in value._asdict().items()}
    if isinstance(value, tuple):
        return [to_json(item) for item in value]
    return sorted(value) if isinstance(value, frozenset) else value


def from_json(kind: type[_T], value: Any) -> _T:
    """Return the record of this kind that a value read from JSON describes.

    :raises ValueError: a member is missing or is not what its field declares; the message names it
    """
    members = mapping(value)
    checks = _checks_of_records.get(kind)
    if checks is None:
        checks = _checks_of_records[kind] = _checks(kind)
    fields = {}
    for name, check in checks.items():
        try:
            if name in members:
                fields[name] = check(members[name])
        except ValueError as error:
            raise ValueError('%s: %s' % (name, error)) from None
    record: Any = kind
    missing = checks.keys() - fields.keys() - record._field_defaults.keys()
    if missing:
        raise ValueError('missing member %s' % min(missing))
    made: _T = record(**fields)
    return made


def encode(record: tuple[Any, ...], major: int, minor: int = 0) -> bytes:
    """Return a record as the bytes of a file, on one line, with the version of its format.

    :raises ValueError: a number is not finite
    """
    data = {'schema': '%d.%d' % (major, minor), **to_json(record)}
    return json.dumps(data, allow_nan=False).encode('ascii') + b'\n'


def decode(kind: type[_T], data: bytes, major: int) -> _T:
    """Return the record in the bytes of a file.

    :param major: the version of the format that this release reads, whatever its minor version
    :raises ValueError: it is malformed, truncated, or of another major version
    """
    try:
        value = json.loads(data)
        require_major(value['schema'], major)
        return from_json(kind, value)
    except (KeyError, TypeError, RecursionError) as error:
        raise ValueError('not a file of nova-numa-pmc: %.100s' % (error,)) from None


def _checks(kind: type) -> dict[str, Check]:
    """Return {field: the check that its annotation declares} of a record."""
    names = sys.modules[kind.__module__].__dict__
    types: dict[str, str] = kind._field_types  # type: ignore[attr-defined]
    return {name: _check(annotation, names) for name, annotation in types.items()}


def _check(annotation: str, names: dict[str, Any]) -> Check:
    """Return the check that an annotation declares.

    :param names: names of the annotation's module, which include those of its records
    """
    if annotation in _CHECKS:
        return _CHECKS[annotation]
    if annotation.endswith(' | None'):
        check = _check(annotation.removesuffix(' | None'), names)
        return lambda value: None if value is None else check(value)
    container, bracket, content = annotation.removesuffix(']').partition('[')
    if not bracket:
        record = names[annotation]
        return lambda value: from_json(record, value)
    parts = _split(content)
    checks = [_check(part, names) for part in parts if part != '...']
    if container == 'frozenset':
        return lambda value: frozenset(map(checks[0], sequence(value)))
    if parts[-1] == '...':
        return lambda value: tuple(map(checks[0], sequence(value)))
    return lambda value: tuple(
        check(item) for check, item in zip(checks, sequence(value, len(checks), len(checks)))
    )


def _split(content: str) -> list[str]:
    """Return the parts between the commas that are not in brackets."""
    parts, depth = [''], 0
    for char in content:
        depth += (char == '[') - (char == ']')
        if char == ',' and not depth:
            parts.append('')
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


#: {type in an annotation: its check}
_CHECKS: dict[str, Check] = {
    'int': integer,
    'float': number,
    'Signed': lambda value: number(value, NUMBER_MAX, -NUMBER_MAX),
    'Share': lambda value: number(value, 1.0),
    'str': text,
    'bool': boolean,
}
