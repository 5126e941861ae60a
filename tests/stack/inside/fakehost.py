#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nova-compute as a host of its own, with guests that take time to build and do nothing.

This is Nova's own service with a driver of its own kind, Nova's FakeDriver: each guest sleeps for
as long as building it takes. The module publishes what nova-numa-agent would publish on such a
host, where the package's monitor reads it: a moderate load, and the guests that are built.

nova-compute loads drivers from Nova's package only, so this module becomes part of it:
``compute_driver = fakehost.Driver``.
"""

if __name__ == '__main__':
    # Before anything else, because it decides how Nova runs its threads.
    from nova.cmd import compute

import os
import random
import sys
import threading
import time

import nova.conf
from nova.virt import fake, node
from oslo_config import cfg
from oslo_log import log as logging

from nova_numa_pmc import model
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.state import publication

CONF = nova.conf.CONF
LOG = logging.getLogger(__name__)
CONF.register_opts(
    [
        cfg.IntOpt('seed', default=1),
        cfg.FloatOpt('build_least', default=5.0, help='[s]'),
        cfg.FloatOpt('build_most', default=180.0, help='[s]'),
        cfg.FloatOpt('pressure', default=0.3, help='Of each node, before any guest is there.'),
    ],
    group='fakehost',
)
#: Two sockets of 16 cores with two threads each, of which the second counts as a quarter.
NODES, CORES, THREADS, MIB = 2, 20.0, 32, 131072
DISTANCES = ((10, 21), (21, 10))
#: A guest's demand per vCPU [cores].
CORES_PER_VCPU = 0.5
#: Interval at which the host is published, as by the agent [s].
INTERVAL_S = 10.0


class Driver(fake.FakeDriver):
    """A host of two nodes; guests go to the node with the fewest vCPUs, as with the hook."""

    vcpus, memory_mb, local_gb = NODES * THREADS, NODES * MIB, 8000

    def __init__(self, virtapi, read_only=False):
        """Start without guests."""
        super().__init__(virtapi, read_only)
        self._lock = threading.Lock()
        #: {guest's id: (node, vCPUs, MiB)}, and the number of guests so far.
        self._guests, self._placed = {}, 0
        self._directory = os.path.join(CONF.state_path, 'nova-numa-pmc')

    def init_host(self, host):
        """Publish the host, now and periodically."""
        super().init_host(host)
        path = os.path.join(CONF.state_path, 'nova-numa-pmc.conf')
        with open(path, 'w') as file:
            file.write(f'[state]\ndir = {self._directory}\n')
        # A host normally has one such file; here, there are many hosts.
        host_options.PATH = path
        self.publish()
        threading.Thread(target=self._publish_on, daemon=True).start()

    def spawn(self, context, instance, *arguments, **more):
        """Sleep for the time that is drawn by the server's name."""
        time.sleep(build_s(instance.display_name))
        super().spawn(context, instance, *arguments, **more)
        flavor = instance.flavor
        with self._lock:
            held = [0] * NODES
            for at, vcpus, _ in self._guests.values():
                held[at] += vcpus
            self._guests[instance.uuid] = held.index(min(held)), flavor.vcpus, flavor.memory_mb
            self._placed += 1
        self.publish()

    def destroy(self, context, instance, *arguments, **more):
        """Remove the guest."""
        super().destroy(context, instance, *arguments, **more)
        with self._lock:
            self._guests.pop(instance.uuid, None)
        self.publish()

    def get_available_resource(self, nodename):
        """Return the host's resources; after a restart, it is the same host."""
        return {**super().get_available_resource(nodename), 'uuid': node.get_local_node_uuid()}

    def get_nodenames_by_uuid(self, refresh=False):
        """Return the host by its id, likewise."""
        return {node.get_local_node_uuid(): self.get_available_nodes()[0]}

    def publish(self):
        """Write what the agent would now write about the host."""
        with self._lock:
            publication.write(self._directory, published(self._guests, self._placed, time.time()))

    def _publish_on(self):
        while True:
            time.sleep(INTERVAL_S)
            try:
                self.publish()
            except StateError as error:
                LOG.error('The host is not published: %s', error)


def build_s(name):
    """Return how long building a server of that name takes [s]: random, but always the same."""
    drawn = random.Random(f'{CONF.fakehost.seed}/{name}')
    return drawn.uniform(CONF.fakehost.build_least, CONF.fakehost.build_most)


def published(guests, placed, now_s):
    """Return the host's publication.

    :param guests: {guest's id: (node, vCPUs, MiB)}
    :param placed: number of guests so far, which breaks ties
    """
    there = [[guest for guest in guests.values() if guest[0] == at] for at in range(NODES)]
    return publication.Publication(
        taken_s=now_s,
        interval_s=INTERVAL_S,
        view=model.HostView(
            tuple(
                model.NodeView(
                    id=at,
                    cores=CORES,
                    cpu_count=THREADS,
                    capacity_bytes=MIB << 20,
                    promised_bytes=sum(mib for _, _, mib in own) << 20,
                    guests=len(own),
                    vcpus=sum(vcpus for _, vcpus, _ in own),
                    demand_cores=CONF.fakehost.pressure * CORES
                    + CORES_PER_VCPU * sum(vcpus for _, vcpus, _ in own),
                )
                for at, own in enumerate(there)
            ),
            DISTANCES,
            placed % NODES,
        ),
        source='fakehost',
        uuids=tuple(sorted(guests)),
    )


if __name__ == '__main__':
    sys.modules['nova.virt.fakehost'] = sys.modules[__name__]
    compute.main()
