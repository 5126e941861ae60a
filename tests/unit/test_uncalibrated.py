# SPDX-License-Identifier: Apache-2.0
"""A host with counters and without any option set: its loaded node and its loaded host lose."""

from nova_numa_pmc.agent.agent import Moment
from nova_numa_pmc.cli.commands import explain
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.host import files, guests
from nova_numa_pmc.placing import decide
from nova_numa_pmc.scheduler import hosts, refusals, request
from tests.cases.agent import SECOND, AgentCase
from tests.fixtures import fake_host, fake_pmus
from tests.fixtures.metrics import metric_list
from tests.fixtures.nova_stand_ins import host_state_of, request_spec

#: {name: (cpuinfo, boxes per socket, layout, files, configs of (read, write, clock))}
HOSTS = {
    'Skylake-SP': (
        fake_pmus.SKYLAKE,
        ['uncore_imc_%d' % box for box in range(6)],
        None,
        {
            'events/cas_count_read': 'event=0x04,umask=0x03\n',
            'events/cas_count_read.scale': '6.103515625e-5\n',
            'events/cas_count_read.unit': 'MiB\n',
        },
        (0x304, 0xC04, 0x0),
    ),
    'Zen 4': (
        fake_pmus.ZEN4,
        ['amd_umc_%d' % box for box in range(12)],
        {'format/event': 'config:0-7\n', 'format/rdwrmask': 'config:8-9\n'},
        {},
        (0x10A, 0x20A, 0x0),
    ),
}
FIRST_CPUS = (0, 4)
CLOCK_HZ = 1466e6
#: What a channel's bus can carry [bytes/s].
CHANNEL = 16 * CLOCK_HZ


