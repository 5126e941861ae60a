# SPDX-License-Identifier: Apache-2.0
"""Decide again with Nova's own HostWeightHandler and the real weigher; compare with the arrays.

Run with Nova's environment: ``python -m tests.arena.referee FILE``, with a FILE of
:mod:`sampling`, prints one JSON object. HostStates contain metrics as the monitor encodes them and
Nova decodes them. Two weights are equal if they differ by less than 1e-9, and two choices if the
first ten hosts are the same in order; hosts that differ by less than 1e-9 may change places.
"""

import json
import sys
import time
import types
import uuid
import warnings

warnings.filterwarnings('ignore')

import nova.conf  # noqa: E402
import numpy as np  # noqa: E402
from nova import objects  # noqa: E402
from nova.scheduler import host_manager, weights as nova_weights  # noqa: E402

from nova_numa_pmc.scheduler import weigher  # noqa: E402
from tests.arena import parameters as p, sampling  # noqa: E402
from tests.bench import nova_hosts  # noqa: E402

CONF = nova.conf.CONF
TOLERANCE, FIRST = 1e-9, 10


class Clock:
    """A clock that gives the weigher the simulation's time."""

    now_s = 0.0

    def time(self):
        """Return the simulation's time."""
        return sampling.EPOCH_S + self.now_s


def metric_list(record, at):
    """Return the host's metrics as Nova decodes them."""
    listed = [] if record['taken_s'][at] == -np.inf else sampling.numa_metrics(record, at)
    if record['loads_taken'][at]:
        value = round(100 * float(record['busy_ratio'][at])) / 100
        listed.append(
            {
                'name': 'cpu.percent',
                'timestamp': sampling.STAMP,
                'source': 'libvirt',
                'value': value,
            }
        )
    return objects.MonitorMetricList.from_json(json.dumps(listed))


def host_states(record):
    """Make a HostState for each candidate."""
    found = []
    for at, host in enumerate(record['at']):
        state = host_manager.HostState(f'host{host}', f'host{host}', nova_hosts.CELL)
        used_mib = int(record['ram_used_mib'][at])
        state.vcpus_total = int(record['vcpus'][at])
        state.vcpus_used = int(record['vcpus_used'][at])
        # Guests are pinned to none of the shared CPUs, as with cpu_dedicated_set.
        pinned_cpus = set(range(int(record['pinned_vcpus'][at])))
        cell = types.SimpleNamespace(cpuset=set(), pinned_cpus=pinned_cpus)
        state.numa_topology = types.SimpleNamespace(cells=[cell])
        state.cpu_allocation_ratio = p.CPU_RATIO
        state.total_usable_ram_mb = int(record['ram_mib'][at]) - p.RESERVED_MIB
        state.free_ram_mb = state.total_usable_ram_mb - used_mib
        state.free_disk_mb = (p.DISK_GB - int(record['disk_used_gb'][at])) * 1024
        state.num_io_ops = int(record['io_ops'][at])
        state.num_instances = int(record['instances'][at])
        state.hypervisor_version = 8000000
        state.metrics = metric_list(record, at)
        state.aggregates, state.instances, state.stats = [], {}, {}
        state.uuid = str(uuid.UUID(int=int(host)))
        found.append(state)
    return found


def request(asked):
    """Make the RequestSpec for a guest."""
    vcpus, memory_mib, disk_gb, dedicated = asked
    extra = {'hw:cpu_policy': 'dedicated'} if dedicated else {}
    spec = nova_hosts.request_spec(vcpus, memory_mib, **extra)
    spec.flavor.root_gb = disk_gb
    return spec


class Handlers:
    """Nova's handler with the sets of weighers that are compared."""

    def __init__(self, clock):
        """Load all stock weighers as nova-scheduler does."""
        self._handler = nova_weights.HostWeightHandler()
        stock = self._handler.get_matching_classes(['nova.scheduler.weights.all_weighers'])
        self._stock = [each() for each in stock]
        self._ours = weigher.NUMAPressureWeigher()
        self._ours.clock = clock.time

    def weigh(self, name, states, spec):
        """Return {host: weight} in Nova's order."""
        settings = {'ram': -1.0 if name == 'pack' else 1.0}
        CONF.set_override('ram_weight_multiplier', settings['ram'], group='filter_scheduler')
        setting = ['cpu.percent=-1.0'] if name == 'metrics' else []
        CONF.set_override('weight_setting', setting, group='metrics')
        CONF.set_override('required', False, group='metrics')
        for each in self._stock:
            if hasattr(each, '_parse_setting'):
                each.setting = []
                each._parse_setting()
        weighers = [*self._stock, self._ours] if name == 'numa-pressure' else self._stock
        found = self._handler.get_weighed_objects(weighers, states, spec)
        return {weighed.obj.host: weighed.weight for weighed in found}


def disagrees(record, name, weights):
    """Return how the arrays' decision differs from Nova's, or '' if it does not."""
    scores = record['scores'][name]
    hosts = [f'host{host}' for host in record['at']]
    theirs = np.array([weights[host] for host in hosts])
    apart = float(np.abs(theirs - scores).max())
    if not apart <= TOLERANCE:
        return f'{name}: weights differ by {apart:g}'
    first = [hosts[at] for at in np.argsort(-scores, kind='stable')[:FIRST]]
    for mine, other in zip(first, weights):
        if mine != other and abs(weights[mine] - weights[other]) > TOLERANCE:
            return f'{name}: {mine} instead of {other}'
    return ''


def main(path):
    """Compare; return 1 if they disagree."""
    CONF([], project='nova', default_config_files=[])
    clock = Clock()
    handlers = Handlers(clock)
    records, reasons = sampling.read(path), []
    begun_s = time.monotonic()
    for record in records:
        clock.now_s = record['now_s']
        states, spec = host_states(record), request(record['asked'])
        spec.instance_uuid = record['instance_uuid']
        for name in record['scores']:
            reason = disagrees(record, name, handlers.weigh(name, states, spec))
            if reason:
                reasons.append(reason)
    for reason in reasons[:5]:
        print('referee:', reason, file=sys.stderr)
    print(
        json.dumps(
            {
                'decisions': len(records),
                'twin_disagreements': len(reasons),
                'seconds': round(time.monotonic() - begun_s, 1),
            }
        )
    )
    return int(bool(reasons))


if __name__ == '__main__':
    sys.exit(main(*sys.argv[1:]))
