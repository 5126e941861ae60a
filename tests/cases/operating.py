# SPDX-License-Identifier: Apache-2.0
"""A base class for tests of commands: an operator at a host with an uneven load."""

import contextlib
import importlib
import io
import json
import shutil

from nova_numa_pmc.cli import arguments, context
from nova_numa_pmc.state import history
from tests.cases.rebalancing import RebalancingCase
from tests.fixtures import fake_host


class OperatingCase(RebalancingCase):
    """The same guests, and an operator who runs commands."""

    def setUp(self):
        super().setUp()
        self.now_s, self.answers, self.asked, self.signals = 0, [], [], []
        self.steps = 0
        for number in self.NUMBERS:
            self.hold(number, '0-3')

    def command_context(self, on_terminal=False):
        @contextlib.contextmanager
        def signals():
            yield lambda seconds: self.step()

        command = context.CommandContext(
            self.root,
            self.wait,
            self.answer,
            signals,
            lambda: self.now_s * 10**9,
            kernel=self.kernel,
        )
        command.on_terminal = on_terminal
        return command

    def wait(self, seconds):
        self.now_s += seconds
        self.load_node_0(self.now_s)

    def answer(self, prompt):
        self.asked.append(prompt)
        return self.answers.pop(0)

    def step(self):
        """Run between two steps of a move; return the signal that the test set for this step."""
        self.steps += 1
        return (
            self.signals.pop(0)[1] if self.signals and self.signals[0][0] <= self.steps else None
        )

    def run_command(self, *argv, on_terminal=False, answers=()):
        """Run a command; return (exit code, stdout, stderr)."""
        self.answers, self.steps = list(answers), 0
        out, err = io.StringIO(), io.StringIO()
        module = importlib.import_module('nova_numa_pmc.cli.commands.' + argv[0])
        parser = arguments.Parser()
        arguments.add(parser, module.OPTIONS)
        parser.set_defaults(parser=parser)
        more = {} if argv[0] == 'history' else {'command': self.command_context(on_terminal)}
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                code = module.run(parser.parse_args([*argv[1:], '--root', self.root]), **more)
            except SystemExit as error:
                code = error.code
        return code, out.getvalue(), err.getvalue()

    def run_json(self, *argv):
        code, out, _ = self.run_command(*argv, '--json')
        answer = json.loads(out, parse_constant=self.fail)
        self.assertEqual(1, answer.pop('schema'))
        return code, answer

    def shown(self, number):
        """Return what status shows of a guest in JSON."""
        uuid = fake_host.uuid_of(number)
        [guest] = (
            guest for guest in self.run_json('status')[1]['guests'] if guest['uuid'] == uuid
        )
        return guest

    def end(self, number):
        shutil.rmtree(self.host.path('proc/%d' % (4000 + number)))
        self.host.end(number)

    def moved(self):
        """Return the numbers of the guests that are on the other node."""
        return [number for number, place in self.places().items() if place == self.AWAY]

    def history_entries(self):
        return history.read(self.root)[0]
