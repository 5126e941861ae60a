# SPDX-License-Identifier: Apache-2.0
"""Use a running stack by its public API, and observe its hosts and servers."""

import concurrent.futures
import contextlib
import time
from typing import Any

from tests.stack import compute, control, guide, logs
from tests.stack.service import StackError, wait
from tests.stack.timeline import TimeLine

FLAVOR = {'vcpus': 1, 'ram': 128, 'disk': 0}
#: {flavor: additional or replaced properties}.
FLAVORS: dict[str, dict[str, Any]] = {
    'plain': {},
    'bigger': {'ram': 192},
    'numa': {'extra_specs': {'hw:numa_nodes': '1'}},
}
#: {image: the guest's command line}. It touches 18 of its 128 MiB: here, the hook's second half
#: runs 20 s after the vCPUs have started, and lets CPUs follow memory if more than 64 MiB are
#: elsewhere by then, including QEMU's own 25. The walker works a thirtieth of the time; otherwise,
#: a migration would not catch up with it.
IMAGES = {'walker': 'duty=3 touch=15', 'busy': 'duty=100 touch=15'}
#: Time limits for a change of a server and for its effects on a host: twice the usual time. Demand
#: over the longer horizon takes six minutes to rise, and longer beside other work.
BOOT_S, PROMISE_S, DEMAND_S, SERVICES_S, MOVES_S = 600, 120, 1200, 600, 900
#: Maximum demand of an idle host's nodes, relative to their capacity; emulated daemons are busy.
QUIET_DEMAND_MAX = 0.3
#: Time after which nova-scheduler has a host's last metrics: update_resources_interval with its
#: jitter, and the time from nova-compute's reading them to saving them, in emulation.
METRICS_DELAY_S = 60
#: The hook's time limit is for real hardware; an emulated host is fifty times slower.
OPTIONS = """[hook]
timeout_s = 60
"""


class RequirementError(StackError):
    """A requirement of the scenario is not met."""


def require(condition, message):
    """Raise RequirementError with the message unless the condition is true."""
    if not condition:
        raise RequirementError(message)


