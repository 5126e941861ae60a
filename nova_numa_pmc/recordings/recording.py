# SPDX-License-Identifier: Apache-2.0
"""Keep samples in a file, for days, so that a reader gets every one that was written whole.

A recording is a sequence of frames and nothing else; each is one sample::

    marker  4 bytes   f5 'N' 'R' '1'   the last is the format's major version
    length  4 bytes   of the payload, little endian
    crc32   4 bytes   of length and payload
    payload           zlib of JSON: the columns of a sample, and "v": [major, minor]

A frame is one write(2) to a file opened for appending, so a writer killed at any time leaves
whole frames and at most one torn one at the end. Each is compressed by itself: a stream over
many samples (gzip of JSON lines) would lose what its last block still held, and all after a
damaged byte. A reader that meets damage looks for the next marker and goes on. There is no
fsync(2): a *host* that crashes may lose what its kernel had not written yet (half a minute).
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import stat
import struct
import zlib
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.record import Record
from nova_numa_pmc.recordings import columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from nova_numa_pmc.measurement import Sample

_PREFIX, _MAJOR, _MINOR = b'\xf5NR', 1, 0
MARKER = _PREFIX + b'%d' % _MAJOR
_HEAD = struct.Struct('<4sII')
#: 10,000 guests take 0.6 MB, and 4 MB as text; what says more is damaged, or hostile.
_PAYLOAD_MAX_BYTES, _TEXT_MAX_BYTES = 4 << 20, 32 << 20
#: A part is read as a whole.
PART_MAX_BYTES = 1 << 30
#: Rotated parts beyond this number are not looked for.
PARTS_MAX = 1000
_PART_NAMES = frozenset(map(str, range(1, PARTS_MAX + 1)))


class Found(Record):
    """What lies in a recording from byte ``start`` to ``end``: a sample, or None: damage."""

    start: int
    end: int
    sample: Sample | None


def encode(sample: Sample) -> bytes:
    """Return a sample as one frame's bytes."""
    data = dict(columns.to_columns(sample), v=[_MAJOR, _MINOR])
    text = json.dumps(data, separators=(',', ':'), allow_nan=False)
    payload = zlib.compress(text.encode(), 9)
    length = struct.pack('<I', len(payload))
    return MARKER + length + struct.pack('<I', zlib.crc32(length + payload)) + payload


def decode(data: bytes) -> Iterator[Found]:
    """Yield what is found in all of a recording's bytes, in order and without gaps."""
    start = position = 0
    while position < len(data):
        frame = _frame(data, position)
        if frame is None:
            position = data.find(MARKER, position + 1)
            if position < 0:
                break
            continue
        if position > start:
            yield Found(start, position, None)
        yield frame
        start = position = frame.end
    if start < len(data):
        yield Found(start, len(data), None)


def _frame(data: bytes, position: int) -> Found | None:
    """Return the frame that begins here, None where none does."""
    head = data[position : position + _HEAD.size]
    if len(head) < _HEAD.size:
        return None
    marker, length, checksum = _HEAD.unpack(head)
    end = position + _HEAD.size + length
    if marker != MARKER or length > _PAYLOAD_MAX_BYTES or end > len(data):
        return None
    payload = data[position + _HEAD.size : end]
    if zlib.crc32(head[4:8] + payload) != checksum:
        return None
    try:
        return Found(position, end, columns.from_columns(_parse(payload)))
    except (RecordingError, ValueError, zlib.error, RecursionError):
        return None


def _parse(payload: bytes) -> Any:
    unpack = zlib.decompressobj()
    text = unpack.decompress(payload, _TEXT_MAX_BYTES)
    if not unpack.eof:
        raise ValueError('too long, or cut')
    return json.loads(text)


def parts(path: str) -> list[str]:
    """Return a recording's files that exist, the oldest first: ``path.2 path.1 path``."""
    rotated = ['%s.%d' % (path, number) for number in sorted(_rotated(path), reverse=True)]
    return rotated + ([path] if os.path.exists(path) else [])


def _rotated(path: str) -> list[int]:
    """Return the numbers of rotated parts; one may lack where a rotation was killed."""
    directory, name = os.path.split(os.path.abspath(path))
    try:
        ends = [
            other[len(name) + 1 :]
            for other in os.listdir(directory)
            if other.startswith(name + '.')
        ]
    except FileNotFoundError:
        return []
    return [int(end) for end in ends if end in _PART_NAMES]


