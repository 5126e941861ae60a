# SPDX-License-Identifier: Apache-2.0
"""Phases of the scenario that check the places of guests as these start, move, change and end.

A phase takes a session and its own entry in the report, to which it adds its findings. The
package's effects are required only if it is in use; without it, the same steps are taken and
their results recorded. Servers named plain-N are there for the next phase.
"""

import contextlib
import re

from tests.stack import places
from tests.stack.service import StackError, wait
from tests.stack.session import require

#: Time limit for the agent to fetch what a guest had elsewhere when it started [s].
FETCH_S = 60


def delete_leftovers(session, entry):
    """Delete the servers that an earlier run has left."""
    left = {server.name: server for server in session.cloud.compute.servers()}
    session.servers.update(left)
    session.delete(*left)
    entry['deleted'] = sorted(left)


def check_spread(session, entry):
    """Check that eight plain guests of one request are spread over four nodes, two on each."""
    session.wait_until_quiet()
    with session.record_weighings(entry):
        names = [server.name for server in session.boot_many('plain', 8)]
    check_places(session, entry, *names)
    if session.with_package:
        counts = places.spread(entry['places'])
        require(sorted(counts.values()) == [2, 2, 2, 2], counts)
        require(
            {weighing['host'] for weighing in entry['weighed']} == set(session.hosts),
            f'weighed were {entry["weighed"]}',
        )
        session.check_hosts()


def check_places(session, entry, *names):
    """Record the places of guests; with the package, require that the hook has placed each there.

    In its next ticks, the agent fetches what was elsewhere when a guest started.
    """
    entry['places'] = session.places_of(*names)
    if session.with_package:
        with contextlib.suppress(StackError):
            wait(
                lambda: not _place_flaws(session, entry, names),
                FETCH_S,
                'they are local',
                pause_s=5,
            )
        flaws = _place_flaws(session, entry, names)
        require(not flaws, flaws)


def _place_flaws(session, entry, names):
    entry['places'], promises = session.places_of(*names), session.promises()
    flaws = {
        name: places.flaws(
            place,
            promises[place['host']].get(session.servers[name].id),
            session.hosts[place['host']].cpus_of(place['node']),
        )
        for name, place in entry['places'].items()
    }
    return {name: texts for name, texts in flaws.items() if texts}


def check_operations(session, entry):
    """Check promises and cpusets after reboot, stop, start, suspend, resume and delete."""
    api, server = session.cloud.compute, session.find_or_boot('plain-2')
    home = server.hypervisor_hostname
    held = session.require_promise(server, home)
    for act, status, holders in [
        (lambda: api.reboot_server(server, 'HARD'), 'ACTIVE', [home]),
        (lambda: api.stop_server(server), 'SHUTOFF', []),
        (lambda: api.start_server(server), 'ACTIVE', [home]),
        # A suspended guest is a file on the host's disk.
        (lambda: api.suspend_server(server), 'SUSPENDED', []),
        (lambda: api.resume_server(server), 'ACTIVE', [home]),
    ]:
        act()
        session.wait_for(server, status)
        before, held = held, session.require_promise(server, *holders)
        # The hook has also placed this start: the promise is not a leftover of the last one.
        require(held != before or not session.with_package, f'the promise has not changed: {held}')
        if holders:
            check_places(session, entry, server.name)
    session.delete(server.name)
    session.require_promise(server)


def check_pinned_guest(session, entry):
    """Check that a guest with hw:numa_nodes is left alone, and counted where Nova pins it."""
    with session.record_weighings(entry):
        (server,) = session.boot('numa-1', flavor='numa')
    host = session.hosts[server.hypervisor_hostname]
    promise = session.require_promise(server, host.name)[host.name]
    entry['promise'] = promise
    require(promise['origin'] == 'pinned', f'its promise is {promise["origin"]}, not pinned')
    require(
        len(promise['cpu_nodes']) == 1 and promise['memory_bytes'] >= 128 << 20,
        f'counted as {promise}',
    )
    entry['places'] = session.places_of('numa-1')
    place = entry['places']['numa-1']
    require(
        place['node'] == promise['cpu_nodes'][0], 'it is counted on another node than it is on'
    )
    xml = _xml(host, server)
    pins = re.findall(r"<vcpupin vcpu='[0-9]+' cpuset='([0-9,-]+)'", xml)
    mems = re.findall(r"<memory mode='strict' nodeset='([0-9,-]+)'", xml)
    require(
        (place['cpus'], place['mems']) == (pins, mems) and pins,
        f'Nova has pinned it to CPUs {pins} and nodes {mems}, it is held to {place["cpus"]} and '
        f'{place["mems"]}',
    )


def _xml(host, server, *words):
    """Return libvirt's XML of a server."""
    return host.run(f'virsh dumpxml {" ".join(words)} {server.instance_name}').stdout


def check_live_migration(session, entry):
    """Check that the destination's hook places the guest and the source ends its promise."""
    server = session.find_or_boot('plain-1')
    source, target = server.hypervisor_hostname, session.other_host(server)
    session.cloud.compute.live_migrate_server(server, host=target, block_migration='auto')
    after = session.wait_for(server, 'ACTIVE')
    entry.update(source=source, target=target)
    require(after.hypervisor_hostname == target, f'still on {source}')
    session.require_promise(after, target)
    for words in ((), ('--inactive',)):
        pins = re.findall(
            'vcpupin|emulatorpin|numatune', _xml(session.hosts[target], after, *words)
        )
        require(not pins, f'pins came along: {pins}')
    check_places(session, entry, server.name)


def check_resize(session, entry):
    """Check that a resized guest, on another host, has a larger promise there, and no other."""
    server = session.find_or_boot('plain-3')
    source = server.hypervisor_hostname
    before = session.require_promise(server, source)
    bigger = session.cloud.compute.find_flavor('bigger')
    with session.record_weighings(entry):
        session.cloud.compute.resize_server(server, bigger)
        after = session.wait_for(server, 'VERIFY_RESIZE')
    target = after.hypervisor_hostname
    entry.update(source=source, target=target)
    require(target != source, f'still on {source}')
    session.cloud.compute.confirm_server_resize(server)
    session.wait_for(server, 'ACTIVE')
    held = session.require_promise(server, target)
    if held:
        grown = (held[target]['memory_bytes'] - before[source]['memory_bytes']) >> 20
        require(grown == bigger.ram - 128, f'its promise grew by {grown} MiB')
    check_places(session, entry, server.name)
