# SPDX-License-Identifier: Apache-2.0
"""What commands print with --json is what the schema in the reference describes."""

import contextlib
import io
import json
import re
import time
import unittest

import jsonschema

from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.json_values import to_json
from tests.cases.operating import OperatingCase
from tests.fixtures import fleets
from tests.fixtures.checkout import TOP
from tests.fixtures.model_records import GIB

SCHEMA = json.loads((TOP / 'doc/source/reference/answers.schema.json').read_text())
PAGE = TOP / 'doc/source/reference/answers.rst'
GUEST = 'instance-00000001'


def validate(answer, name):
    """Compare an answer with the definition of that name."""
    schema = dict(SCHEMA, **{'$ref': '#/$defs/' + name})
    jsonschema.Draft202012Validator(schema).validate(answer)


class AnswersTest(OperatingCase):
    def printed(self, *argv):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            rebalance.main([*argv, '--json'])
        return [json.loads(line, parse_constant=self.fail) for line in out.getvalue().splitlines()]

    def test_commands_for_guests_and_moves_answer_as_described(self):
        for name, *argv in (
            ('status', 'status'),
            ('plan', 'plan'),
            ('apply', 'apply', '--yes'),
            ('undo', 'undo', '--yes'),
            ('history', 'history'),
            ('status', 'status'),
            ('pin', 'pin', GUEST),
            ('pause', 'pause'),
            ('pause_off', 'pause', '--off'),
        ):
            with self.subTest(name):
                _, out, error = self.run_command(*argv, '--json')
                for line in out.splitlines():
                    validate(json.loads(line), name)
                self.assertTrue(out, error)

    def test_commands_about_the_host_answer_as_described(self):
        for name, *argv in (
            ('explain', 'explain', '--vcpus', '2', '--memory', '1G'),
            ('explain', 'explain', '--vcpus', '64', '--memory', '1G'),
            ('explain', 'explain', '--guest', GUEST),
            ('check', 'check', '--role', 'compute'),
            ('hook_status', 'hook', 'status'),
            ('hook_change', 'hook', 'install', '--force'),
            ('hook_status', 'hook', 'status'),
            ('hook_change', 'hook', 'remove'),
        ):
            with self.subTest(name):
                [answer] = self.printed(*argv, '--root', self.root)
                validate(answer, name)
        [answer] = self.printed('check', '--events', '--cpu', 'skylake-sp')
        validate(answer, 'check_events')

    def test_the_plan_of_a_fleet_is_as_described(self):
        nodes = [
            [fleets.guest(node * 9 + at, 8, 8 * GIB, 5.0) for at in range(7)] for node in (0, 1)
        ]
        busy = fleets.host(nodes, taken_s=time.time())
        idle = fleets.host([[], []], taken_s=time.time())
        for name, host in (('cmp01', busy), ('cmp02', idle)):
            with open(self.host.path(name + '.json'), 'w', encoding='utf-8') as file:
                json.dump({'fleet': to_json(host)}, file)
        [answer] = self.printed('fleet', self.root)
        self.assertTrue(answer['moves'])
        validate(answer, 'fleet')


class SchemaTest(unittest.TestCase):
    def test_the_schema_is_one_and_the_page_lists_its_answers(self):
        jsonschema.Draft202012Validator.check_schema(SCHEMA)
        listed = set(re.findall(r'(?m)^``(\w+)``', PAGE.read_text(encoding='utf-8')))
        self.assertEqual(set(SCHEMA['$defs']), listed)

    def test_an_answer_without_a_required_member_is_found_out(self):
        with self.assertRaises(jsonschema.ValidationError):
            validate({'roles': [], 'versions': {}}, 'check')
