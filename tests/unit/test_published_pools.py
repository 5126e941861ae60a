# SPDX-License-Identifier: Apache-2.0
"""Test hosts whose guests may not use all CPUs, from procfs to the weigher's answer.

There are two nodes of 64 threads, of which Nova shares 8 and dedicates 56. The demand on all CPUs
÷ the capacity of all would be 0.30 for a shared pool that is saturated 2.4 times, and 1.41 for
one that idles next to polling guests.
"""

import types

from nova_numa_pmc import model
from nova_numa_pmc.agent import sampling
from nova_numa_pmc.compute import metrics_encoder
from nova_numa_pmc.core import host_view
from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.placing import decide
from nova_numa_pmc.scheduler import hosts, refusals, request
from nova_numa_pmc.state import publication
from tests.cases.root import RootCase
from tests.fixtures import domains, fake_host, measured_host, sysfs

SECOND = measured_host.SECOND_NS
THREADS, SHARED_THREADS = 64, 8
#: Whole cores: in the fixture, siblings are half a node apart.
SHARED = '0-3,32-35,64-67,96-99'
NOVA_CONF = '[compute]\ncpu_shared_set = %s\ncpu_dedicated_set = 4-31,36-63,68-95,100-127\n'
PLACEMENT_OPTIONS = model.PlacementOptions()
SPEC = types.SimpleNamespace(
    instance_uuid='u',
    numa_topology=None,
    flavor=types.SimpleNamespace(vcpus=2, memory_mb=64, extra_specs={}),
)


class PoolsCase(RootCase):
    def setUp(self):
        super().setUp()
        self.host = measured_host.MeasuredHost(self.root, sysfs.equal_nodes(2, THREADS), threads=2)
        self.addCleanup(self.host.close)
        self.host.set_idle()
        self.shared = parse_cpulist(SHARED)
        self.sampler = sampling.Sampler(root=self.root)
        self.addCleanup(self.sampler.close)

    def guest(self, number, cpus, run_ratio, wait_ratio, **xml):
        """Launch a guest with a thread per CPU; return a function that lets it run for 5 s."""
        self.host.launch(
            number,
            xml=domains.domain(
                fake_host.name_of(number), fake_host.uuid_of(number), vcpus=len(cpus), **xml
            ),
        )
        self.threads(number, cpus, 0, 0)
        return lambda: self.threads(number, cpus, 5 * run_ratio, 5 * wait_ratio)

    def threads(self, number, cpus, run_s, wait_s):
        for at, cpu in enumerate(cpus):
            self.host.set_thread_times(4000 + number, 10000 * number + at, run_s, wait_s, cpu)

    def published(self, busy_ratio, *run):
        """Return the publication after 5 s in which each CPU was busy this much."""
        self.sampler.sample(0, 1000.0)
        for run_one in run:
            run_one()
        self.host.set_cpu_times(
            {cpu: 5 * busy_ratio(cpu) for cpu in range(2 * THREADS)},
            dict.fromkeys(range(2 * THREADS), 0),
        )
        sample = self.sampler.sample(5 * SECOND, 1005.0)
        seen = host_view.view(
            decide.host_with_pool_cpus(self.root, self.sampler.pool),
            (),
            PLACEMENT_OPTIONS,
            {node.id: node for node in sample.nodes},
        )
        return publication.from_sample(seen, sample)

    def answer(self, published):
        """Return the pressure that a guest of 2 vCPUs would leave, as the filter computes it."""
        values = metrics_encoder.to_values(published, 0, 0)
        asked = request.read(SPEC)
        host = hosts.read(
            types.SimpleNamespace(
                metrics=[
                    {'name': name, 'numa_membw_values': one}
                    for name, one in zip(
                        (metrics_encoder.CURRENT, metrics_encoder.MAXIMUM), values
                    )
                ],
                vcpus_total=0,
                vcpus_used=0,
                instances={},
                total_usable_ram_mb=0,
                free_ram_mb=0,
                ram_allocation_ratio=None,
                numa_topology=None,
            ),
            asked,
            published.taken_s,
        )
        return refusals.pressure_with(host, asked.guest)

    def pressures(self, published):
        return [round(node.demand_cores / node.cores, 2) for node in published.view.nodes]


class TwoFiguresTest(PoolsCase):
    def saturated(self):
        """Return the state with three guests of 4 vCPUs on the 8 shared threads of each node."""
        guests = []
        for number in range(6):
            own = sorted(cpu for cpu in self.shared if cpu // THREADS == number // 3)
            guests.append(
                self.guest(
                    number + 1,
                    [own[(4 * number + at) % 8] for at in range(4)],
                    2 / 3,
                    1 / 3,
                    vcpu=f"<vcpu placement='static' cpuset='{SHARED}'>4</vcpu>",
                )
            )
        return self.published(lambda cpu: float(cpu in self.shared), *guests)

    def polling(self):
        """Return the state with guests that poll on all dedicated CPUs of both nodes."""
        guests = []
        for node in range(2):
            own = sorted(set(range(node * THREADS, (node + 1) * THREADS)) - self.shared)
            pins = ''.join(f"<vcpupin vcpu='{at}' cpuset='{cpu}'/>" for at, cpu in enumerate(own))
            guests.append(
                self.guest(
                    node + 1,
                    own,
                    1.0,
                    0.0,
                    placement=f"<cputune>{pins}<emulatorpin cpuset='{own[0]}'/></cputune>",
                )
            )
        return self.published(lambda cpu: 0.025 if cpu in self.shared else 1.0, *guests)

    def test_a_saturated_shared_pool_is_not_reported_as_a_third_used(self):
        for conf, source in ((NOVA_CONF % SHARED, 'nova.conf'), ('', 'guests')):
            with self.subTest(source):
                self.setUp()
                self.host.write('etc/nova/nova.conf', conf)
                publication_ = self.saturated()
                self.assertEqual(
                    ([2.4, 2.4], source), (self.pressures(publication_), publication_.pool_source)
                )
                self.assertEqual(
                    [(5.0, SHARED_THREADS)] * 2,
                    [(node.cores, node.cpu_count) for node in publication_.view.nodes],
                )
                self.assertAlmostEqual(2.6, self.answer(publication_), places=2)

    def test_polling_on_dedicated_cpus_does_not_count_as_pressure_on_shared_ones(self):
        for conf, source in ((NOVA_CONF % SHARED, 'nova.conf'), ('', 'guests')):
            with self.subTest(source):
                self.setUp()
                self.host.write('etc/nova/nova.conf', conf)
                publication_ = self.polling()
                self.assertEqual(
                    ([0.04, 0.04], source),
                    (self.pressures(publication_), publication_.pool_source),
                )
                self.assertAlmostEqual(0.24, self.answer(publication_), places=2)


class OtherPoolTest(PoolsCase):
    def test_a_pool_beside_the_floating_one_is_told_apart(self):
        self.host.write('etc/nova/nova.conf', NOVA_CONF % SHARED)
        guest = self.guest(1, (4, 5), 0.5, 0.5, vcpu="<vcpu cpuset='4-7'>2</vcpu>")
        publication_ = self.published(lambda cpu: 0.5 * (cpu in (4, 5)), guest)
        self.assertEqual([0.0, 0.0], self.pressures(publication_))
        shared, other = publication_.pools
        self.assertEqual((self.shared, {4, 5, 6, 7}), (shared.cpus, other.cpus))
        self.assertEqual([2.0, 0.0], [load.demand_cores for _, load in other.loads])
        again = publication.decode(publication.encode(publication_))
        self.assertEqual(('nova.conf', publication_.pools), (again.pool_source, again.pools))
