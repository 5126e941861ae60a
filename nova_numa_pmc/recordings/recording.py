# SPDX-License-Identifier: Apache-2.0
"""Record samples to a file, for days; a reader gets every sample that was written completely.

A recording is a gzip file with one member for each sample (RFC 1952); a member's text is one line
of JSON, ``{"v":[major,minor], …the columns of a sample…}``. ``zcat FILE | jq`` reads it.

A member is one write(2) to a file opened for appending, so a writer killed at any time leaves
whole members and at most one torn one at the end. Each is compressed by itself, as a stream over
many samples would lose what its last block still held, and all after a damaged byte. A reader
that meets damage looks for the next member and goes on; gzip's own CRC says which are whole.
There is no fsync(2): a *host* that crashes may lose what its kernel had not written yet (half a
minute).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import zlib
from typing import TYPE_CHECKING

from nova_numa_pmc import checked
from nova_numa_pmc.exceptions import RecordingError, require_major
from nova_numa_pmc.record import Record
from nova_numa_pmc.recordings import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nova_numa_pmc.sample_records import Sample

_MAJOR, _MINOR = 2, 0
#: gzip's magic number and its only method: how each member begins.
MARKER = b'\x1f\x8b\x08'
#: How each sample began in the format before this one.
OLD_MARKER = b'\xf5NR1'
_LINE_BEGIN = b'{"v":['
_OUR_LINE_BEGIN = _LINE_BEGIN + b'%d,' % _MAJOR
_GZIP = 31  # zlib's window bits for it
#: 10,000 guests take 0.6 MB, and 4 MB as text; what says more is damaged, or hostile.
_MEMBER_MAX_BYTES, _TEXT_MAX_BYTES = 4 << 20, 32 << 20
#: Compressed bytes that are unpacked at once, into at most 1,032 times as much text.
_PIECE_BYTES = 16 << 10
#: A file is read as a whole.
FILE_MAX_BYTES = 1 << 30
#: Rotated files beyond this number are not looked for.
FILES_MAX = 1000
_ROTATED_ENDS = frozenset(map(str, range(1, FILES_MAX + 1)))


class Segment(Record):
    """Bytes ``start`` to ``end`` of a recording: a sample, or None: damage."""

    start: int
    end: int
    sample: Sample | None


def encode(sample: Sample) -> bytes:
    """Return a sample as one gzip member."""
    data = {'v': [_MAJOR, _MINOR], **columns.to_columns(sample)}
    line = json.dumps(data, separators=(',', ':'), allow_nan=False) + '\n'
    pack = zlib.compressobj(9, zlib.DEFLATED, _GZIP)
    return pack.compress(line.encode()) + pack.flush()


def decode(data: bytes) -> Iterator[Segment]:
    """Yield the segments of all of a recording's bytes, in order and without gaps."""
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
    """Return the sample that begins here, None where none does."""
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
    """Return a member's text and its end; of a torn or damaged one the text it has, and None."""
    unpack = zlib.decompressobj(_GZIP)
    texts: list[bytes] = []
    size, end = 0, position
    if not data.startswith(MARKER, position):
        return b'', None
    while not unpack.eof:
        piece = data[end : end + _PIECE_BYTES]
        try:
            texts.append(unpack.decompress(piece))
        except zlib.error:
            return b''.join(texts), None
        size += len(texts[-1])
        end += len(piece)
        if not piece or size > _TEXT_MAX_BYTES or end - position > _MEMBER_MAX_BYTES:
            return b''.join(texts), None
    return b''.join(texts), end - len(unpack.unused_data)


def _major(data: Any) -> int:
    """Return the major version of a line's format."""
    major, *_ = checked.of_type(list, checked.of_type(dict, data).get('v'))
    return checked.integer(major)


def existing_files(path: str) -> list[str]:
    """Return a recording's files that exist, the oldest first: ``path.2 path.1 path``."""
    rotated = ['%s.%d' % (path, number) for number in sorted(_rotated_numbers(path), reverse=True)]
    return rotated + ([path] if os.path.exists(path) else [])


def _rotated_numbers(path: str) -> list[int]:
    """Return the numbers of rotated files; one may be missing if a rotation was killed."""
    directory, name = os.path.split(os.path.abspath(path))
    try:
        ends = [
            other[len(name) + 1 :]
            for other in os.listdir(directory)
            if other.startswith(name + '.')
        ]
    except FileNotFoundError:
        return []
    return [int(end) for end in ends if end in _ROTATED_ENDS]


