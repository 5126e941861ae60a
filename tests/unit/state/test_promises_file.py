# SPDX-License-Identifier: Apache-2.0
"""Promises survive contention, crashes and hostile files, or an error names the remedy."""

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import tempfile
import unittest
from unittest import mock

from hypothesis import given, strategies as st

from nova_numa_pmc import json_values
from nova_numa_pmc.exceptions import StateError, StateLocked, StateUnavailable
from nova_numa_pmc.model import Promise
from nova_numa_pmc.state import promises_file

BOOT = '5d0b1c6e-7d4d-4d4c-9f5c-2f9f5a3e0b11'
GUEST = Promise(
    '6ba7b810-9dad-11d1-80b4-00c04fd430c8', 'instance-0000002a', (0,), (0,), 4, 8 << 30, since_ns=5
)

_numbers = st.integers(0, 2**60)
_nodes = st.lists(st.integers(0, 65535), max_size=4).map(tuple)
# Any str, including lone surrogates: a name may be what os.fsdecode() made of any bytes.
_texts = st.text(
    st.characters(max_codepoint=0xD7FF)
    | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF),
    max_size=20,
)
_promises = st.builds(
    Promise,
    uuid=_texts.filter(bool),
    name=_texts,
    cpu_nodes=_nodes,
    mem_nodes=_nodes,
    vcpus=_numbers,
    memory_bytes=_numbers,
    page_bytes=st.none() | _numbers,
    bound=st.booleans(),
    origin=_texts,
    since_ns=_numbers,
    started=st.booleans(),
    mem_node_bytes=st.lists(_numbers, max_size=4).map(tuple),
    missed=st.booleans(),
    l3_cpus=st.frozensets(st.integers(0, 16383), max_size=9).map(sorted).map(tuple),
)
_records = st.lists(_promises, max_size=4, unique_by=lambda promise: promise.uuid)


class FormatTest(unittest.TestCase):
    def encode(self, promises, rotation=1, boot_id=BOOT):
        by_uuid = {promise.uuid: promise for promise in promises}
        return promises_file.encode(promises_file.HostPromises(by_uuid, rotation), boot_id)

    @given(_records, _numbers, _texts)
    def test_promises_are_decoded_as_encoded(self, promises, rotation, boot_id):
        boot, record = promises_file.decode(self.encode(promises, rotation, boot_id))
        self.assertEqual(
            (boot_id, rotation, promises), (boot, record.rotation, list(record.promises.values()))
        )

    @given(_records, st.data())
    def test_damage_is_an_error_or_another_record(self, promises, data):
        damaged = bytearray(self.encode(promises))
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(
                st.sampled_from(b'"\\[]{}:,0-.\xff\0') | st.integers(0, 255)
            )
        with contextlib.suppress(StateError):
            promises_file.decode(bytes(damaged))

    def edited(self, old, new):
        whole = self.encode([GUEST])
        self.assertIn(old, whole)
        return promises_file.decode(whole.replace(old, new))[1].promises

    def test_two_promises_for_a_guest_are_refused(self):
        row = json.dumps(json_values.to_json(GUEST)).encode()
        with self.assertRaisesRegex(StateError, 'two promises'):
            self.edited(row, row + b', ' + row)

    def test_a_record_that_could_not_be_read_back_is_not_written(self):
        for changed in (
            {'vcpus': -1},
            {'vcpus': 1.5},
            {'vcpus': None},
            {'name': None},
            {'memory_bytes': 2**70},
            {'cpu_nodes': None},
            {'cpu_nodes': ('0',)},
        ):
            with self.subTest(changed=changed), self.assertRaises(StateError):
                self.encode([GUEST._replace(**changed)])


def failing_open(name, code):
    """Return a context in which files with this name cannot be opened.

    :param code: the errno
    """
    real_open = os.open

    def open_or_fail(path, *args, **options):
        if path == name:
            raise OSError(code, os.strerror(code), path)
        return real_open(path, *args, **options)

    return mock.patch.object(os, 'open', open_or_fail)


