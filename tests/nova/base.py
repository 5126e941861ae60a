# SPDX-License-Identifier: Apache-2.0
"""A base class for tests of Nova with computes of two NUMA nodes, whose agents the test plays."""

import collections
import itertools
import os
import re
import sys
import time
from unittest import mock

import fixtures
import nova.conf
from lxml import etree
from nova import context, objects
from nova.compute import rpcapi  # noqa: F401 -- before the fixtures, which reset its globals
from nova.tests.fixtures import libvirt as fakelibvirt
from nova.tests.functional.libvirt import base as libvirt_base

from nova_numa_pmc import model
from nova_numa_pmc.conf import compute as compute_conf, host_options, scheduler as scheduler_conf
from nova_numa_pmc.scheduler import losses
from nova_numa_pmc.state import publication

WEIGHER = 'nova_numa_pmc.scheduler.weigher.NUMAPressureWeigher'
FILTER = 'nova_numa_pmc.scheduler.filter.NUMAPressureFilter'
#: A compute host: two nodes of two cores with two threads each, and 8 GiB per node.
HOST = {'cpu_nodes': 2, 'cpu_sockets': 1, 'cpu_cores': 2, 'cpu_threads': 2, 'kB_mem': 16 << 20}
NODE_CORES, NODE_THREADS, NODE_MB = 2.5, 4, 8192


