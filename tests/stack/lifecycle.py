# SPDX-License-Identifier: Apache-2.0
"""Phases of the scenario in which guests start, move, change and end, and their places follow.

A phase takes a session and its own entry in the report, to which it adds its findings. The
package's effects are required only if it is in use; without it, the same steps are taken and
their results recorded. Servers named plain-N are there for the next phase.
"""

import contextlib
import re

from tests.stack import places
from tests.stack.service import StackError, wait
from tests.stack.session import must

#: Time limit for the agent to fetch what a guest had elsewhere when it started [s].
FETCH_S = 60


def empty(on, entry):
    """Delete what an earlier run has left."""
    left = {server.name: server for server in on.cloud.compute.servers()}
    on.servers.update(left)
    on.delete(*left)
    entry['deleted'] = sorted(left)


def eight_spread(on, entry):
    """Eight plain guests of one request go to the four nodes of two hosts, two to each."""
    on.wait_until_quiet()
    with on.weighing(entry):
        names = [server.name for server in on.boot_many('plain', 8)]
    look_at(on, entry, *names)
    if on.with_package:
        counts = places.spread(entry['places'])
        must(sorted(counts.values()) == [2, 2, 2, 2], counts)
        must(
            {weighing['host'] for weighing in entry['weighed']} == set(on.hosts),
            f'weighed were {entry["weighed"]}',
        )
        on.check_hosts()


def look_at(on, entry, *names):
    """Add the places of guests; with the package, require that the hook has placed each there.

    In its next ticks, the agent fetches what was elsewhere when a guest started.
    """
    entry['places'] = on.where(*names)
    if on.with_package:
        with contextlib.suppress(StackError):
            wait(lambda: not _flaws(on, entry, names), FETCH_S, 'they are local', pause_s=5)
        flaws = _flaws(on, entry, names)
        must(not flaws, flaws)


def _flaws(on, entry, names):
    entry['places'], promises = on.where(*names), on.promises()
    flaws = {
        name: places.flaws(
            place,
            promises[place['host']].get(on.servers[name].id),
            on.hosts[place['host']].cpus_of(place['node']),
        )
        for name, place in entry['places'].items()
    }
    return {name: texts for name, texts in flaws.items() if texts}


def operations(on, entry):
    """Promises and cpusets follow a hard reboot, stop and start, suspend and resume, deletion."""
    api, server = on.cloud.compute, on.standing('plain-2')
    home = server.hypervisor_hostname
    held = on.must_be_promised(server, home)
    for act, status, holders in [
        (lambda: api.reboot_server(server, 'HARD'), 'ACTIVE', [home]),
        (lambda: api.stop_server(server), 'SHUTOFF', []),
        (lambda: api.start_server(server), 'ACTIVE', [home]),
        # A suspended guest is a file on the host's disk.
        (lambda: api.suspend_server(server), 'SUSPENDED', []),
        (lambda: api.resume_server(server), 'ACTIVE', [home]),
    ]:
        act()
        on.wait_for(server, status)
        before, held = held, on.must_be_promised(server, *holders)
        # The hook has also placed this start: the promise is not a leftover of the last one.
        must(held != before or not on.with_package, f'the promise has not changed: {held}')
        if holders:
            look_at(on, entry, server.name)
    on.delete(server.name)
    on.must_be_promised(server)


def pinned_is_left_alone(on, entry):
    """A guest with hw:numa_nodes is counted where Nova has pinned it, and held as Nova says."""
    with on.weighing(entry):
        (server,) = on.boot('numa-1', flavor='numa')
    host = on.hosts[server.hypervisor_hostname]
    promise = on.must_be_promised(server, host.name)[host.name]
    entry['promise'] = promise
    must(promise['origin'] == 'pinned', f'its promise is {promise["origin"]}, not pinned')
    must(
        len(promise['cpu_nodes']) == 1 and promise['memory_bytes'] >= 128 << 20,
        f'counted as {promise}',
    )
    entry['places'] = on.where('numa-1')
    place = entry['places']['numa-1']
    must(place['node'] == promise['cpu_nodes'][0], 'it is counted on another node than it is on')
    xml = _xml(host, server)
    pins = re.findall(r"<vcpupin vcpu='[0-9]+' cpuset='([0-9,-]+)'", xml)
    mems = re.findall(r"<memory mode='strict' nodeset='([0-9,-]+)'", xml)
    must(
        (place['cpus'], place['mems']) == (pins, mems) and pins,
        f'Nova has pinned it to CPUs {pins} and nodes {mems}, it is held to {place["cpus"]} and '
        f'{place["mems"]}',
    )


def _xml(host, server, *words):
    """Return libvirt's XML of a server."""
    return host.run(f'virsh dumpxml {" ".join(words)} {server.instance_name}').stdout


def live_migrates(on, entry):
    """The destination's hook places the guest afresh; the source's promise is freed."""
    server = on.standing('plain-1')
    source, target = server.hypervisor_hostname, on.other_host(server)
    on.cloud.compute.live_migrate_server(server, host=target, block_migration='auto')
    after = on.wait_for(server, 'ACTIVE')
    entry.update(source=source, target=target)
    must(after.hypervisor_hostname == target, f'still on {source}')
    on.must_be_promised(after, target)
    for words in ((), ('--inactive',)):
        pins = re.findall('vcpupin|emulatorpin|numatune', _xml(on.hosts[target], after, *words))
        must(not pins, f'pins came along: {pins}')
    look_at(on, entry, server.name)


def resizes(on, entry):
    """A resize moves the guest to another host; its larger promise is there, the source free."""
    server = on.standing('plain-3')
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
