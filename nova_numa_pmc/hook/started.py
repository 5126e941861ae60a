# SPDX-License-Identifier: Apache-2.0
"""Hold a guest to its place once its QEMU runs (the hook's ``started``), and log that."""

from __future__ import annotations

from nova_numa_pmc.cpulist import format_cpulist
from nova_numa_pmc.exceptions import StateError
from nova_numa_pmc.host import cgroups
from nova_numa_pmc.placing import starts
from nova_numa_pmc.state import promises_file

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nova_numa_pmc import model
    from nova_numa_pmc.hook import HookCall
    from nova_numa_pmc.host import holding


def hold(call: HookCall, xml: bytes) -> None:
    """Finish a guest's start, as :func:`starts.finish` does.

    :param xml: the domain's XML
    """
    guest = call.read_guest(xml)
    try:
        promise = promises_file.read(call.options, call.root).promises.get(guest.uuid)
    except StateError:
        promise = None  # a new decision creates the file again, and reports the error
    finished = starts.finish(guest, promise, call.options, call.root, call.lock_timeout_s())
    decision, hold_result = finished.decision, finished.hold_result
    if hold_result:
        call.log_decision(
            decision,
            _cpus_before_text(hold_result),
            _memory_text(hold_result, decision.promise, finished.bytes_by_node),
        )
    elif decision.view or decision.problems:  # not what the start has logged already
        call.log_decision(decision)


def _cpus_before_text(hold_result: holding.HoldResult) -> str:
    for change in hold_result.changes:
        # The group that was narrowed at the start is widened again, as those below it now hold.
        if change.path.endswith('cpuset.cpus') and change.after == format_cpulist(
            hold_result.cpus
        ):
            return 'from %s to ' % (change.before or 'any')
    return ''


def _memory_text(
    hold_result: holding.HoldResult, promise: model.Promise, bytes_by_node: Mapping[int, int]
) -> str:
    homes = promise.mem_nodes or promise.cpu_nodes
    elsewhere_bytes = cgroups.bytes_elsewhere(bytes_by_node, homes)
    text = ' (local)'
    if elsewhere_bytes:
        text = ' (unbound, %d of %d KiB were elsewhere)' % (
            elsewhere_bytes + 1023 >> 10,
            sum(bytes_by_node.values()) >> 10,
        )
    if (
        hold_result.cpus_effective is not None
        and not hold_result.cpus_effective >= hold_result.cpus
    ):
        text += '; the kernel allows only CPUs %s' % format_cpulist(hold_result.cpus_effective)
    return text
