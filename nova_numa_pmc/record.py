# SPDX-License-Identifier: Apache-2.0
"""Immutable records: tuples whose items have names.

``collections.namedtuple`` in small. The libvirt hook defines two dozen records at every
guest start, and namedtuple compiles code for each of them: with the import of ``collections``
that is a third of a bare Python's start (``make bench-hook``).
"""

from operator import itemgetter


class Record(tuple):
    """Base of a record: ``class Point(Record, fields='x y', defaults=(0,))``.

    The defaults are those of the last fields. ``_fields``, ``_field_defaults``,
    ``_replace()`` and ``_asdict()`` are as in named tuples.
    """

    __slots__ = ()

    def __init_subclass__(cls, fields, defaults=()):
        cls._fields = tuple(fields.split())
        optional = cls._fields[len(cls._fields) - len(defaults):]
        cls._field_defaults = dict(zip(optional, defaults))
        for at, name in enumerate(cls._fields):
            setattr(cls, name, property(itemgetter(at)))

    def __new__(cls, *values, **named):
        if named or len(values) != len(cls._fields):
            values = cls._complete(values, named)
        return tuple.__new__(cls, values)

    @classmethod
    def _complete(cls, values, named):
        """Put named values and defaults behind the positional ones."""
        rest = cls._fields[len(values):]
        known = {**cls._field_defaults, **named}
        odd = named.keys() - rest or [name for name in rest if name not in known]
        if odd or len(values) > len(cls._fields):
            raise TypeError('%s takes %s: %d given, missing or not taken: %s' % (
                cls.__name__, ' '.join(cls._fields), len(values), ' '.join(odd) or 'none'))
        return (*values, *(known[name] for name in rest))

    def _replace(self, **changes):
        """Return a copy with some fields changed."""
        return type(self)(**{**self._asdict(), **changes})

    def _asdict(self):
        """Return {field: value}."""
        return dict(zip(self._fields, self))

    def __getnewargs__(self):
        return tuple(self)  # for copy and pickle: tuple's own would pass one tuple

    def __repr__(self):
        return '%s(%s)' % (type(self).__name__, ', '.join(
            '%s=%r' % pair for pair in self._asdict().items()))
