# SPDX-License-Identifier: Apache-2.0
"""A system call that the kernel refuses raises its error; other architectures have none."""

import errno
import unittest

from nova_numa_pmc.host import system_calls

NO_FLAG = 1 << 40


class SystemCallsTest(unittest.TestCase):
    def test_a_refused_call_raises_the_kernels_error(self):
        number = system_calls.number_of('get_mempolicy')
        if number is None:
            self.skipTest('the number is unknown on this machine')
        with self.assertRaises(OSError) as caught:
            system_calls.call(number, None, None, 0, 0, NO_FLAG)
        # ENOSYS, EPERM: a container's seccomp profile.
        self.assertIn(caught.exception.errno, (errno.EINVAL, errno.ENOSYS, errno.EPERM))