class UncalibratedCase(AgentCase):
    def boot(self, name):
        cpuinfo, boxes, layout, files, self.configs = HOSTS[name]
        self.pmus = fake_pmus.FakePmus(self.host.write, cpuinfo)
        self.boxes = boxes
        for cpu in range(8):
            self.host.write(
                'sys/devices/system/cpu/cpu%d/topology/physical_package_id' % cpu,
                '%d\n' % (cpu // 4),
            )
        for box in boxes:
            self.pmus.add(box, FIRST_CPUS, layout, **files)

    def tick(self, agent, at_s, realtime_s=None):
        """Tick as of now, because the hook does not believe figures of another time."""
        taken_s = 1000.0 + at_s if realtime_s is None else realtime_s
        return agent.tick(Moment(at_s * SECOND, files.boottime_ns(), taken_s))

    def measure(self, *node_ratios, seconds=60):
        """Let the memory of each node be used at a ratio of its theoretical maximum."""
        agent = self.open_agent()
        read, write, clock = self.configs
        lines_per_sec = CHANNEL / 64
        with self.pmus.counting():
            self.tick(agent, 0)
            self.pmus.run(
                seconds,
                {
                    (box, config, cpu): rate
                    for box in self.boxes
                    for cpu, ratio in zip(FIRST_CPUS, node_ratios)
                    for config, rate in (
                        (read, lines_per_sec * ratio * 0.75),
                        (write, lines_per_sec * ratio * 0.25),
                        (clock, CLOCK_HZ),
                    )
                },
            )
            self.host.set_cpu_times(
                dict.fromkeys(range(8), seconds / 2), dict.fromkeys(range(8), 0)
            )
            self.tick(agent, seconds)
        return self.read_publication()

    def scheduled(self, published):
        """Return the pressure that the scheduler expects a guest to leave on a host."""
        asked = request.read(request_spec(2, 512))
        known = hosts.read(
            host_state_of(
                metric_list(published, 0, 0),
                vcpus_used=0,
                total_usable_ram_mb=1 << 20,
                free_ram_mb=1 << 20,
            ),
            asked,
            int(published.taken_s),
        )
        return refusals.pressure_with(known, asked.guest)


class TestUncalibrated(UncalibratedCase):
    def test_the_maximum_is_that_of_the_clocks(self):
        for name, channels in (('Skylake-SP', 6), ('Zen 4', 12)):
            with self.subTest(name):
                self.setUp()
                self.boot(name)
                for node, ratio in zip(self.measure(0.4, 0.04).view.nodes, (0.4, 0.04)):
                    self.assertAlmostEqual(
                        0.8 * channels * CHANNEL, node.bandwidth_max_bytes_per_sec, delta=1e6
                    )
                    self.assertAlmostEqual(
                        ratio / 0.8,
                        node.bandwidth_bytes_per_sec / node.bandwidth_max_bytes_per_sec,
                        places=3,
                    )

    def test_the_loaded_node_is_avoided_by_hook_explain_and_filter(self):
        for name in HOSTS:
            for loaded in (0, 1):
                with self.subTest(name, loaded=loaded):
                    self.setUp()
                    self.boot(name)
                    ratios = [0.76, 0.01] if loaded == 0 else [0.01, 0.76]
                    published = self.measure(*ratios)
                    guest = guests.parse(fake_host.domain_xml(900))
                    options = host_options.read(self.host.path('absent'))
                    explained, _ = explain.decide_unrecorded(guest, options, self.root)
                    placed = decide.decide_promise(guest, options, self.root, 1)
                    expected = (1 - loaded,)
                    self.assertEqual(expected, explained.promise.cpu_nodes)
                    self.assertEqual(expected, placed.promise.cpu_nodes)
                    self.assertLess(self.scheduled(published), 0.8)

    def test_a_host_whose_memory_is_busy_loses_against_an_idle_one(self):
        penalties = []
        for ratio in (0.01, 0.76):
            self.setUp()
            self.boot('Skylake-SP')
            penalties.append(self.scheduled(self.measure(ratio, ratio)))
        self.assertLess(penalties[0], 0.8)
        self.assertGreater(penalties[1], 0.9)

    def test_a_sleeping_package_does_not_lower_the_maximum(self):
        self.boot('Skylake-SP')
        read, write, clock = self.configs
        agent = self.open_agent()
        with self.pmus.counting():
            for at_s, hz in ((0, CLOCK_HZ), (60, CLOCK_HZ), (120, CLOCK_HZ / 50)):
                self.pmus.run(
                    60,
                    {
                        (box, config, cpu): rate
                        for box in self.boxes
                        for cpu in FIRST_CPUS
                        for config, rate in ((read, 1e6), (write, 1e6), (clock, hz))
                    },
                )
                self.tick(agent, at_s)
        for node in self.read_publication().view.nodes:
            self.assertAlmostEqual(0.8 * 6 * CHANNEL, node.bandwidth_max_bytes_per_sec, delta=1e6)

    def test_the_busiest_link_counts_and_one_that_is_not_connected_does_not(self):
        self.boot('Skylake-SP')
        for link in range(3):
            self.pmus.add('uncore_upi_%d' % link, FIRST_CPUS)
        sent, clock = 0xF02, 0x1
        full = 1.3e9 * 16 / (64 / 9)  # flits at 10.4 GT/s
        agent = self.open_agent()
        with self.pmus.counting():
            self.tick(agent, 0)
            self.pmus.run(
                60,
                {
                    ('uncore_upi_0', sent, 0): 0.8 * full,
                    ('uncore_upi_0', clock, 0): 1.3e9,
                    ('uncore_upi_1', sent, 0): 0.08 * full,
                    ('uncore_upi_1', clock, 0): 1.3e9,
                },
            )
            self.tick(agent, 60)
        first, second = self.read_publication().view.nodes
        self.assertAlmostEqual(1.0, first.link_ratio, places=2)
        self.assertEqual(0.0, second.link_ratio)

    def test_a_host_that_counts_nothing_has_no_maximum(self):
        agent = self.open_agent()
        self.tick(agent, 0)
        self.tick(agent, 60)
        for node in self.read_publication().view.nodes:
            self.assertIsNone(node.bandwidth_max_bytes_per_sec)
            self.assertIsNone(node.link_ratio)
