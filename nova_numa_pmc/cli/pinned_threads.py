# SPDX-License-Identifier: Apache-2.0
"""Find the threads of a placed guest that an operator has pinned, and unpin them.

They are unpinned through libvirt, which sets both a thread's cpuset and its affinity: widening
the cpuset alone would leave the affinity as narrow as it was.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from nova_numa_pmc import model
from nova_numa_pmc.core import pools
from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import cgroups, held, pins

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: A libvirt that hangs must not hang the command [s].
TIMEOUT_S = 30.0
_COMMAND = ('virsh', '-q', '-c', 'qemu:///system')


def find(
    guest: model.Guest, promise: model.Promise | None, host: model.Topology, root: str = '/'
) -> dict[str, frozenset[int]]:
    """Return {group's name: CPUs} of the threads that others hold to other CPUs than we do.

    :param promise: the guest's, None: it has none, and is not held by us
    :raises CpusetError: its groups cannot be read
    """
    if promise is None or promise.origin != model.PLACED or not pins.may_hold(guest):
        return {}
    place = pools.cpus_held(promise, host, guest)
    online = host.online_cpus
    groups = cgroups.find(guest.pid, root)
    own = held.own_cpus(groups)
    own.pop(groups.target)
    # The same set for all threads is a place, an earlier or a widened one, and not a pin.
    whole = {cpus & online for cpus in own.values()}
    elsewhere = (
        {}
        if len(whole) == 1
        else {
            directory.rpartition('/')[2]: cpus & online
            for directory, cpus in own.items()
            if cpus & online and not cpus & online >= place
        }
    )
    return dict(sorted({**elsewhere, **dict(guest.pins)}.items()))


def restore(
    guest: model.Guest,
    names: Iterable[str],
    online: frozenset[int],
    run: Callable[..., subprocess.CompletedProcess[str]] = subprocess.run,
) -> None:
    """Have libvirt unpin threads, so that the agent holds them with the others again.

    :param names: of the threads' groups ('vcpu0')
    :param online: the host's CPUs
    :param run: as :func:`subprocess.run`
    :raises NumaPmcError: libvirt refuses, or does not answer
    """
    cpus = format_cpulist(online if guest.allowed_cpus is None else guest.allowed_cpus)
    for name in names:
        kind = pins.kind(name)
        number = name[len(kind) - len('pin') :]
        command = [*_COMMAND, kind, guest.uuid, *([number] if number else []), cpus, '--live']
        try:
            done = run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NumaPmcError('%s: %s: run that by hand' % (' '.join(command), error)) from None
        if done.returncode:
            raise NumaPmcError('%s: %s' % (' '.join(command), ' '.join(done.stderr.split())))