def read(path: str, damaged: Callable[[str], object] | None = None) -> Iterator[Sample]:
    """Yield the samples of a recording in all its files, the oldest first.

    :param damaged: called with a line for each stretch that holds no whole sample
    :raises RecordingError: there is no such file, or a file that is no recording
    """
    names = existing_files(path)
    if not names:
        raise RecordingError(
            '%s: no such file; nova-numa-rebalance record --out FILE makes one' % path
        )
    for name in names:
        any_sample = False
        data = _load(name)
        for segment in decode(data):
            if segment.sample is not None:
                any_sample = True
                yield segment.sample
            elif damaged and (any_sample or data.find(MARKER) >= 0):
                damaged(
                    '%s: bytes %d to %d contain no whole sample%s'
                    % (
                        name,
                        segment.start,
                        segment.end,
                        ' (torn when the recorder ended)' if segment.end == len(data) else '',
                    )
                )
        if data and not any_sample:
            raise RecordingError(_why_nothing(name, data))


def _why_nothing(name: str, data: bytes) -> str:
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
    return '%s: not a recording, or contains no complete sample; name another FILE' % name


def _is_other(data: bytes, end: int) -> bool:
    """Return whether the file ends in something other than a torn sample of ours."""
    text, whole = _unpack(data, end)
    if whole is not None:
        return True
    ours = _OUR_LINE_BEGIN.startswith(text[: len(_OUR_LINE_BEGIN)])
    if end:  # damage, unless another release began a sample here
        return text.startswith(_LINE_BEGIN) and not ours
    return not ours or not MARKER.startswith(data[: len(MARKER)])


def _load(name: str) -> bytes:
    # A FIFO would keep an open without O_NONBLOCK waiting for its writer.
    with open(name, 'rb', opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RecordingError('%s: not a regular file; name a recording' % name)
        data = file.read(FILE_MAX_BYTES + 1)
    if len(data) > FILE_MAX_BYTES:
        raise RecordingError(
            '%s: longer than %d bytes, so not part of a recording' % (name, FILE_MAX_BYTES)
        )
    return data


class RecordingWriter:
    """Appends samples to a recording; a torn sample at its end is cut off first.

    :param path: the file; full ones are renamed to ``path.1``, ``path.2``, the oldest last
    :param max_bytes: a file's size, at most :data:`FILE_MAX_BYTES`
    :param max_files: how many files are kept, the current one included
    :ivar cut_bytes: how much of a torn sample was cut off

    :raises RecordingError: the file is no recording, or another recorder writes to it
    """

    def __init__(self, path: str, max_bytes: int, max_files: int) -> None:
        self.path, self.max_bytes, self.max_files = path, max_bytes, max_files
        self.cut_bytes = 0
        self._fd = self._open()
        try:
            self._size = self._mend()
        except BaseException:
            self.close()
            raise

    def append(self, sample: Sample) -> int:
        """Write one sample; a file that it would overfill is rotated away before.

        :returns: the bytes it took
        :raises RecordingError: the file system is full or failing; the file is as before
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
                '%s: %s; make room, or record to another file system' % (self.path, error.strerror)
            ) from None
        self._size += written
        return written

    def close(self) -> None:
        """Close the file; twice is fine."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise RecordingError('%s: not a regular file; record to one' % self.path)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise RecordingError(
                '%s: another recorder is writing to it; stop that one, or record to another file'
                % self.path
            ) from None
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _mend(self) -> int:
        """Cut a torn sample off the end; return the size that is left."""
        data = _load(self.path)
        end = max(
            (segment.end for segment in decode(data) if segment.sample is not None), default=0
        )
        tail = data[end:]
        if data.startswith(OLD_MARKER):
            raise RecordingError(_why_nothing(self.path, data))
        if tail and _is_other(data, end):
            raise RecordingError(
                '%s: contains data that this release does not record; the file is left as it is: '
                'record to another one' % self.path
            )
        self.cut_bytes = len(tail)
        if self.cut_bytes:
            os.ftruncate(self._fd, end)
        return end

    def _rotate(self) -> None:
        """Rename every file to the next number; remove those beyond ``max_files``."""
        for number in sorted((0, *_rotated_numbers(self.path)), reverse=True):
            name = '%s.%d' % (self.path, number) if number else self.path
            if number + 1 >= self.max_files:
                os.unlink(name)
            else:
                os.rename(name, '%s.%d' % (self.path, number + 1))
        self.close()
        self._fd, self._size = self._open(), 0