class StateTestCase(unittest.TestCase):
    def setUp(self):
        super().setUp()
        parent = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, parent)
        self.directory = os.path.join(parent, 'nova-numa-pmc')
        self.file = os.path.join(self.directory, promises_file.FILE)

    def locked(self, timeout_s=10.0, boot_id=BOOT):
        return promises_file.locked_at(self.directory, timeout_s, boot_id)

    def read(self):
        return promises_file.read_optional(self.directory, BOOT)

    def record(self, *promises):
        with self.locked() as draft:
            for promise in promises or (GUEST,):
                draft.put(promise)


class LockedTest(StateTestCase):
    def test_a_promise_is_recorded_and_forgotten(self):
        self.assertIsNone(self.read())
        with self.locked() as draft:
            self.assertEqual({}, draft.promises)
            draft.put(GUEST)
            draft.rotation += 1
        record = self.read()
        self.assertEqual(({GUEST.uuid: GUEST}, 1), (record.promises, record.rotation))
        with self.locked() as draft:
            draft.promises.pop(GUEST.uuid, None)
            draft.promises.pop('never there', None)
        self.assertEqual(({}, 1), (self.read().promises, self.read().rotation))

    def test_the_record_is_readable_by_all_under_any_umask(self):
        for umask in (0, 0o077):
            with self.subTest(umask=umask):
                before = os.umask(umask)
                try:
                    self.record()
                finally:
                    os.umask(before)
                self.assertEqual(
                    [0o755, 0o644],
                    [os.stat(path).st_mode & 0o7777 for path in (self.directory, self.file)],
                )
                self.assertEqual(
                    0, os.stat(os.path.join(self.directory, promises_file.LOCK)).st_mode & 0o077
                )
                shutil.rmtree(self.directory)

    def test_a_block_that_raises_records_nothing(self):
        with contextlib.suppress(KeyError), self.locked() as draft:
            draft.put(GUEST)
            raise KeyError
        self.assertIsNone(self.read())
        self.record()  # and the lock is free again

    def test_another_boots_record_does_not_count(self):
        self.record()
        self.assertIsNone(promises_file.read_optional(self.directory, 'another'))
        with self.locked(boot_id='another') as draft:
            self.assertEqual(({}, None), (draft.promises, draft.problem))
            draft.put(GUEST)
        self.assertIsNone(self.read())

    def test_the_wait_for_a_held_lock_ends(self):
        with self.locked():
            with self.assertRaisesRegex(StateLocked, 'lock: locked by another process'):
                with self.locked(timeout_s=0.003):
                    self.fail('entered twice')
        self.record()

    def test_a_full_file_system_is_an_error_and_the_old_record_stays(self):
        self.record()
        os.mkdir(self.file + '.tmp')  # as good a reason as any not to be able to write
        with self.assertRaisesRegex(StateError, 'cannot be written'):
            self.record(GUEST._replace(uuid='b'))
        self.assertEqual([GUEST.uuid], list(self.read().promises))


