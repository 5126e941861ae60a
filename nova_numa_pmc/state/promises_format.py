# SPDX-License-Identifier: Apache-2.0
"""The format of the promises file.

The file is text with tab-separated columns. The columns are named, so that those added by a newer
writer are ignored, and those missing from an older writer's file take their defaults::

    nova-numa-pmc-promises  1.2  <boot id>  <rotation>
    uuid  name  cpu_nodes  ...
    6ba7b810-...  instance-0000002a  0  ...
    end  <rows>

It is not JSON, because importing that takes the libvirt hook as long as starting Python.
"""

from __future__ import annotations

from nova_numa_pmc.cpulist import format_cpulist, is_number, parse_cpulist
from nova_numa_pmc.exceptions import CpuListError, StateError, require_major
from nova_numa_pmc.model import Promise

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, NoReturn

_MAGIC = 'nova-numa-pmc-promises'
_MAJOR, _MINOR = 1, 2
_PLAIN = b'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-'


class HostPromises:
    """Content of a promises file.

    :ivar promises: {guest uuid: :class:`~nova_numa_pmc.model.Promise`}
    :ivar rotation: number of placements made so far, which breaks ties between equal nodes
    """

    def __init__(self, promises: Mapping[str, Promise] | None = None, rotation: int = 0) -> None:
        self.promises = dict(promises or {})
        self.rotation = rotation

    def with_promises(self, promises: Mapping[str, Promise]) -> HostPromises:
        """Return a copy with promises added or replaced, given as {guest uuid: promise}."""
        return HostPromises({**self.promises, **promises}, self.rotation)


def encode(promises: Iterable[Promise], rotation: int, boot_id: str) -> bytes:
    """Return promises as the file's bytes.

    :raises StateError: a promise has a value that :func:`decode` would refuse
    """
    try:
        return _encode(promises, rotation, boot_id)
    except (AttributeError, TypeError, ValueError) as error:
        raise StateError('a promise cannot be written: %s' % error) from None


def _encode(promises: Iterable[Promise], rotation: int, boot_id: str) -> bytes:
    lines = [
        '%s\t%d.%d\t%s\t%s' % (_MAGIC, _MAJOR, _MINOR, _escape(boot_id), _number(rotation)),
        '\t'.join(CODECS),
    ]
    for promise in promises:
        lines.append(
            '\t'.join(to_text(value) for (to_text, _), value in zip(CODECS.values(), promise))
        )
    lines.append('end\t%d\n' % (len(lines) - 2))
    return '\n'.join(lines).encode('ascii')


def decode(data: bytes) -> tuple[str, HostPromises]:
    """Parse the file's bytes.

    :returns: (boot id, :class:`HostPromises`)
    :raises StateError: this is not a promises file, is truncated, or is from a newer release
    """
    try:
        lines = data.decode('ascii').split('\n')
        boot_id, rotation = _boot_id(lines[0])
        if lines[-1] or lines[-2].split('\t') != ['end', '%d' % (len(lines) - 4)]:
            raise ValueError('truncated')
        columns = lines[1].split('\t')
        promises = {}
        for line in lines[2:-2]:
            promise = _to_promise(columns, line.split('\t'))
            if promise.uuid in promises:
                raise ValueError('two promises for guest %.80r' % promise.uuid)
            promises[promise.uuid] = promise
        return boot_id, HostPromises(promises, _to_int(rotation))
    except (ValueError, IndexError) as error:
        raise StateError('%s' % error) from None


def decode_one(data: bytes, uuid: str) -> tuple[str, Promise | None]:
    """Parse one guest's row of the file's bytes.

    :returns: (boot id, the guest's promise or None)
    :raises StateError: as :func:`decode`, as far as the first line and this row show
    """
    try:
        first, columns = data.split(b'\n', 2)[:2]
        boot_id = _boot_id(first.decode('ascii'))[0]
        if not columns.startswith(b'uuid\t'):  # the writer has another order of columns
            return boot_id, decode(data)[1].promises.get(uuid)
        rows, end = len(first) + len(columns) + 1, data.rindex(b'\nend\t') + 1
        position = data.find(('\n%s\t' % _escape(uuid)).encode('ascii'), rows, end)
        if position < 0:
            return boot_id, None
        row = data[position + 1 : data.index(b'\n', position + 1)].decode('ascii')
        return boot_id, _to_promise(columns.decode('ascii').split('\t'), row.split('\t'))
    except (ValueError, IndexError) as error:
        raise StateError('%s' % error) from None


