# SPDX-License-Identifier: Apache-2.0
"""Record samples to a file over days; a reader gets every sample that was written completely.

A recording is a gzip file with one member for each sample (RFC 1952). The text of a member is one
line of JSON, ``{"v":[major,minor], …the columns of a sample…}``. ``zcat FILE | jq`` reads it.

Each member is written by a single write(2) to a file that was opened for appending. A writer that
is killed at any time therefore leaves whole members, and at most one torn member at the end. Each
member is compressed on its own, because a stream of many samples would lose the data that were
still buffered for its last block, and everything after a damaged byte. A reader that finds damage
continues with the next member; gzip's CRC tells which members are whole. There is no fsync(2), so
a crash of the *host* may lose what its kernel has not written yet (half a minute).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import zlib
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.exceptions import RecordingError, require_major
from nova_numa_pmc.record import Record
from nova_numa_pmc.recordings import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nova_numa_pmc.sample_records import Sample

_MAJOR, _MINOR = 2, 0
#: Beginning of each member: gzip's magic number and its only method.
MARKER = b'\x1f\x8b\x08'
#: Beginning of each sample in the previous format.
OLD_MARKER = b'\xf5NR1'
_LINE_BEGIN = b'{"v":['
_OUR_LINE_BEGIN = _LINE_BEGIN + b'%d,' % _MAJOR
_GZIP = 31  # zlib's window bits for gzip
#: 10,000 guests take 0.6 MB, and 4 MB as text; a larger member is damaged, or hostile.
_MEMBER_MAX_BYTES, _TEXT_MAX_BYTES = 4 << 20, 32 << 20
#: Compressed bytes that are unpacked at a time, into at most 1,032 times as much text.
_PIECE_BYTES = 16 << 10
#: A file is read into memory as a whole.
FILE_MAX_BYTES = 1 << 30
#: Rotated files beyond this number are not looked for.
FILES_MAX = 1000
_ROTATED_SUFFIXES = frozenset(map(str, range(1, FILES_MAX + 1)))


class Segment(Record):
    """Bytes ``start`` to ``end`` of a recording.

    :param sample: the sample in these bytes; None if they are damaged
    """

    start: int
    end: int
    sample: Sample | None


def encode(sample: Sample) -> bytes:
    """Return a sample as one gzip member."""
    data = {'v': [_MAJOR, _MINOR], **columns.to_columns(sample)}
    line = json.dumps(data, separators=(',', ':'), allow_nan=False) + '\n'
    compressor = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    return compressor.compress(line.encode()) + compressor.flush()


def decode(data: bytes) -> Iterator[Segment]:
    """Yield the segments of a file's bytes, in order and without gaps."""
    start = position = 0
    while position < len(data):
        member = _member(data, position)
        if member is None:
            position = data.find(MARKER, position + 1)
            if position < 0:
                break
            continue
        if position > start:
            yield Segment(start, position, None)
        yield member
        start = position = member.end
    if start < len(data):
        yield Segment(start, len(data), None)


def _member(recorded: bytes, position: int) -> Segment | None:
    """Return the segment of the sample that begins at a position; None if none begins there."""
    text, end = _unpack(recorded, position)
    if end is None:
        return None
    try:
        data = json.loads(text)
        require_major(_major(data), _MAJOR)
        return Segment(position, end, columns.from_columns(data))
    except (RecordingError, ValueError, RecursionError):
        return None


def _unpack(data: bytes, position: int) -> tuple[bytes, int | None]:
    """Return a member's text and the position of its end.

    If the member is torn or damaged, return the text that can be unpacked, and None.
    """
    decompressor = zlib.decompressobj(_GZIP)
    texts: list[bytes] = []
    size, end = 0, position
    if not data.startswith(MARKER, position):
        return b'', None
    while not decompressor.eof:
        piece = data[end : end + _PIECE_BYTES]
        try:
            texts.append(decompressor.decompress(piece))
        except zlib.error:
            return b''.join(texts), None
        size += len(texts[-1])
        end += len(piece)
        if not piece or size > _TEXT_MAX_BYTES or end - position > _MEMBER_MAX_BYTES:
            return b''.join(texts), None
    return b''.join(texts), end - len(decompressor.unused_data)


def _major(data: Any) -> int:
    """Return the major version in the data of a line."""
    major, *_ = json_values.of_type(list, json_values.of_type(dict, data).get('v'))
    return json_values.integer(major)


def existing_files(path: str) -> list[str]:
    """Return a recording's existing files, the oldest first: ``path.2 path.1 path``."""
    rotated = ['%s.%d' % (path, number) for number in sorted(_rotated_numbers(path), reverse=True)]
    return rotated + ([path] if os.path.exists(path) else [])


def _rotated_numbers(path: str) -> list[int]:
    """Return the numbers of rotated files, with a gap if a rotation was interrupted."""
    directory, name = os.path.split(os.path.abspath(path))
    try:
        suffixes = [
            other[len(name) + 1 :]
            for other in os.listdir(directory)
            if other.startswith(name + '.')
        ]
    except FileNotFoundError:
        return []
    return [int(suffix) for suffix in suffixes if suffix in _ROTATED_SUFFIXES]


