# SPDX-License-Identifier: Apache-2.0
"""make lint and pre-commit run the same checks, and what CI runs exists."""

import re
import subprocess
import unittest

import yaml

from tests.fixtures.checkout import TOP

LINT = TOP / 'tools/lint'
CONFIG = TOP / '.pre-commit-config.yaml'


def checks():
    """Return the names that tools/lint knows, in order."""
    return re.findall(r'^check ([a-z0-9-]+) ', LINT.read_text(encoding='utf-8'), re.M)


def hooks():
    """Return the hooks of all repositories in pre-commit's configuration."""
    config = yaml.safe_load(CONFIG.read_text(encoding='utf-8'))
    return [dict(hook, repo=repo['repo']) for repo in config['repos'] for hook in repo['hooks']]


class LintTest(unittest.TestCase):
    def test_lint_and_hooks_have_the_same_checks_in_the_same_order(self):
        self.assertEqual(checks(), [hook['id'] for hook in hooks()])

    def test_each_hook_runs_the_checkouts_own_check(self):
        for hook in hooks():
            if 'stages' in hook:
                continue
            with self.subTest(hook['id']):
                self.assertEqual(
                    ('local', 'system', f'tools/lint {hook["id"]}', False),
                    (hook['repo'], hook['language'], hook['entry'], hook['pass_filenames']),
                )

    def test_one_hook_reads_the_message_of_a_commit(self):
        staged = [hook for hook in hooks() if 'stages' in hook]
        self.assertEqual(
            [('commits', ['commit-msg'], 'tools/commit-message')],
            [(hook['id'], hook['stages'], hook['entry']) for hook in staged],
        )

    def test_an_unknown_name_of_a_check_is_refused(self):
        done = subprocess.run([LINT, 'no-such-check'], capture_output=True, text=True)
        self.assertEqual(
            (2, 'lint: there is no check named no-such-check\n'), (done.returncode, done.stderr)
        )


class WorkflowTest(unittest.TestCase):
    def test_the_workflow_runs_targets_that_exist(self):
        text = (TOP / '.github/workflows/ci.yml').read_text(encoding='utf-8')
        makefile = (TOP / 'Makefile').read_text(encoding='utf-8')
        self.assertIn('debian-12', yaml.safe_load(text)['jobs'])
        named = re.findall(r'"make ([a-z0-9-]+)"', text)
        by_day = ['lint', 'coverage', 'docs', 'functional', 'test-nova-34']
        self.assertEqual(['test-nova-newest', *by_day], named)
        for target in named:
            self.assertRegex(makefile, rf'(?m)^([\w-]+ )*{target}( [\w-]+)*:')
        self.assertIn('"bash .ci/run"', text)

    def test_actions_are_pinned_by_commit_with_their_version(self):
        text = (TOP / '.github/workflows/ci.yml').read_text(encoding='utf-8')
        used = re.findall(r'(?m)^ *- uses: (.*)$', text)
        self.assertTrue(used)
        for action in used:
            self.assertRegex(action, r'^[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$')

    def test_updates_are_proposed_for_actions_and_all_lists_of_requirements_of_tests(self):
        text = (TOP / '.github/dependabot.yml').read_text(encoding='utf-8')
        directories = {
            update['package-ecosystem']: update.get('directories') or [update['directory']]
            for update in yaml.safe_load(text)['updates']
        }
        listed = {f'/{path.parent.relative_to(TOP)}' for path in TOP.glob('tests/*/requirements*')}
        self.assertEqual({'github-actions': ['/'], 'pip': sorted(listed)}, directories)
