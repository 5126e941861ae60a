# SPDX-License-Identifier: Apache-2.0
"""Immutable records: tuples whose items have names.

This is a minimal ``typing.NamedTuple``; type checkers see the original. The libvirt hook defines
two dozen records at every guest start. NamedTuple would compile code for each of them, which,
together with importing ``typing`` and ``collections``, takes longer than starting a bare Python
(``make bench-hook``).
"""

from __future__ import annotations

__all__ = ('TYPE_CHECKING', 'Record')

#: Not typing's, which takes half as long to import as Python takes to start. Type checkers treat
#: the name as true; what the hook imports has it from here.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from typing import NamedTuple as Record
else:
    from _operator import itemgetter  # importing operator takes a third of a millisecond

    #: The property of each position in a tuple; all records share them.
    _PROPERTIES = []

    class _RecordType(type):
        """Turns the annotations of a record's class into its fields.

        They are kept as text, in ``_field_types``: most types are imported for type checkers only,
        and Python 3.9 could not evaluate ``int | None``.
        """

        def __new__(mcs, name, bases, body):
            body['__slots__'] = ()
            names = body.pop('__annotations__', None)
            if names:
                _define(body, tuple(names))
                body['_field_types'] = names
            elif '__annotate__' in body or '__annotate_func__' in body:  # Python 3.14, PEP 649
                raise TypeError('%s: records need `from __future__ import annotations`' % name)
            return type.__new__(mcs, name, bases, body)

    def _define(body, names):
        """Add a property for each field to a class body, and set its default aside."""
        while len(_PROPERTIES) < len(names):
            _PROPERTIES.append(property(itemgetter(len(_PROPERTIES))))
        body['_fields'] = names
        body['_field_defaults'] = {name: body[name] for name in names if name in body}
        body.update(zip(names, _PROPERTIES))

    class Record(tuple, metaclass=_RecordType):
        """Base class of records; the fields are the annotated names of a class, in that order::

            class Point(Record):
                x: int
                y: int = 0

        The module needs ``from __future__ import annotations``. ``_fields``,
        ``_field_defaults``, ``_make()``, ``_replace()`` and ``_asdict()`` are as in named tuples,
        except that ``_make()`` checks nothing: it is for places where a check takes too long.
        ``_field_types`` has the annotations as text, for :mod:`nova_numa_pmc.json_values`.
        """

        _fields = ()
        _field_defaults = {}
        _field_types = {}

        def __new__(cls, *values, **named):
            if named or len(values) != len(cls._fields):
                values = cls._complete(values, named)
            return tuple.__new__(cls, values)

        _make = classmethod(tuple.__new__)

        @classmethod
        def _complete(cls, values, named):
            """Append named values and defaults to the positional ones."""
            rest = cls._fields[len(values) :]
            by_name = {**cls._field_defaults, **named}
            wrong_names = named.keys() - rest or [name for name in rest if name not in by_name]
            if wrong_names or len(values) > len(cls._fields):
                raise TypeError(
                    '%s takes %s: %d given, missing or not taken: %s'
                    % (
                        cls.__name__,
                        ' '.join(cls._fields),
                        len(values),
                        ' '.join(wrong_names) or 'none',
                    )
                )
            return (*values, *(by_name[name] for name in rest))

        def _replace(self, **changes):
            """Return a copy with some fields changed."""
            return type(self)(**{**self._asdict(), **changes})

        def _asdict(self):
            """Return {field: value}."""
            return dict(zip(self._fields, self))

        def __getnewargs__(self):
            return tuple(self)  # for copy and pickle: tuple's own method would pass one tuple

        def __repr__(self):
            return '%s(%s)' % (
                type(self).__name__,
                ', '.join('%s=%r' % pair for pair in self._asdict().items()),
            )
