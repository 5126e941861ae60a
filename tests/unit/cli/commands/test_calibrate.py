# SPDX-License-Identifier: Apache-2.0
"""A calibration measures memory from each node without disturbing guests, and only after a yes."""

import argparse
import contextlib
import io
import json
import os
import tempfile
import unittest
from unittest import mock

from nova_numa_pmc import model
from nova_numa_pmc.cli import context
from nova_numa_pmc.cli.commands import calibrate
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.core import node_memory
from nova_numa_pmc.exceptions import CalibrationError
from nova_numa_pmc.host.calibration import busy_cpus, memory_probe
from nova_numa_pmc.state import calibration
from nova_numa_pmc.state.calibration import MEASURED, SLIT
from tests.fixtures import sysfs
from tests.fixtures.model_records import GIB


def host(nodes=2, memory_only=(), free_bytes=8 * GIB):
    """Return a host whose nodes have two cores with two threads each."""
    cores = tuple(frozenset((cpu, cpu + 1)) for cpu in range(0, 4 * nodes, 2))
    cpus = [frozenset(() if n in memory_only else range(4 * n, 4 * n + 4)) for n in range(nodes)]
    return model.Topology(
        tuple(
            model.Node(n, cpus[n], 16 * GIB, free_bytes, online_cpus=cpus[n]) for n in range(nodes)
        ),
        tuple(
            tuple(10 if a == b else 20 + abs(a - b) for b in range(nodes)) for a in range(nodes)
        ),
        cores,
    )


def withheld(machine, root):
    """Return the nodes whose memory is not for guests, according to the options below the root."""
    return node_memory.list_withheld(
        machine.nodes, host_options.read_under_root(root).placement_options
    )


