# SPDX-License-Identifier: Apache-2.0
"""Find the threads of a placed guest that an operator has pinned, and unpin them.

They are unpinned through libvirt, which resets both the cpuset and the affinity of a thread. If
only the cpuset were widened, the affinity would still restrict the thread.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import eligibility, pools
from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import cgroups, cpusets, files, pins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: How long to wait for virsh [s], so that a libvirt that hangs does not block the command.
TIMEOUT_S = 30.0
_COMMAND = ('virsh', '-q', '-c', 'qemu:///system')


def find(
    guest: model.Guest, promise: model.Promise | None, host: model.Topology, root: str = '/'
) -> dict[str, frozenset[int]]:
    """Return {name of a thread's group: its CPUs} of the threads that others have pinned.

    :param promise: the guest's promise, or None if it has none and we do not hold it
    :raises CpusetError: the guest's control groups cannot be read
    """
    is_ours = promise is not None and promise.origin == model.PLACED
    if promise is None or not is_ours or eligibility.is_placed_as_a_whole(guest):
        return {}
    promised_cpus = pools.cpus_of_promise(promise, host, guest)
    online = host.online_cpus
    groups = cgroups.of_guest(guest, root)
    cpus_by_group = cpusets.read_own_cpus(groups)
    cpus_by_group.pop(groups.parent)
    # If all threads have the same CPUs, these are an earlier or widened place and not pins.
    distinct_sets = {cpus & online for cpus in cpus_by_group.values()}
    pinned_groups = (
        {}
        if len(distinct_sets) == 1
        else {
            directory.rpartition('/')[2]: cpus & online
            for directory, cpus in cpus_by_group.items()
            if cpus & online and not cpus & online >= promised_cpus
        }
    )
    return dict(sorted({**pinned_groups, **dict(guest.pins)}.items()))


def unpin(
    guest: model.Guest,
    names: Iterable[str],
    root: str = '/',
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> None:
    """Have libvirt unpin threads, so that the agent holds them with the others again.

    :param names: names of the threads' groups, such as 'vcpu0'
    :param run: replaces :func:`subprocess.run`
    :raises CpusetError: the guest's control groups cannot be read
    :raises NumaPmcError: libvirt refuses or does not answer
    """
    cpus = format_cpulist(_widest_cpus(guest, root))
    for name in names:
        element = pins.pin_element(name)
        number = name[len(element) - len('pin') :]
        command = [*_COMMAND, element, guest.uuid, *([number] if number else []), cpus, '--live']
        try:
            completed = run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NumaPmcError('%s: %s: run it by hand' % (' '.join(command), error)) from None
        if completed.returncode:
            raise NumaPmcError('%s: %s' % (' '.join(command), ' '.join(completed.stderr.split())))


def _widest_cpus(guest: model.Guest, root: str) -> frozenset[int]:
    """Return the most CPUs to which libvirt can pin a thread of a guest.

    On v2, offline CPUs are included, so that the threads may use them, and the pin still counts as
    none, once they are online. A cpuset of v1 cannot contain them.
    """
    offline_too = cgroups.of_guest(guest, root).version == 2
    cpus = files.optional_cpus(root, files.CPUS + ('/present' if offline_too else '/online'))
    return cpus if guest.allowed_cpus is None else guest.allowed_cpus & cpus
