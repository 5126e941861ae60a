# SPDX-License-Identifier: Apache-2.0
"""Phases of the scenario: guests start, move, change and end, and their places follow.

A phase takes a session and its own entry in the report, to which it adds what it has found. What
our package must do is required with it only; without it the same is done, and looked at. Of the
servers, those named plain-N are there for the next phase.
"""

from tests.stack.session import must

LOCAL_WANTED = 0.99


def empty(on, entry):
    """Delete what is left of an earlier run."""
    left = {server.name: server for server in on.cloud.compute.servers()}
    on.servers.update(left)
    on.delete(*left)
    entry['deleted'] = sorted(left)


def eight_spread(on, entry):
    """Eight plain guests of one request go to the four nodes of two hosts, two each."""
    on.wait_until_quiet()
    with on.weighing(entry):
        names = [server.name for server in on.boot_many('plain', 8)]
    look_at(on, entry, *names)
    if on.with_package:
        counts = _per_node(entry['places'])
        must(sorted(counts.values()) == [2, 2, 2, 2], counts)
        must(entry['weighed'], "no reason of the weigher's in nova-scheduler's log")
        on.check_hosts()


def look_at(on, entry, *names):
    """Add where guests are; with the package, require that each is held to where its bytes are."""
    entry['places'] = on.where(*names)
    if on.with_package:
        for name, place in entry['places'].items():
            must(place['share'] >= LOCAL_WANTED,
                 f'{name}: {place["share"]:.1%} of its bytes are on its node')
            must(set(place['ticks']) <= {place['node']},
                 f'{name} ran on nodes {sorted(place["ticks"])}, its bytes are on '
                 f'{place["node"]}')


def _per_node(places):
    counts = {}
    for place in places.values():
        node = place['host'], place['node']
        counts[node] = counts.get(node, 0) + 1
    return counts


def operations(on, entry):
    """Promises follow a hard reboot, stop and start, suspend and resume, and deletion."""
    api, server = on.cloud.compute, on.servers['plain-2']
    home = server.hypervisor_hostname
    for act, status, holders in [
            (lambda: api.reboot_server(server, 'HARD'), 'ACTIVE', [home]),
            (lambda: api.stop_server(server), 'SHUTOFF', []),
            (lambda: api.start_server(server), 'ACTIVE', [home]),
            # Suspended, it is a file on the host's disk.
            (lambda: api.suspend_server(server), 'SUSPENDED', []),
            (lambda: api.resume_server(server), 'ACTIVE', [home])]:
        act()
        on.wait_for(server, status)
        on.must_be_promised(server, *holders)
    look_at(on, entry, server.name)
    on.delete(server.name)
    on.must_be_promised(server)


def pinned_is_left_alone(on, entry):
    """A guest with hw:numa_nodes is counted where Nova has pinned it, and nothing is written."""
    with on.weighing(entry):
        server, = on.boot('numa-1', flavor='numa')
    host = on.hosts[server.hypervisor_hostname]
    promise = on.must_be_promised(server, host.name)[host.name]
    entry['promise'] = promise
    must(promise['origin'] == 'pinned', f'its promise is {promise["origin"]}, not pinned')
    must(len(promise['cpu_nodes']) == 1 and promise['memory_bytes'] >= 128 << 20,
         f'counted as {promise}')
    entry['places'] = on.where('numa-1')
    must(entry['places']['numa-1']['node'] == promise['cpu_nodes'][0],
         'it is counted on another node than it is on')


def live_migrates(on, entry):
    """The destination's hook places the guest afresh; the source's promise is freed."""
    server = on.servers['plain-1']
    source, target = server.hypervisor_hostname, on.other_host(server)
    on.cloud.compute.live_migrate_server(server, host=target, block_migration='auto')
    after = on.wait_for(server, 'ACTIVE')
    entry.update(source=source, target=target)
    must(after.hypervisor_hostname == target, f'still on {source}')
    on.must_be_promised(after, target)
    pins = on.hosts[target].run(
        f'virsh dumpxml {after.instance_name} | grep -cE "vcpupin|emulatorpin|numatune"',
        check=False).stdout.strip()
    must(pins == '0', f'{pins} pins came along')
    look_at(on, entry, server.name)


def resizes(on, entry):
    """A resize moves the guest to another host; its greater promise is there, the source free."""
    server = on.servers['plain-3']
    source = server.hypervisor_hostname
    before = on.must_be_promised(server, source)
    bigger = on.cloud.compute.find_flavor('bigger')
    with on.weighing(entry):
        on.cloud.compute.resize_server(server, bigger)
        after = on.wait_for(server, 'VERIFY_RESIZE')
    target = after.hypervisor_hostname
    entry.update(source=source, target=target)
    must(target != source, f'still on {source}')
    on.cloud.compute.confirm_server_resize(server)
    on.wait_for(server, 'ACTIVE')
    held = on.must_be_promised(server, target)
    if held:
        grown = (held[target]['memory_bytes'] - before[source]['memory_bytes']) >> 20
        must(grown == bigger.ram - 128, f'its promise grew by {grown} MiB')
    look_at(on, entry, server.name)
