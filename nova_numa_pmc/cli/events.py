# SPDX-License-Identifier: Apache-2.0
"""Show which events would be counted on this CPU or another: encoding, source, caveats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nova_numa_pmc.cli import tables
from nova_numa_pmc.conf import opts
from nova_numa_pmc.host.perf import event_table, events

if TYPE_CHECKING:
    from typing import Any


def show(cpu: str | None, as_json: bool) -> None:
    """Print the selection, which may be empty.

    :param cpu: a key of the table, or perf's form of a CPU; None: this one
    """
    overrides = {} if cpu else dict(opts.read_counters().events)
    selection = events.select_events(cpu=cpu, overrides=overrides)
    tables.show(as_json, to_data(selection), to_lines(selection))


def to_data(selection: events.EventSelection) -> dict[str, Any]:
    """Return the selection as plain data."""
    return {
        'cpu': selection.cpu._asdict(),
        'known_as': selection.row.title if selection.row else None,
        'events': [dict(event._asdict(), encoding=encoding(event)) for event in selection.events],
        'missing': dict(selection.missing),
    }


def encoding(event: events.Event) -> str:
    """Return an event as perf accepts it; after a core event, also the code for the register."""
    if event.config is None:
        return '%s/%s/' % (event.pmu, event.name)
    config_terms = ''.join(
        ',%s=%#x' % (name, value)
        for name, value in (('config1', event.config1), ('config2', event.config2))
        if value
    )
    text = '%s/config=%#x%s/' % (event.pmu, event.config, config_terms)
    if event.pmu == 'cpu' and event.config >> 32 == 0:
        text += ' (r%x)' % events.register_code(event)
    return text


def to_lines(selection: events.EventSelection) -> list[str]:
    """Return the selection as lines of text."""
    title = (
        selection.row.title
        if selection.row
        else (
            'not in the table, so only events that the kernel names are counted; --cpu accepts '
            + ', '.join(row.key for row in event_table.ROWS)
        )
    )
    lines = ['%s (%s): %s' % (selection.cpu.name, selection.cpu.cpuid or 'unknown', title)]
    shown: dict[tuple[str, str], events.Event] = {}
    for event in selection.events:  # several units of a kind may count the same
        shown.setdefault((event.role, event.name), event)
    for event in shown.values():
        lines.append('%-15s %s' % (event.role, encoding(event)))
        lines.append(
            '%15s %s: %s%s'
            % ('', event.source, event.name, '; ' + event.document if event.document else '')
        )
        if event.bytes_per_count:
            lines.append('%15s %g bytes per count' % ('', event.bytes_per_count))
        lines.extend('%15s - %s' % ('', caveat) for caveat in event.caveats)
    roles_by_reason: dict[str, list[str]] = {}
    for role, reason in selection.missing:
        roles_by_reason.setdefault(reason, []).append(role)
    for reason, roles in roles_by_reason.items():
        lines.append('not counted: %s: %s' % (', '.join(roles), reason))
    return lines