def _boot_id(line: str) -> tuple[str, str]:
    """Return (boot id, rotation as text) of the first line."""
    magic, version, boot_id, rotation = line.split('\t')[:4]
    if magic != _MAGIC:
        raise ValueError('not a file of nova-numa-pmc: unexpected first line')
    require_major(version, _MAJOR)
    return _unescape(boot_id), rotation


def to_data(promise: Promise) -> dict[str, Any]:
    """Return {column: value} of a promise, for JSON."""
    return dict(zip(CODECS, promise))


def _to_promise(columns: list[str], values: list[str]) -> Promise:
    if len(columns) != len(values):
        raise ValueError('a row has %d columns, not %d' % (len(values), len(columns)))
    row = dict(Promise._field_defaults)
    for column, value in zip(columns, values):
        if column in CODECS:
            row[_FIELDS[column]] = CODECS[column][1](value)
    missing = [column for column, field in _FIELDS.items() if field not in row]
    if missing:
        raise ValueError('missing column %s' % missing[0])
    if not row['uuid']:
        raise ValueError('a row without a guest uuid')
    return Promise(*[row[field] for field in Promise._fields])


def _escape(text: str) -> str:
    """Percent-escape all but a few plain characters; any str survives, even lone surrogates."""
    data = text.encode('utf-8', 'surrogatepass')
    if not data.translate(None, _PLAIN):
        return text  # the usual case, which is fast: each start writes the names of all guests
    return ''.join(chr(byte) if byte in _PLAIN else '%%%02x' % byte for byte in data)


def _unescape(text: str) -> str:
    first, *parts = text.split('%')
    if not parts:
        return first
    plain = bytearray(first, 'ascii')
    for part in parts:
        plain += bytes.fromhex(part[:2]) if len(part[:2].strip()) == 2 else _refuse(text)
        plain += part[2:].encode('ascii')
    return plain.decode('utf-8', 'surrogatepass')


def _to_int(text: str) -> int:
    if not is_number(text):
        _refuse(text)
    return int(text)


def _number(value: int) -> str:
    text = format(value, 'd')
    return text if is_number(text) else _refuse(text)


def _to_bool(text: str) -> bool:
    return text == '1' if text in ('0', '1') else _refuse(text)


def _refuse(text: str) -> NoReturn:
    raise ValueError('unexpected value %.80r' % text)


def _to_numbers(text: str) -> tuple[int, ...]:
    return tuple(_to_int(part) for part in text.split(',')) if text else ()


def _to_cpus(text: str) -> tuple[int, ...]:
    try:
        return tuple(sorted(parse_cpulist(text)))
    except CpuListError as error:
        raise ValueError('%s' % error) from None


_TEXT = _escape, _unescape
_INT = _number, _to_int
_BOOL = _number, _to_bool
_NUMBERS = (lambda numbers: ','.join(map(_number, numbers))), _to_numbers
_OPTIONAL_INT = (
    (lambda value: '-' if value is None else _number(value)),
    (lambda text: None if text == '-' else _to_int(text)),
)
#: For each column, in the order of a promise's fields: the functions that encode and decode it.
CODECS: dict[str, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    'uuid': _TEXT,
    'name': _TEXT,
    'cpu_nodes': _NUMBERS,
    'mem_nodes': _NUMBERS,
    'vcpus': _INT,
    'memory_bytes': _INT,
    'page_bytes': _OPTIONAL_INT,
    'bound': _BOOL,
    'origin': _TEXT,
    'since_ns': _INT,
    'started': _BOOL,
    'mem_bytes': _NUMBERS,
    'missed': _BOOL,
    'cpus': (format_cpulist, _to_cpus),
}
#: {column: field}; mem_bytes is mem_node_bytes in the record, and cpus is l3_cpus.
_FIELDS = dict(zip(CODECS, Promise._fields))
