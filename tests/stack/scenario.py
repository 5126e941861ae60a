# SPDX-License-Identifier: Apache-2.0
"""What is done to the stack, through the public API, and what must be true after each phase."""

import collections
import concurrent.futures
import contextlib
import time

from tests.stack import compute, control, guide
from tests.stack.service import StackError, say, wait

FLAVOR = {'name': 'plain', 'vcpus': 1, 'ram': 128, 'disk': 0}
BOOT_S = 400
#: What an idle host's nodes want at most, over what they have; emulated daemons are busy.
QUIET = 0.25
#: A bit more than update_resources_interval: then Nova's scheduler has a host's last metrics.
HEARD_S = 25
#: The hook's and the agent's times are for real hardware; an emulated host is fifty times slower.
OPTIONS = """[hook]
timeout_s = 60
"""
#: The guest walks its memory a thirtieth of the time, or a migration would not catch up with it.
#: It touches 38 MiB: the hook's second half comes 20 s after the vCPUs have started here, and it
#: lets CPUs follow memory when more than 64 MiB lie elsewhere by then.
GUEST_WORDS = 'duty=3 touch=30'


class Failed(StackError):
    """Something is not as it must be."""


class Scenario:
    """The phases, and the time line that they leave."""

    def __init__(self, layout, with_package=True):
        """Connect to a control plane that is up."""
        self.layout, self.with_package = layout, with_package
        self.cloud = control.connect(layout)
        self.hosts, self.servers = {}, {}
        self.began, self.events, self.phases = time.monotonic(), [], []

    # The time line

    def tell(self, what, **detail):
        """Add an event to the time line."""
        at_s = round(time.monotonic() - self.began, 1)
        self.events.append({'at_s': at_s, 'what': what, **detail})
        say(f'{at_s:6.0f} s  {what}' + (f'  {detail}' if detail else ''))

    @contextlib.contextmanager
    def phase(self, name):
        """Record how long a phase took and whether it failed."""
        began, entry = time.monotonic(), {'name': name, 'passed': False}
        self.phases.append(entry)
        self.tell(name)
        try:
            yield entry
            entry['passed'] = True
        except Exception as error:
            entry['error'] = f'{type(error).__name__}: {error}'[:2000]
            self.tell(f'{name}: FAILED', why=entry['error'])
            raise
        finally:
            entry['seconds'] = round(time.monotonic() - began, 1)

    @staticmethod
    def must(true, what):
        """Raise Failed unless it is true."""
        if not true:
            raise Failed(what)

    # Set-up

    def bring_hosts_up(self):
        """Thaw both compute hosts, install us by the guide, start nova-compute."""
        def one(name):
            host = compute.Host.up(name)
            self.tell(f'{name} is up')
            if self.with_package:
                host.install_package(OPTIONS)
            host.start_nova(self.layout, guide.compute_ini() if self.with_package else '')
            return host

        with concurrent.futures.ThreadPoolExecutor() as pool:
            made = list(pool.map(one, compute.HOSTS))
        self.hosts = {host.name: host for host in made}
        compute.wait_for_services(self.cloud, self.hosts, 400)
        if self.with_package:
            for host in made:
                host.step(compute.CHECK)

    def find_hosts(self):
        """Take hosts that are up already."""
        self.hosts = {name: compute.Host.find(name) for name in compute.HOSTS}

    def make_images_and_flavors(self):
        """Upload a guest that boots as a multiboot kernel, and its empty disk."""
        cloud = self.cloud
        kernel = cloud.image.find_image('walker-kernel') or cloud.create_image(
            'walker-kernel', filename=str(compute.image.tools() / 'walker.elf'),
            disk_format='aki', container_format='aki', wait=True)
        disk = self.layout.run / 'empty.raw'
        disk.write_bytes(bytes(1 << 20))
        if not cloud.image.find_image('walker'):
            cloud.create_image('walker', filename=str(disk), disk_format='raw',
                               container_format='bare', wait=True, kernel_id=kernel.id,
                               os_command_line=GUEST_WORDS, hw_video_model='none')
        if not cloud.compute.find_flavor('plain'):
            cloud.compute.create_flavor(**FLAVOR)

    # Servers

    def boot(self, *names, flavor='plain', **more):
        """Boot servers with one request each, side by side; return them ACTIVE."""
        image, kind = (self.cloud.image.find_image('walker'),
                       self.cloud.compute.find_flavor(flavor))
        asked = [self.cloud.compute.create_server(
            name=name, image_id=image.id, flavor_id=kind.id, networks='none', **more)
            for name in names]
        return [self.wait_for(server, 'ACTIVE') for server in asked]

    def boot_many(self, name, count):
        """Boot servers name-1 … with one request; return them ACTIVE.

        Within one request Nova's scheduler counts what it has just given away. Between requests
        it learns that from the hosts, which take a minute here to say so.
        """
        image, kind = (self.cloud.image.find_image('walker'),
                       self.cloud.compute.find_flavor('plain'))
        self.cloud.compute.create_server(name=name, image_id=image.id, flavor_id=kind.id,
                                         networks='none', min_count=count, max_count=count)
        made = list(self.cloud.compute.servers(name=name))
        self.must(len(made) == count, f'{len(made)} servers, not {count}')
        return [self.wait_for(server, 'ACTIVE') for server in made]

    def wait_until_quiet(self, timeout_s=200):
        """Wait until no node of any host wants much CPU, and Nova has heard of that."""
        def look():
            return all((n['demand_cores'] or 0) < QUIET * n['cores']
                       for host in self.hosts.values() for n in host.state()['nodes'])
        wait(look, timeout_s, 'the hosts are quiet', pause_s=5)
        time.sleep(HEARD_S)

    def wait_for(self, server, status, timeout_s=BOOT_S):
        """Return the server once it has that status and no task; Failed when it errs."""
        def look():
            found = self.cloud.compute.get_server(server.id)
            self.must(found.status != 'ERROR' or status == 'ERROR',
                      f'{found.name} is in ERROR: {found.fault}')
            return found.status == status and not found.task_state and found
        found = wait(look, timeout_s, f'{server.name} becomes {status}', pause_s=2)
        self.servers[found.name] = found
        self.tell(f'{found.name} {status}', host=found.hypervisor_hostname)
        return found

    def where(self):
        """Return {server: {host, node, share, …}} from Nova, and from each host's kernel."""
        found = {}
        named = {s.instance_name: s for s in self.cloud.compute.servers(details=True)}
        for host in self.hosts.values():
            for domain, guest in host.guests().items():
                if domain in named:
                    found[named[domain].name] = {'host': host.name, 'node': guest['home'],
                                                 'share': round(guest['share'], 4),
                                                 'cpus': guest['cpus']}
        return found

    def spread(self, names):
        """Return how many of these servers are on each (host, node)."""
        places = self.where()
        self.tell('where they are', places={n: places.get(n) for n in names})
        return collections.Counter((places[n]['host'], places[n]['node'])
                                   for n in names if n in places)

    # Phases

    def starts_empty(self):
        """Nothing is left of an earlier run."""
        with self.phase('empty'):
            left = {server.name: server for server in self.cloud.compute.servers()}
            self.servers.update(left)
            self.delete(*left)

    def eight_spread(self):
        """Eight plain guests go to the four nodes of two hosts, two each."""
        names = [f'plain-{i}' for i in range(1, 9)]
        with self.phase('eight plain guests') as entry:
            if self.with_package:
                self.wait_until_quiet()
            self.boot_many('plain', len(names))
            entry['spread'] = {f'{host} node {node}': count
                               for (host, node), count in self.spread(names).items()}
            places = self.where()
            entry['local'] = {name: places[name]['share'] for name in names}
            if self.with_package:
                self.must(sorted(entry['spread'].values()) == [2, 2, 2, 2], entry['spread'])
                self.must(min(entry['local'].values()) >= 0.99, entry['local'])
                self.must('NUMA pressure of (' in self.layout.log('nova-scheduler').read_text(),
                          "no reason of the weigher's in nova-scheduler's log")

    def loaded_host_is_avoided(self):
        """With cmp1's nodes busy from outside, the next two guests go to cmp2."""
        with self.phase('two guests beside a loaded host') as entry:
            busy = self.hosts['cmp1']
            busy.run('for cpu in 0 1 2 3; do systemd-run -q --unit load-$cpu taskset -c $cpu '
                     'sh -c "while :; do :; done"; done')
            self.wait_for_pressure('cmp1', 0.9)
            self.boot('late-1', 'late-2')
            entry['hosts'] = [self.servers[n].hypervisor_hostname for n in ('late-1', 'late-2')]
            busy.run('systemctl stop "load-*"')
            self.must(entry['hosts'] == ['cmp2', 'cmp2'], entry['hosts'])

    def wait_for_pressure(self, name, above, timeout_s=200):
        """Wait until Nova has been told that a host's nodes are pressed."""
        def look():
            state = self.hosts[name].state()
            # The scheduler reads what the monitor sent; it sends what the agent has published.
            return all(n['demand_cores'] >= above * n['cores'] for n in state['nodes']) or None
        wait(look, timeout_s, f'{name} is pressed', pause_s=2)
        time.sleep(HEARD_S)
        self.tell(f'{name} is pressed')

    def live_migrates(self):
        """The destination's hook places the guest afresh; the source's promise is freed."""
        with self.phase('live migration') as entry:
            server = self.servers['plain-1']
            before = server.hypervisor_hostname
            target = next(name for name in self.hosts if name != before)
            self.cloud.compute.live_migrate_server(server, host=target, block_migration='auto')
            after = self.wait_for(server, 'ACTIVE')
            self.must(after.hypervisor_hostname == target, f'still on {before}')
            self.must_be_promised(after, target)
            place = self.where()['plain-1']
            entry.update(source=before, target=target, place=place)
            pins = self.hosts[target].run(
                f'virsh dumpxml {after.instance_name} | grep -cE "vcpupin|emulatorpin|numatune"',
                check=False).stdout.strip()
            self.must(pins == '0', f'{pins} pins came along')

    def must_be_promised(self, server, *names):
        """Require that these hosts, and no others, have promised something to the guest."""
        def look():
            holders = {name for name, host in self.hosts.items()
                       if server.id in {p['uuid'] for p in host.promises()}}
            return holders == set(names)
        wait(look, 60, f'the promise to {server.name} is on {names or "no host"}', pause_s=2)

    def operations(self):
        """Promises follow a hard reboot, stop and start, suspend and resume, and deletion."""
        with self.phase('operations'):
            compute_api, server = self.cloud.compute, self.servers['plain-2']
            home = server.hypervisor_hostname
            compute_api.reboot_server(server, 'HARD')
            self.wait_for(server, 'ACTIVE')
            self.must_be_promised(server, home)
            compute_api.stop_server(server)
            self.wait_for(server, 'SHUTOFF')
            self.must_be_promised(server)
            compute_api.start_server(server)
            self.wait_for(server, 'ACTIVE')
            self.must_be_promised(server, home)
            compute_api.suspend_server(server)
            self.wait_for(server, 'SUSPENDED')
            compute_api.resume_server(server)
            self.wait_for(server, 'ACTIVE')
            self.must_be_promised(server, home)
            self.delete('plain-2')
            self.must_be_promised(server)

    def delete(self, *names):
        """Delete servers and wait until Nova has forgotten them."""
        for name in names:
            self.cloud.compute.delete_server(self.servers[name])
        for name in names:
            self.cloud.compute.wait_for_delete(self.servers.pop(name), wait=BOOT_S)
            self.tell(f'{name} deleted')

    def pinned_is_left_alone(self):
        """A guest with hw:numa_nodes is counted, and not moved."""
        with self.phase('a flavor with hw:numa_nodes') as entry:
            flavor = self.cloud.compute.find_flavor('numa')
            if not flavor:
                flavor = self.cloud.compute.create_flavor(**{**FLAVOR, 'name': 'numa'})
                self.cloud.compute.create_flavor_extra_specs(flavor, {'hw:numa_nodes': '1'})
            server, = self.boot('numa-1', flavor='numa')
            host = self.hosts[server.hypervisor_hostname]
            entry['promise'] = [p for p in host.promises() if p['uuid'] == server.id]
            self.must(entry['promise'], 'not counted')

    def survives_without_agent_and_with_a_broken_hook(self):
        """Boots go on when the agent is down, and when the hook fails."""
        with self.phase('agent stopped, hook broken'):
            host = self.hosts['cmp1']
            host.run('systemctl stop nova-numa-agent')
            self.boot('stale-1')
            host.run('systemctl start nova-numa-agent')
            host.run('mv /opt/nova-numa-pmc /opt/nova-numa-pmc.away')
            try:
                self.boot('broken-1', availability_zone='nova:cmp1')
            finally:
                host.run('mv /opt/nova-numa-pmc.away /opt/nova-numa-pmc')

    def logs_are_clean(self):
        """No error or traceback of ours is in any log."""
        with self.phase('logs') as entry:
            texts = {path.name: path.read_text(errors='replace')
                     for path in self.layout.logs.glob('*.log')}
            for host in self.hosts.values():
                texts[f'{host.name} nova-compute'] = host.nova_log()
                texts[f'{host.name} journal'] = host.run(
                    'journalctl -b --no-pager -t nova-numa-agent -t nova-numa-hook',
                    check=False).stdout
            entry['ours'] = [f'{name}: {line}' for name, text in texts.items()
                             for line in text.splitlines()
                             if 'numa_pmc' in line and (' ERROR ' in line or 'File "' in line)]
            self.must(not entry['ours'], entry['ours'][:5])

    def run(self):
        """Go through every phase, those after a failed one too; return whether all passed."""
        phases = [self.starts_empty, self.eight_spread]
        if self.with_package:
            phases += [self.operations, self.pinned_is_left_alone, self.live_migrates,
                       self.survives_without_agent_and_with_a_broken_hook,
                       self.loaded_host_is_avoided, self.logs_are_clean]
        for phase in phases:
            # Already in the time line; what follows may well hold without it.
            with contextlib.suppress(Exception):
                phase()
        return all(entry['passed'] for entry in self.phases)