class Probe:
    """A machine whose node n delivers n + 1 GB/s, with latencies of 80 and 140 ns."""

    def __init__(self, broken=()):
        self.broken, self.reads = broken, []

    def in_place(self):
        return mock.patch.multiple(
            memory_probe, read_bytes_per_sec=self.read_bytes_per_sec, PointerChain=self.chain
        )

    def read_bytes_per_sec(self, cpus, node, slice_bytes):
        if node in self.broken:
            raise CalibrationError('no room')
        self.reads.append((cpus, node))
        return 1e9 * ((node or 0) + 1)

    @staticmethod
    def chain(node, chain_bytes, flush_bytes):
        class Followed:
            @staticmethod
            def latency_ns(cpu):
                return 80.0 if node in (None, cpu // 4) else 140.0

            @staticmethod
            def close():
                pass

        return Followed


class TestCalibrate(unittest.TestCase):
    def measure(self, machine, probe):
        plans = calibrate.plan(machine, withheld(machine, '/nowhere'), '/nowhere')
        with probe.in_place():
            return calibrate.measure(machine, plans, lambda line: None, '/nowhere')

    def test_one_thread_of_each_core_is_measured(self):
        plans = calibrate.plan(host(), (), '/nowhere')
        self.assertEqual([(0, 2), (4, 6)], [one.cpus for one in plans])

    def test_a_node_is_read_from_its_isolated_cpus_too(self):
        machine = host()
        housekeeping = (frozenset({0, 1}), frozenset())
        machine = machine._replace(
            nodes=tuple(
                node._replace(cpus=cpus) for node, cpus in zip(machine.nodes, housekeeping)
            )
        )
        plans = calibrate.plan(machine, (), '/nowhere')
        self.assertEqual([((0, 2), 0), ((4, 6), 1)], [(one.cpus, one.from_node) for one in plans])

    def test_two_nodes_are_measured_in_both_directions(self):
        result, problems = self.measure(host(), Probe())
        self.assertEqual([], problems)
        self.assertEqual((1e9, 2e9), result.read_bytes_per_sec)
        self.assertEqual(((80.0, 140.0), (140.0, 80.0)), result.latencies_ns)
        self.assertEqual({MEASURED}, {source for row in result.sources for source in row})

    def test_one_node_is_measured_without_binding(self):
        probe = Probe()
        result, _problems = self.measure(host(1), probe)
        self.assertEqual([((0, 2), None)], probe.reads)
        self.assertEqual(((80.0,),), result.latencies_ns)

    def test_memory_without_cpus_is_read_from_the_nearest_node(self):
        result, _problems = self.measure(host(3, memory_only=(2,)), Probe())
        self.assertEqual((1, 2, 3), tuple(int(v / 1e9) for v in result.read_bytes_per_sec))
        self.assertEqual((MEASURED,) * 3, result.sources[0])
        self.assertEqual((SLIT,) * 3, result.sources[2])

    def test_memory_that_is_kept_from_guests_is_not_read(self):
        """Reading a GPU's memory could wake it, and the result would be of no use."""
        machine, probe = host(3, memory_only=(2,)), Probe()
        gpu = machine.nodes[2]._replace(
            memory=model.NodeMemory(model.DEVICE_MEMORY, 'GPU 0000:01:00.0')
        )
        machine = machine._replace(nodes=(*machine.nodes[:2], gpu))
        result, problems = self.measure(machine, probe)
        self.assertEqual([0, 1], [node for _cpus, node in probe.reads])
        self.assertEqual(((1e9, 2e9, None), []), (result.read_bytes_per_sec, problems))
        self.assertEqual((MEASURED, MEASURED, SLIT), result.sources[0])
        kept = withheld(machine, '/nowhere')
        plans = calibrate.plan(machine, kept, '/nowhere')
        text = '\n'.join(calibrate.plan_lines(plans, '/var/x', kept))
        self.assertIn("node 2: not read: its memory is a device's (GPU 0000:01:00.0)", text)

    def test_the_operators_word_on_whose_memory_it_is_counts(self):
        machine = host(3, memory_only=(2,))
        with tempfile.TemporaryDirectory() as root:
            for option, expected in (('device', [0, 1]), ('guest', [0, 1, 2])):
                sysfs.write(
                    root,
                    'etc/nova-numa-pmc/nova-numa-pmc.conf',
                    f'[placement]\n{option}_memory_nodes = 2\n',
                )
                plans = calibrate.plan(machine, withheld(machine, root), root)
                self.assertEqual(expected, [one.id for one in plans])

    def test_a_node_that_cannot_be_measured_is_estimated_and_reported(self):
        result, problems = self.measure(host(), Probe(broken=(1,)))
        self.assertEqual((1e9, None), result.read_bytes_per_sec)
        self.assertEqual((SLIT, SLIT), (result.sources[0][1], result.sources[1][1]))
        self.assertEqual(['node 1: no room'], problems)

    def test_nothing_measured_is_an_error(self):
        with self.assertRaisesRegex(CalibrationError, 'no room'):
            self.measure(host(), Probe(broken=(0, 1)))

    def test_a_measurement_without_room_on_a_node_is_refused(self):
        calibrate.refuse_without_room(calibrate.plan(host(), (), '/nowhere'))
        with self.assertRaisesRegex(CalibrationError, 'drop the page cache'):
            calibrate.refuse_without_room(
                calibrate.plan(host(free_bytes=GIB // 2), (), '/nowhere')
            )

    def test_a_busy_host_is_left_alone(self):
        busy_cpus.refuse_if_busy({0: 0.0, 1: 0.1}, host())
        for ratios in ({0: 0.0, 1: 1.0}, {}):
            with self.assertRaisesRegex(CalibrationError, '--force'):
                busy_cpus.refuse_if_busy(ratios, host())

    def test_isolated_cpus_that_are_busy_are_left_alone(self):
        ratios = dict.fromkeys(range(64), 0.0) | {3: 1.0}
        machine = host()
        busy_cpus.refuse_if_busy(ratios, machine)
        node = machine.nodes[0]
        node = node._replace(cpus=node.cpus - {2, 3}, online_cpus=node.cpus)
        machine = machine._replace(nodes=(node, *machine.nodes[1:]))
        with self.assertRaisesRegex(CalibrationError, 'isolated CPUs 3 are busy'):
            busy_cpus.refuse_if_busy(ratios, machine)

    def test_the_busy_ratios_are_the_shares_of_time_that_cpus_ran(self):
        times, clock = iter([{0: 0, 1: 0, 2: 5}, {0: 10**9, 1: 5 * 10**8}]), iter([0.0, 1.0])
        self.assertEqual(
            {0: 1.0, 1: 0.5},
            busy_cpus.read_ratios(lambda: next(times), lambda _s: None, lambda: next(clock)),
        )
        self.assertEqual({}, busy_cpus.read_ratios(lambda: None, lambda _s: None))

    def test_calibrate_says_what_it_will_do(self):
        lines = list(calibrate.plan_lines(calibrate.plan(host(), (), '/nowhere'), '/var/x'))
        self.assertIn('disturbs guests', lines[0])
        self.assertIn('2 threads of node 1', lines[2])
        self.assertIn('/var/x', lines[3])


class TestCommand(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = os.path.join(directory.name, 'calibration.json')

    def run_it(self, *arguments, ask=None, read_host=host):
        """Run the command, on a terminal if ``ask`` is given."""
        command = context.CommandContext(os.path.dirname(self.path))
        command.ask, command.on_terminal = ask, bool(ask)
        parser = argparse.ArgumentParser()
        calibrate.configure(parser)
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), Probe().in_place():
            args = parser.parse_args(['--out', self.path, *arguments])
            code = calibrate.run(args, command, read_host)
        return code, out.getvalue(), err.getvalue()

    def test_a_dry_run_of_calibrate_measures_nothing(self):
        code, out, err = self.run_it('--dry-run')
        self.assertEqual((0, '', False), (code, out, os.path.exists(self.path)))
        self.assertIn('at full speed', err)
        _code, out, _err = self.run_it('--dry-run', '--json')
        self.assertEqual(
            [(0, 2, 0), (1, 2, 1)],
            [
                (node['id'], node['threads'], node['from_node'])
                for node in json.loads(out)['nodes']
            ],
        )

    def test_calibrate_measures_only_after_a_yes(self):
        code, out, err = self.run_it('--force', ask=lambda _prompt: '')
        self.assertEqual((2, '', False), (code, out, os.path.exists(self.path)))
        self.assertIn('not measured: nothing was changed', err)
        code, out, _err = self.run_it('--force', ask=lambda _prompt: 'y')
        self.assertEqual(0, code)
        self.assertIn('node_bandwidth_max = 0:1000,1:2000', out)
        self.assertEqual((1e9, 2e9), calibration.read(self.path).read_bytes_per_sec)

    def test_a_guest_that_starts_while_the_prompt_is_open_makes_calibrate_refuse(self):
        for changed_host, ratio, message in (
            (host(), 1.0, 'the host is 100 % busy'),
            (host(free_bytes=GIB // 2), 0.0, 'drop the page cache'),
        ):
            ratios = [dict.fromkeys(range(8), 0.0), dict.fromkeys(range(8), ratio)]
            with (
                self.subTest(message),
                mock.patch.object(busy_cpus, 'read_ratios', side_effect=ratios),
                mock.patch.object(calibrate, 'measure') as measure,
            ):
                read_host = mock.Mock(side_effect=[host(), changed_host])
                with self.assertRaisesRegex(CalibrationError, message):
                    self.run_it(ask=lambda _prompt: 'y', read_host=read_host)
                measure.assert_not_called()

    def test_calibrate_measures_nothing_that_it_could_not_save(self):
        """The directory of the file is still to be made, below one that is read-only."""
        directory = os.path.dirname(self.path)
        self.path = os.path.join(directory, 'new/calibration.json')
        with (
            mock.patch.object(os, 'access', lambda path, _mode: path != directory),
            mock.patch.object(calibrate, 'measure') as measure,
        ):
            with self.assertRaisesRegex(CalibrationError, '%s is not writable' % directory):
                self.run_it('--yes', '--force')
            measure.assert_not_called()
            self.assertEqual(0, self.run_it('--dry-run')[0])

    def test_calibrate_keeps_nothing_after_ctrl_c(self):
        def ask(_prompt):
            raise KeyboardInterrupt

        code, _out, err = self.run_it('--force', ask=ask)
        self.assertEqual((1, False), (code, os.path.exists(self.path)))
        self.assertIn('nothing was saved', err)

    def test_calibrate_without_a_terminal_demands_yes(self):
        code, out, err = self.run_it('--force')
        self.assertEqual((64, '', False), (code, out, os.path.exists(self.path)))
        self.assertIn('use --yes', err)

    def test_calibrate_prints_json(self):
        _code, out, _err = self.run_it('--yes', '--force', '--json')
        self.assertEqual([], json.loads(out)['problems'])
