# SPDX-License-Identifier: Apache-2.0
"""The guests that run, tick by tick: their CPU time and where, and where their memory lies."""

from nova_numa_pmc.exceptions import CpusetError
from nova_numa_pmc.host import cgroups, guests, hugetlb, threads
from nova_numa_pmc.host.sources import Running

#: Where memory lies changes slowly, and each reading makes the kernel sum up a tree of groups.
MEMORY_MAX_AGE_NS = 15 * 10**9


class Guests:
    """Reads the guests; keeps what does not change and what is differenced."""

    def __init__(self, root='/'):
        self._root = root
        self._files = guests.StatusFiles(root)
        self._threads = threads.Threads(root)
        self._ran = {}     # uuid → {tid: Ran} of the last tick
        self._groups = {}  # (uuid, pid) → (version, directory) of its memory's group
        self._memory = {}  # (uuid, pid) → (when read, {node: bytes})

    def read(self, topology, now_ns, elapsed_ns):
        """Return (tuple of :class:`Running` by name, list of problems).

        :param elapsed_ns: time since the last call, 0 in the first
        """
        found, problems = self._files.read()
        # Two files of one guest would be counted twice; libvirt has one for each name.
        by_uuid = {guest.uuid: guest for guest in found}
        home = {cpu: node.id for node in topology.nodes for cpu in node.online_cpus}
        ran = self._read_threads(by_uuid)
        self._forget(by_uuid.values())
        running = []
        for guest in sorted(by_uuid.values(), key=lambda guest: (guest.name, guest.uuid)):
            used = passed(self._ran.get(guest.uuid, {}), ran[guest.uuid], home, elapsed_ns)
            running.append(Running(guest, ran[guest.uuid], *used,
                                   self._bytes_by_node(guest, now_ns)))
        self._ran = ran
        return tuple(running), problems

    def _read_threads(self, by_uuid):
        """Return {uuid: {tid: :class:`threads.Ran`}}."""
        tids = {uuid: threads.find(guest, self._root) for uuid, guest in by_uuid.items()}
        ran = self._threads.read({(by_uuid[uuid].pid, tid)
                                  for uuid, own in tids.items() for tid in own})
        return {uuid: {tid: ran[key] for tid in own
                       for key in ((by_uuid[uuid].pid, tid),) if key in ran}
                for uuid, own in tids.items()}

    def _forget(self, present):
        alive = {(guest.uuid, guest.pid) for guest in present}
        for kept in (self._groups, self._memory):
            for key in kept.keys() - alive:
                del kept[key]

    def _bytes_by_node(self, guest, now_ns):
        key = guest.uuid, guest.pid
        since_ns, by_node = self._memory.get(key, (None, {}))
        if since_ns is None or now_ns - since_ns >= MEMORY_MAX_AGE_NS:
            by_node = self._read_memory(guest, key)
            self._memory[key] = now_ns, by_node
        return by_node

    def _read_memory(self, guest, key):
        try:
            if key not in self._groups:
                self._groups[key] = cgroups.memory_group(guest.pid, self._root)
            by_node = cgroups.group_memory_by_node(*self._groups[key])
        except CpusetError:
            by_node = None
        if by_node is None:
            self._groups.pop(key, None)  # the group may have been made anew elsewhere
            by_node = {}
        if guest.page_bytes:
            huge = hugetlb.bytes_by_node(guest.pid, self._root)
            if not huge:
                return {}  # without them the rest is QEMU's own, and tells nothing of the guest
            for node, size in huge.items():
                by_node[node] = by_node.get(node, 0) + size
        return by_node

    def close(self):
        """Close the threads' files."""
        self._threads.close()


def passed(before, after, home, elapsed_ns):
    """Return (cores, waiting cores, {node id: cores}) of a guest's threads.

    Unknown is (None, None, {}).

    The time of a thread that was last seen on another node than before is halved between
    the two: where it was in between nobody tells. A thread that is in one reading only, or
    whose id another one has got, is left out.

    :param before, after: {tid: :class:`threads.Ran`}
    :param home: {CPU: node id}
    """
    if elapsed_ns <= 0:
        return None, None, {}
    run_ns = wait_ns = 0
    by_node = {}
    for tid, (run, wait, cpu, since) in after.items():
        if tid not in before:
            continue
        run_before, wait_before, cpu_before, since_before = before[tid]
        if since_before != since or run_before > run or wait_before > wait:
            continue
        run_ns += run - run_before
        wait_ns += wait - wait_before
        for node in (home.get(cpu_before), home.get(cpu)):
            by_node[node] = by_node.get(node, 0) + (run - run_before) / 2 / elapsed_ns
    if not by_node:  # none is in both
        return None, None, {}
    # A CPU that no node has (it went offline meanwhile): where it ran is not known.
    return (run_ns / elapsed_ns, wait_ns / elapsed_ns,
            {} if None in by_node else dict(sorted(by_node.items())))