class NovaTest(libvirt_base.LibvirtMigrationMixin, libvirt_base.ServersTestBase):
    """Run API, conductor, scheduler, computes and Placement in this process."""

    microversion = 'latest'
    ADMIN_API = True
    ADDITIONAL_FILTERS = ['NUMAPressureFilter', 'NUMATopologyFilter']
    WEIGHERS = ['nova.scheduler.weights.all_weighers', WEIGHER]
    MONITORS = ['numa_pmc']

    def setUp(self):
        self._state = self.useFixture(fixtures.TempDir()).path
        self._published = {}
        self.flags(compute_monitors=self.MONITORS)
        self.flags(
            api_paste_config=os.path.join(sys.prefix, 'etc/nova/api-paste.ini'), group='wsgi'
        )
        self.flags(instances=-1, cores=-1, ram=-1, group='quota')
        # One after the other, so that a herd is caused by the weigher and not by a race.
        self.flags(
            available_filters=['nova.scheduler.filters.all_filters', FILTER],
            weight_classes=self.WEIGHERS,
            shuffle_best_same_weighed_hosts=False,
            group='filter_scheduler',
        )
        scheduler_conf.register_opts(nova.conf.CONF)
        compute_conf.register_opts(nova.conf.CONF)
        self.useFixture(fixtures.MockPatchObject(losses, 'JITTER', 0.0))
        super().setUp()
        self.useFixture(
            fixtures.MockPatch(
                'nova.virt.libvirt.driver.LibvirtDriver.migrate_disk_and_power_off',
                return_value='{}',
            )
        )
        # The counters of Nova's fake host stand still, and its CPU monitor divides by their
        # increase.
        ticks = itertools.count(10**12, 10**9)
        self.useFixture(
            fixtures.MockPatchObject(
                fakelibvirt.Connection,
                'getCPUStats',
                lambda *arguments: dict.fromkeys(
                    ('kernel', 'idle', 'user', 'iowait'), next(ticks)
                ),
            )
        )

    # The hosts

    def start_hosts(self, *names):
        """Start computes whose agents publish idle nodes."""
        for name in names:
            self.publish(name, 0.1, 0.1)
            with mock.patch.object(host_options, 'PATH', self._configuration(name)):
                self.start_compute(name, fakelibvirt.HostInfo(**HOST))

    def _configuration(self, name):
        path = os.path.join(self._state, name + '.conf')
        with open(path, 'w') as file:
            file.write(f'[state]\ndir = {self.state_dir(name)}\n')
        return path

    def state_dir(self, name):
        return os.path.join(self._state, name)

    def publish(self, name, *pressures, promised_mb=None, bandwidth_mb_per_sec=None, **changes):
        """Write what a host's agent would publish: pressures of its nodes, and promised memory.

        :param pressures: wanted ÷ available cores of each node
        :param promised_mb: memory promised on each node; None: as published before
        :param bandwidth_mb_per_sec: bandwidth of each node
        :param changes: fields of Publication
        """
        promised_mb = promised_mb or self._published.get(name, (0,) * len(pressures))
        self._published[name] = promised_mb
        nodes = tuple(
            model.NodeView(
                id=at,
                cores=NODE_CORES,
                cpu_count=NODE_THREADS,
                capacity_bytes=NODE_MB << 20,
                promised_bytes=promised << 20,
                demand_cores=pressure * NODE_CORES,
                bandwidth_bytes_per_sec=bandwidth_mb_per_sec and bandwidth_mb_per_sec * 10**6,
            )
            for at, (pressure, promised) in enumerate(zip(pressures, promised_mb))
        )
        distances = tuple(
            tuple(10 if a == b else 21 for b in range(len(nodes))) for a in range(len(nodes))
        )
        state = publication.Publication(
            taken_s=time.time(),
            interval_s=10.0,
            view=model.HostView(nodes, distances),
            source='test',
            uuids=self._active_uuids(name),
        )
        publication.write(self.state_dir(name), state._replace(**changes))

    def _active_uuids(self, name):
        """Return the uuids of the domains that run on a host, which has none before its start."""
        if name not in self.computes:
            return ()
        domains = (
            self.computes[name]
            .driver._host.get_connection()
            .listAllDomains(fakelibvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)
        )
        return tuple(sorted(domain.UUIDString() for domain in domains))

    def send(self, **pressures):
        """Publish each ``host=(p0, p1)``, and let every compute report once."""
        for name, values in pressures.items():
            self.publish(name, *values)
        self._run_periodics()

    def compute_node(self, name):
        """Return the ComputeNode that the scheduler would read."""
        return objects.ComputeNode.get_first_node_by_host_for_old_compat(
            context.get_admin_context(), name
        )

    def host_state(self, name):
        """Return the HostState that the scheduler would build for a request now."""
        manager = self.scheduler.manager.host_manager
        states = manager.get_host_states_by_uuids(context.get_admin_context(), None, None)
        return {state.host: state for state in states}[name]

    def monitor(self, name):
        """Return the monitor object of a compute."""
        (found,) = self.computes[name].manager.rt.monitors
        return found

    # Servers

    def flavor(self, vcpus=1, memory_mb=512, **extra_specs):
        """Create a flavor with little disk."""
        return self._create_flavor(
            vcpu=vcpus,
            memory_mb=memory_mb,
            disk=1,
            ephemeral=0,
            extra_spec={key.replace('__', ':'): value for key, value in extra_specs.items()},
        )

    def boot(self, flavor, host=None, expected_state='ACTIVE'):
        """Boot a server without networks."""
        return self._create_server(
            flavor_id=flavor, networks='none', host=host, expected_state=expected_state
        )

    def boot_many(self, flavor, count):
        """Boot servers with one request, for which the scheduler reads the hosts once."""
        body = self._build_server(flavor_id=flavor, networks='none')
        body.update(min_count=count, max_count=count, return_reservation_id=True)
        reply = self.api.post_server({'server': body})['reservation_id']
        servers = self.api.get_servers(search_opts={'reservation_id': reply})
        self.assertEqual(count, len(servers))
        return [
            self._wait_for_state_change(server, 'ACTIVE', max_retries=60) for server in servers
        ]

    def host_of(self, server):
        """Return the name of the host that a server is on now."""
        return self.api.get_server(server['id'])['OS-EXT-SRV-ATTR:host']

    def spread(self, servers):
        """Count servers per host, including hosts without any."""
        counts = collections.Counter({name: 0 for name in self.computes})
        counts.update(map(self.host_of, servers))
        return dict(counts)

    def _migrate_stub(self, domain, destination, params, flags):
        """Move a domain to the compute that is named in the migration's URI."""
        uuid = etree.fromstring(params['destination_xml']).findtext('uuid')
        name = re.match(r'qemu\+\w+://([^/]+)/', destination).group(1)
        target = self.computes[name].driver._host.get_connection()
        target.createXML(params['destination_xml'], 'unused')
        domain._connection.lookupByUUIDString(uuid).complete_job()