def read(path: str, damaged: Callable[[str], object] | None = None) -> Iterator[Sample]:
    """Yield the samples of a recording and its rotated parts, the oldest first.

    :param damaged: called with a line for each stretch that holds no whole sample
    :raises RecordingError: there is no such file, or a file that is no recording
    """
    names = parts(path)
    if not names:
        raise RecordingError(
            '%s: no such file; nova-numa-rebalance record --out FILE makes one' % path
        )
    for name in names:
        found_any = False
        data = _load(name)
        for found in decode(data):
            if found.sample is not None:
                found_any = True
                yield found.sample
            elif damaged and (found_any or data.find(MARKER) >= 0):
                damaged(
                    '%s: bytes %d to %d contain no whole sample%s'
                    % (
                        name,
                        found.start,
                        found.end,
                        ' (torn when the recorder ended)' if found.end == len(data) else '',
                    )
                )
        if data and not found_any:
            raise RecordingError(_why_nothing(name, data))


def _why_nothing(name: str, data: bytes) -> str:
    other = data.find(_PREFIX)
    version = data[other + 3 : other + 4]
    if other >= 0 and version.isdigit() and version != MARKER[3:]:
        return (
            '%s: its format is %s.x, this release reads %d.x; read it with the release that '
            'wrote it' % (name, version.decode(), _MAJOR)
        )
    return '%s: not a recording of nova-numa-rebalance record, or no sample in it is whole' % name


def _load(name: str) -> bytes:
    # A FIFO would keep an open without O_NONBLOCK waiting for its writer.
    with open(name, 'rb', opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise RecordingError('%s: not a regular file; name a recording' % name)
        data = file.read(PART_MAX_BYTES + 1)
    if len(data) > PART_MAX_BYTES:
        raise RecordingError(
            '%s: longer than %d bytes, so not part of a recording' % (name, PART_MAX_BYTES)
        )
    return data


class Writer:
    """Append samples to a recording; a torn frame at its end is cut off first.

    :param path: the file; full ones are renamed to ``path.1``, ``path.2``, the oldest last
    :param max_bytes: a part's size, at most :data:`PART_MAX_BYTES`
    :param keep: how many parts are kept, the current one included
    :ivar cut_bytes: how much of a torn frame was cut off

    :raises RecordingError: the file is no recording, or another recorder writes to it
    """

    def __init__(self, path: str, max_bytes: int, keep: int) -> None:
        self.path, self.max_bytes, self.keep = path, max_bytes, keep
        self.cut_bytes = 0
        self._fd = self._open()
        try:
            self._size = self._mend()
        except BaseException:
            self.close()
            raise

    def append(self, sample: Sample) -> int:
        """Write one sample; a part that it would overfill is rotated away before.

        :returns: the bytes it took
        :raises RecordingError: the file system is full or failing; the file is as before
        """
        frame = encode(sample)
        if self._size and self._size + len(frame) > self.max_bytes:
            self._rotate()
        try:
            written = os.write(self._fd, frame)
            if written < len(frame):
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
        """Cut a torn frame off the end; return the size that is left."""
        data = _load(self.path)
        end = max((found.end for found in decode(data) if found.sample is not None), default=0)
        tail = data[end:]
        if (tail and not end and not (tail.startswith(MARKER) or MARKER.startswith(tail))) or (
            tail.startswith(_PREFIX) and tail[3:4].isdigit() and tail[3:4] != MARKER[3:]
        ):
            raise RecordingError(
                '%s: contains something other than what this release records; it is left as it '
                'is, record to another file' % self.path
            )
        self.cut_bytes = len(tail)
        if self.cut_bytes:
            os.ftruncate(self._fd, end)
        return end

    def _rotate(self) -> None:
        """Rename every part one further; what is then beyond ``keep`` is removed."""
        for number in sorted((0, *_rotated(self.path)), reverse=True):
            name = '%s.%d' % (self.path, number) if number else self.path
            if number + 1 >= self.keep:
                os.unlink(name)
            else:
                os.rename(name, '%s.%d' % (self.path, number + 1))
        self.close()
        self._fd, self._size = self._open(), 0
