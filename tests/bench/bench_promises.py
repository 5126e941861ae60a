# SPDX-License-Identifier: Apache-2.0
"""Count how often Nova's scheduler breaks what its own weighers promise, with and without ours.

Half of the hosts keep a promise: no member of a soft anti-affinity group is there, or some members
of a soft affinity group, no PCI device (for a guest that asks for none), more instances of the
request's image, or the newer hypervisor. The other half have a calm pressure. The table has the
share of requests for which the best host, in Nova's own HostWeightHandler with all of its
weighers, breaks the promise: without our weigher, with ours if a promise were worth nothing, and
with ours. ``lost`` is what the new guest and those beside it would lose on a host that keeps the
promise minus the same on one that does not, as a share of what the new guest wants.

Usage: bench_promises.py [REQUESTS]; exit code 1 if a promise is broken for less than it is worth.
"""

import contextlib
import json
import sys
import time
import uuid
import warnings
from unittest import mock

warnings.filterwarnings('ignore')

import nova.conf  # noqa: E402
from nova import objects  # noqa: E402
from nova.scheduler import weights  # noqa: E402

from nova_numa_pmc.scheduler import losses, weigher  # noqa: E402
from tests.bench import nova_hosts  # noqa: E402
from tests.fixtures.metrics import build_publication, metric_list  # noqa: E402

try:
    from nova.scheduler.weights import image_props
except ImportError:  # as in Nova 29
    image_props = None

HOSTS, CALM = 20, 0.2
PRESSURES = (0.2, 0.3, 0.5, 0.7, 0.9, 1.2)
PROMISES = (
    'soft-anti-affinity',
    'soft-affinity',
    'no PCI',
    *(('image',) if image_props else ()),
    'hypervisor version',
)
#: Members of the request's group, on the hosts that have any.
MEMBERS = [str(uuid.UUID(int=1000 + at)) for at in range(HOSTS)]


def host(at, pressure):
    """Make Nova's HostState of a host with two nodes of ten cores with this pressure."""
    (row,) = nova_hosts.compute_nodes(1)
    row.host = row.hypervisor_hostname = f'host{at}'
    published = build_publication(pressure, pressure, taken_s=int(time.time()))
    row.metrics = json.dumps(metric_list(published, row.vcpus_used, row.memory_mb_used))
    (state,) = nova_hosts.host_states([row], instances=2)
    return state


def hosts(promise, pressure):
    """Make the hosts; those that keep the promise have this pressure and an even number."""
    states = [host(at, CALM if at % 2 else pressure) for at in range(HOSTS)]
    for at, state in enumerate(states):
        keeps = at % 2 == 0
        state.image_count = int(keeps)
        if promise.startswith('soft-') and keeps == (promise == 'soft-affinity'):
            state.instances[MEMBERS[at]] = objects.Instance()
        elif promise == 'no PCI' and not keeps:
            state.pci_stats = mock.Mock(pools=[{'count': 4}])
        elif promise == 'hypervisor version' and not keeps:
            state.hypervisor_version = 7002000
    return states


def request_spec(promise):
    """Make the request, for a member of the group if the promise is made to one."""
    spec = nova_hosts.request_spec(vcpus=2, memory_mb=2048)
    if promise.startswith('soft-'):
        spec.instance_group = objects.InstanceGroup(policy=promise, members=MEMBERS)
    return spec


def broken_share(promise, pressure, with_ours=True, requests=100):
    """Return the share of requests whose best host breaks the promise."""
    handler = weights.HostWeightHandler()
    classes = handler.get_matching_classes(['nova.scheduler.weights.all_weighers'])
    weighers = [weigher_class() for weigher_class in classes]
    if with_ours:
        weighers.append(weigher.NUMAPressureWeigher())
    spec, states, broken = request_spec(promise), hosts(promise, pressure), 0
    with images_counted(promise == 'image') if image_props else contextlib.nullcontext():
        for number in range(requests):
            spec.instance_uuid = str(uuid.UUID(int=number))
            best = handler.get_weighed_objects(weighers, states, spec)[0].obj
            broken += int(best.host.removeprefix('host')) % 2
    return broken / requests


@contextlib.contextmanager
def images_counted(enabled):
    """Weigh hosts by their ``image_count``, without asking the cells' databases for images."""
    option = 'image_props_weight_multiplier', 'filter_scheduler'
    nova.conf.CONF.set_override(option[0], float(enabled), group=option[1])
    with mock.patch.object(
        image_props.ImagePropertiesWeigher, '_weigh_object', lambda _, state, __: state.image_count
    ):
        yield
    nova.conf.CONF.clear_override(option[0], group=option[1])


def added_loss(pressure):
    """Return how much more is lost on hosts of this pressure than on calm ones."""
    ours, spec = weigher.NUMAPressureWeigher(), request_spec('')
    states = [weights.WeighedHost(host(at, each), 0.0) for at, each in enumerate((pressure, CALM))]
    with mock.patch.object(losses, 'JITTER', 0.0):
        subtracted = ours.weigh_objects(states, spec)
    return (subtracted[0] - subtracted[1]) / nova.conf.CONF.numa_pmc.weight_multiplier


def main(requests=100):
    """Print the table; return 1 if a promise is broken for less than it is worth."""
    nova.conf.CONF([], project='nova', default_config_files=[])
    failed = False
    print(f'{"promise":20} pressure  lost   stock  unworthy  ours')
    for promise in PROMISES:
        for pressure in PRESSURES:
            lost = added_loss(pressure)
            stock = broken_share(promise, pressure, False, requests)
            with mock.patch.object(weigher, 'PROMISE_LOSS', 0.0):
                unworthy = broken_share(promise, pressure, True, requests)
            ours = broken_share(promise, pressure, True, requests)
            failed |= bool(ours) and lost < weigher.PROMISE_LOSS - losses.JITTER
            print(
                f'{promise:20} {pressure:8.1f} {lost:5.2f}'
                f'{stock:8.0%} {unworthy:9.0%} {ours:5.0%}',
                flush=True,
            )
    return int(failed)


if __name__ == '__main__':
    sys.exit(main(*map(int, sys.argv[1:])))
