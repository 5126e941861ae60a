# SPDX-License-Identifier: Apache-2.0
"""A problem is logged when it begins, when it ends, and once an hour in between."""

import logging
import unittest

from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.problem_log import ProblemLog

LOG = logging.getLogger('nova_numa_pmc.problem_log')


class ProblemLogTest(unittest.TestCase):
    def setUp(self):
        self.now_s = 0.0
        self.problem_log = ProblemLog(LOG, lambda: self.now_s)

    def failing(self, *errors):
        """Run a stage once per error (None: success); return what is logged."""
        with self.assertLogs(LOG) as logs:
            for error in errors:
                with self.problem_log.stage('reading'):
                    if error:
                        raise error
        return logs.records

    def test_a_problem_is_logged_once_per_kind_and_when_it_ends(self):
        messages = self.failing(None, StateError('a'), StateError('b'), OSError('c'), None, None)
        self.assertEqual(
            ['reading failed: a', 'reading failed: c', 'reading succeeded again'],
            [record.getMessage() for record in messages],
        )

    def test_a_bug_is_logged_with_its_traceback(self):
        (message,) = self.failing(KeyError('x'))
        self.assertEqual("reading failed: KeyError: 'x'", message.getMessage())
        self.assertIsNotNone(message.exc_info)

    def test_an_exception_that_ends_the_process_is_raised_on(self):
        with self.assertRaises(KeyboardInterrupt), self.problem_log.stage('reading'):
            raise KeyboardInterrupt

    def test_a_lasting_problem_is_logged_again_after_an_hour(self):
        with self.assertLogs(LOG) as logs:
            for self.now_s in (0.0, 5.0, 3599.0, 3600.0, 3605.0):
                self.problem_log.log_problems(['p', 'p'])
        self.assertEqual(2, len(logs.output))

    def test_many_problems_are_not_kept_for_ever(self):
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.problem_log.log_problems(str(number) for number in range(5000))
        self.assertLessEqual(len(self.problem_log._logged_s), 1000)