class HostileTest(StateTestCase):
    def spoilers(self):
        """Yield (name, function that puts something else in the file's place)."""

        def replace(make):
            def spoil():
                os.unlink(self.file)
                make(self.file)

            return spoil

        def append(data):
            def spoil():
                with open(self.file, 'ab') as f:
                    f.write(data)

            return spoil

        yield 'symlink', replace(lambda path: os.symlink('/etc/hostname', path))
        yield 'dangling', replace(lambda path: os.symlink('/nowhere', path))
        yield 'fifo', replace(os.mkfifo)
        yield 'directory', replace(os.mkdir)
        yield 'garbage', append(b'\xff\0')
        yield 'huge', lambda: os.truncate(self.file, 1 << 40)
        yield 'empty', lambda: os.truncate(self.file, 0)
        yield 'half', lambda: os.truncate(self.file, 100)
        yield 'open to all', lambda: os.chmod(self.file, 0o666)
        if not os.geteuid():
            yield 'another owner', lambda: os.chown(self.file, 4321, -1)

    def test_a_file_not_to_be_trusted_is_named_and_set_aside(self):
        for name, spoil in self.spoilers():
            with self.subTest(name):
                self.record()
                spoil()
                with self.assertRaises(StateError) as caught:
                    self.read()
                for word in (self.file, 'remove it'):
                    self.assertIn(word, str(caught.exception))
                spoiled = os.lstat(self.file).st_ino
                with self.locked() as draft:
                    self.assertEqual({}, draft.promises)
                    self.assertEqual(str(caught.exception), draft.problem)
                    draft.put(GUEST)
                self.assertEqual({GUEST.uuid: GUEST}, self.read().promises)
                self.assertEqual(spoiled, os.lstat(self.file + '.bad').st_ino)
                shutil.rmtree(self.directory)

    def test_a_file_that_cannot_be_read_at_the_moment_is_kept(self):
        self.record()
        for code in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EINTR):
            for name in (self.directory, promises_file.LOCK, promises_file.FILE):
                with self.subTest(code=errno.errorcode[code], name=name):
                    with failing_open(name, code):
                        with self.assertRaisesRegex(StateUnavailable, os.strerror(code)):
                            self.record(GUEST._replace(uuid='b'))
                    self.assertEqual({GUEST.uuid: GUEST}, self.read().promises)

    def test_a_file_that_cannot_be_set_aside_is_an_error(self):
        self.record()
        os.truncate(self.file, 0)
        os.mkdir(self.file + '.bad')
        with self.assertRaisesRegex(StateError, 'set aside'), self.locked():
            self.fail('entered')

    def test_a_directory_not_to_be_trusted_is_not_entered(self):
        elsewhere = self.directory + '.elsewhere'
        os.mkdir(elsewhere)
        for name, make in (
            ('symlink', lambda: os.symlink(elsewhere, self.directory)),
            ('file', lambda: os.mknod(self.directory)),
            ('open to all', lambda: (os.mkdir(self.directory), os.chmod(self.directory, 0o777))),
        ):
            with self.subTest(name):
                make()
                for enter in (self.read, lambda: self.locked().__enter__()):
                    with self.assertRaisesRegex(StateError, self.directory + ': '):
                        enter()
                self.assertEqual([], os.listdir(elsewhere))
                if os.path.isdir(self.directory) and not os.path.islink(self.directory):
                    os.rmdir(self.directory)
                else:
                    os.unlink(self.directory)
        self.directory = os.path.join(self.directory, 'no', 'parent')
        with self.assertRaisesRegex(StateError, self.directory), self.locked():
            self.fail('entered')


class CrowdTest(StateTestCase):
    def fork(self, work):
        """Run ``work()`` in a child, which exits with 0 if it returns."""
        pid = os.fork()
        if not pid:
            code = 1
            try:
                work()
                code = 0
            finally:
                os._exit(code)
        return pid

    def test_a_writer_killed_anywhere_leaves_the_old_record_or_the_new(self):
        chance = random.Random(7)

        def write_on(fd):
            while True:
                with self.locked() as draft:
                    draft.rotation += 1
                    draft.promises = {
                        str(i): GUEST._replace(uuid=str(i), since_ns=draft.rotation)
                        for i in range(20)
                    }
                os.write(fd, b'.')

        self.record()
        last = 0
        for _ in range(10):
            reader, writer = os.pipe()
            pid = self.fork(lambda fd=writer: write_on(fd))
            os.read(reader, 1)
            for _ in range(chance.randrange(8)):
                self.read()
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(reader)
            os.close(writer)
            record = self.read()
            self.assertGreater(record.rotation, last)
            self.assertEqual(
                {record.rotation}, {promise.since_ns for promise in record.promises.values()}
            )
            last = record.rotation
            with self.locked(timeout_s=0) as draft:  # its lock was released with it
                self.assertIsNone(draft.problem)

    def test_descriptors_are_closed_on_every_way_out(self):
        before = os.listdir('/proc/self/fd')
        self.record()
        with contextlib.suppress(StateLocked), self.locked(), self.locked(timeout_s=0):
            pass
        os.truncate(self.file, 1)
        with contextlib.suppress(StateError):
            self.read()
        self.record()
        os.chmod(self.directory, 0o777)
        with contextlib.suppress(StateError), self.locked():
            pass
        self.assertEqual(len(before), len(os.listdir('/proc/self/fd')))