class Session:
    """Hosts, servers and their time line."""

    def __init__(self, layout, with_package=True, line=None):
        """Connect to a control plane that is up.

        :param line: :class:`TimeLine`, or None for a new one
        """
        self.layout, self.with_package = layout, with_package
        self.cloud = control.connect(layout)
        self.hosts, self.servers, self.line = {}, {}, line or TimeLine()
        #: {host: time from which its journal counts, s since the epoch}; others count as a whole.
        self.since = {}
        #: {domain: server}, of every server that ever existed.
        self.names = {}
        #: Texts of errors that a phase has provoked.
        self.expected = []

    # Set-up

    def start_hosts(self):
        """Thaw hosts that are not up, install the package by the guide, start nova-compute."""

        def start_host(name):
            running = compute.Host.running(name)
            if running:
                self.hosts[name] = running
                return
            host = compute.Host.up(name)
            self.hosts[name] = host  # kept even if a later step fails, because its logs are wanted
            self.line.add_event('is up', name)
            if self.with_package:
                host.install_package(OPTIONS)
            host.start_nova(self.layout, guide.compute_ini() if self.with_package else '')

        _map_in_parallel(start_host, compute.HOSTS)
        compute.wait_for_services(self.cloud, self.hosts, SERVICES_S)

    def check_hosts(self):
        """Do the last step of the guide, after guests have started with the hook."""
        _map_in_parallel(lambda host: host.run_step(compute.CHECK), self.hosts.values())

    def find_hosts(self):
        """Use hosts that are up already, and their servers."""
        self.hosts = {name: compute.Host.find(name) for name in compute.HOSTS}
        # What was provoked there earlier is not reported again.
        self.since = {name: int(host.run('date +%s').stdout) for name, host in self.hosts.items()}
        for server in self.cloud.compute.servers():
            self.servers[server.name] = server
            self.names[server.instance_name] = server.name

    def make_images_and_flavors(self):
        """Upload a guest that boots as a multiboot kernel with its empty disk; make flavors."""
        cloud = self.cloud
        kernel = cloud.image.find_image('walker-kernel') or cloud.create_image(
            'walker-kernel',
            filename=str(compute.image.tools() / 'walker.elf'),
            disk_format='aki',
            container_format='aki',
            wait=True,
        )
        disk = self.layout.run / 'empty.raw'
        disk.write_bytes(bytes(1 << 20))
        for name, words in IMAGES.items():
            if not cloud.image.find_image(name):
                cloud.create_image(
                    name,
                    filename=str(disk),
                    disk_format='raw',
                    wait=True,
                    container_format='bare',
                    kernel_id=kernel.id,
                    os_command_line=words,
                    hw_video_model='none',
                )
        for name, own in FLAVORS.items():
            if not cloud.compute.find_flavor(name):
                more = dict(own)
                specs = more.pop('extra_specs', None)
                flavor = cloud.compute.create_flavor(name=name, **{**FLAVOR, **more})
                if specs:
                    cloud.compute.create_flavor_extra_specs(flavor, specs)

    # Servers

    def find_or_boot(self, name):
        """Return a server that an earlier phase has left, or boot one if there is none."""
        return self.servers.get(name) or self.boot(name)[0]

    def _request_servers(self, name, count=1, image='walker', flavor='plain', **more):
        """Send one request; return the servers that Nova creates for it."""
        servers = [
            self.cloud.compute.create_server(
                name=name,
                image_id=self.cloud.image.find_image(image).id,
                networks='none',
                flavor_id=self.cloud.compute.find_flavor(flavor).id,
                min_count=count,
                max_count=count,
                **more,
            )
        ]
        if count > 1:
            # The answer covers only the first server.
            servers = list(self.cloud.compute.servers(name=f'^{name}-[0-9]+$'))
            require(len(servers) == count, f'{len(servers)} servers, not {count}')
        self.servers.update({server.name: server for server in servers})
        return servers

    def boot(self, *names, **more):
        """Boot servers with one request each, in parallel; return them ACTIVE.

        :param more: image, flavor, and arguments of create_server
        """
        servers = [server for name in names for server in self._request_servers(name, **more)]
        return [self.wait_for(server, 'ACTIVE') for server in servers]

    def boot_many(self, name, count, **more):
        """Boot servers name-1 … with one request; return them ACTIVE.

        Within one request, Nova's scheduler counts what it has just given away. Between requests,
        it learns that from the hosts, which take half a minute to report it here.
        """
        return [
            self.wait_for(server, 'ACTIVE')
            for server in self._request_servers(name, count, **more)
        ]

    def wait_for(self, server, status):
        """Return the server once it has that status and no task; raise an error if it fails."""

        def server_in_status():
            current = self.cloud.compute.get_server(server.id)
            require(current.status != 'ERROR', f'{current.name} is in ERROR: {current.fault}')
            return current.status == status and not current.task_state and current

        current = wait(server_in_status, BOOT_S, f'{server.name} becomes {status}', pause_s=2)
        self.servers[current.name] = current
        self.names[current.instance_name] = current.name
        self.line.add_event(f'{current.name} {status}', host=current.hypervisor_hostname)
        return current

    def delete(self, *names):
        """Delete servers and wait until Nova has removed them."""
        for name in names:
            self.cloud.compute.delete_server(self.servers[name])
        for name in names:
            self.cloud.compute.wait_for_delete(self.servers.pop(name), wait=BOOT_S)
            self.line.add_event(f'{name} deleted')

    def other_host(self, server):
        """Return the name of the host that the server is not on."""
        return next(name for name in self.hosts if name != server.hypervisor_hostname)

    # Observations

    def places_of(self, *servers):
        """Return {server: its host, and :func:`places.place` there} for all or named servers."""
        held = dict(
            zip(self.hosts, _map_in_parallel(compute.Host.guest_places, self.hosts.values()))
        )
        placed = {
            self.names[domain]: {'host': host, **place}
            for host, guests in held.items()
            for domain, place in guests.items()
            if domain in self.names
        }
        names = servers or sorted(placed)
        require(set(names) <= set(placed), f'no such guests: {set(names) - set(placed)}')
        self.line.add_event(
            'places of the guests',
            places={name: f'{placed[name]["host"]} node {placed[name]["node"]}' for name in names},
        )
        return {name: placed[name] for name in names}

    def promises(self):
        """Return {host: {server's id: what the host has promised to it}}."""
        of = _map_in_parallel(compute.Host.promises, self.hosts.values())
        return {
            name: {promise['uuid']: promise for promise in promises}
            for name, promises in zip(self.hosts, of)
        }

    def require_promise(self, server, *names):
        """Require that these hosts, and no others, have promised something to the guest.

        Without the package, there are no promises.
        """

        def promises_on_these_hosts():
            held = {name: of[server.id] for name, of in self.promises().items() if server.id in of}
            return [held] if set(held) == set(names) else None

        if not self.with_package:
            return {}
        return wait(
            promises_on_these_hosts,
            PROMISE_S,
            f'the promise to {server.name} is on '
            f'{", ".join(map(str, names)) or "no host"}, and only there',
            pause_s=2,
        )[0]

    def wait_until_demand(self, name, fits, what, member='demand_cores'):
        """Wait until the relative demand of a host's nodes fits and Nova has received it.

        :param fits: takes the list of the nodes' demands over capacities, ordered by id
        :param member: member of a published node; by default, the one used to choose hosts
        """
        if not self.with_package:
            return
        wait(
            lambda: fits(
                [
                    (node[member] or 0) / node['cores']
                    for node in sorted(
                        self.hosts[name].publication()['view']['nodes'], key=lambda it: it['id']
                    )
                ]
            ),
            DEMAND_S,
            f'{name} is {what}',
            pause_s=5,
        )
        self.line.add_event(f'is {what}', name)

    def wait_until_quiet(self):
        """Wait until the demand of all nodes is low, and Nova knows that."""
        for name in self.hosts:
            self.wait_until_demand(
                name, lambda demands: max(demands) < QUIET_DEMAND_MAX, 'quiet', 'demand_now_cores'
            )
        self.wait_until_nova_has_metrics()

    def wait_until_nova_has_metrics(self):
        """Wait until nova-scheduler has the hosts' last published metrics."""
        time.sleep(METRICS_DELAY_S if self.with_package else 0)

    @contextlib.contextmanager
    def record_weighings(self, entry):
        """Add what nova-scheduler's weigher logs during the block to the entry and the time line.

        It is in ``entry['weighed']``, a list as from :func:`logs.weighings`.
        """
        log = self.layout.log('nova-scheduler')
        before = len(log.read_text(errors='replace'))
        try:
            yield
        finally:
            entry['weighed'] = logs.weighings(log.read_text(errors='replace')[before:])
            for weighing in entry['weighed']:
                self.line.add_event(
                    f'{weighing["host"]}: penalty {weighing["penalty"]:.2f}: {weighing["why"]}',
                    'nova-scheduler',
                )

    def journals(self):
        """Return {host: :func:`logs.journal_entries` of the package}."""
        return {
            name: logs.journal_entries(host.journal(self.since.get(name, 0)), self.names)
            for name, host in self.hosts.items()
        }


def _map_in_parallel(function, items):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        return list(pool.map(function, items))