def read(path: str, on_damage: Callable[[str], object] | None = None) -> Iterator[Sample]:
    """Yield the samples of all files of a recording, the oldest first.

    :param on_damage: function that is called with a line of text for each part that contains no
        whole sample
    :raises RecordingError: there is no such file, or a file is not a recording
    """
    names = existing_files(path)
    if not names:
        raise RecordingError(
            '%s: no such file: nova-numa-rebalance record --out FILE makes one' % path
        )
    for name in names:
        any_sample = False
        data = _load(name)
        for segment in decode(data):
            if segment.sample is not None:
                any_sample = True
                yield segment.sample
            elif on_damage and (any_sample or data.find(MARKER) >= 0):
                on_damage(
                    '%s: bytes %d to %d contain no complete sample%s'
                    % (
                        name,
                        segment.start,
                        segment.end,
                        ' (cut off when the recorder ended)' if segment.end == len(data) else '',
                    )
                )
        if data and not any_sample:
            raise RecordingError(_why_unreadable(name, data))


def _why_unreadable(name: str, data: bytes) -> str:
    if data.startswith(OLD_MARKER):
        return (
            '%s: recorded by an older release, whose format this one does not read: read it with '
            'that release, or move it away and record again' % name
        )
    try:
        version = _major(json.loads(_unpack(data, 0)[0]))
    except (ValueError, RecursionError):
        version = _MAJOR
    try:
        require_major(version, _MAJOR)
    except ValueError as error:
        return '%s: %s: read it with the release that wrote it' % (name, error)
    return '%s: not a recording, or contains no complete sample: name another FILE' % name


def _has_foreign_end(data: bytes, end: int) -> bool:
    """Return whether a file ends in something other than a torn or damaged sample of ours.

    :param end: the end of the last whole sample
    """
    text, whole = _unpack(data, end)
    if whole is not None:
        return True
    ours = _OUR_LINE_BEGIN.startswith(text[: len(_OUR_LINE_BEGIN)])
    if end:  # it is damage, unless a sample of another release begins here
        return text.startswith(_LINE_BEGIN) and not ours
    return not ours or not MARKER.startswith(data[: len(MARKER)])


def _load(name: str) -> bytes:
    # O_NONBLOCK, because opening a FIFO would otherwise wait for its writer.
    with open(name, 'rb', opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RecordingError('%s: not a regular file: name a recording' % name)
        data = file.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise RecordingError(
            '%s: longer than %d bytes, so not part of a recording' % (name, FILE_MAX_BYTES)
        )
    return data


class RecordingWriter:
    """Writer that appends samples to a recording, after cutting off a torn sample at its end.

    :param path: the file; when it is full, it is renamed to ``path.1``, that to ``path.2``, and so
        on
    :param max_bytes: maximum size of a file, at most :data:`FILE_MAX_BYTES`
    :param max_files: number of files that are kept, including the current one
    :ivar cut_bytes: number of bytes that were cut off

    :raises RecordingError: the file is not a recording, or another recorder is writing to it
    """

    def __init__(self, path: str, max_bytes: int, max_files: int) -> None:
        self.path, self.max_bytes, self.max_files = path, max_bytes, max_files
        self.cut_bytes = 0
        self._fd = self._open()
        try:
            self._size = self._cut_torn_end()
        except BaseException:
            self.close()
            raise

    def append(self, sample: Sample) -> int:
        """Write one sample, after rotating the files if the sample would not fit.

        :returns: number of bytes written
        :raises RecordingError: the file system is full or failing; the file is unchanged
        """
        member = encode(sample)
        if self._size and self._size + len(member) > self.max_bytes:
            self._rotate()
        try:
            written = os.write(self._fd, member)
            if written < len(member):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            os.ftruncate(self._fd, self._size)
            raise RecordingError(
                '%s: %s: make room, or record to another file system' % (self.path, error.strerror)
            ) from None
        self._size += written
        return written

    def close(self) -> None:
        """Close the file; it may be closed more than once."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RecordingError('%s: not a regular file: record to one' % self.path)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise RecordingError(
                '%s: another recorder is writing to it: stop that one, or record to another file'
                % self.path
            ) from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _cut_torn_end(self) -> int:
        """Cut off a torn sample at the end, and return the remaining size."""
        data = _load(self.path)
        end = max(
            (segment.end for segment in decode(data) if segment.sample is not None), default=0
        )
        tail = data[end:]
        if data.startswith(OLD_MARKER):
            raise RecordingError(_why_unreadable(self.path, data))
        if tail and _has_foreign_end(data, end):
            raise RecordingError(
                '%s: contains data that this release does not record; the file is left as it is: '
                'record to another one' % self.path
            )
        self.cut_bytes = len(tail)
        if self.cut_bytes:
            os.ftruncate(self._fd, end)
        return end

    def _rotate(self) -> None:
        """Rename each file to the next number, and remove those beyond ``max_files``."""
        for number in sorted((0, *_rotated_numbers(self.path)), reverse=True):
            name = '%s.%d' % (self.path, number) if number else self.path
            if number + 1 >= self.max_files:
                os.unlink(name)
            else:
                os.rename(name, '%s.%d' % (self.path, number + 1))
        self.close()
        self._fd, self._size = self._open(), 0
