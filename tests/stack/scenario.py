# SPDX-License-Identifier: Apache-2.0
"""The scenario: its phases in order, with the package and without, from a clean root."""

import contextlib
import shutil

from tests.stack import compute, control, fakehosts, lifecycle, pressure
from tests.stack.session import Session
from tests.stack.timeline import TimeLine

#: (name, what is done, whether it is meaningful without the package).
PHASES = [
    ('empty', lifecycle.empty, True),
    ('eight plain guests of one request', lifecycle.eight_spread, True),
    ('two guests beside a loaded host', pressure.loaded_host_is_avoided, True),
    ('two guests beside a loaded node', pressure.loaded_node_is_avoided, True),
    ('reboot, stop, suspend, delete', lifecycle.operations, True),
    ('a flavor with hw:numa_nodes', lifecycle.pinned_is_left_alone, False),
    ('live migration', lifecycle.live_migrates, True),
    ('resize', lifecycle.resizes, True),
    ('an imbalance evened out', pressure.imbalance_is_evened_out, False),
    (pressure.STALE, pressure.stale_host_is_neutral, False),
    ('hook broken', pressure.hook_fails, False),
    ('logs', pressure.logs_are_clean, False),
]


def go_through(session, wanted='', phases=PHASES):
    """Go through the phases, including those after a failed one.

    :param wanted: part of the names of phases; others are left out
    """
    for name, do, always in phases:
        if wanted in name and (always or session.with_package):
            # The failure is in the time line; what follows may well hold without that phase.
            with contextlib.suppress(Exception), session.line.phase(name) as entry:
                try:
                    do(session, entry)
                except Exception:
                    with contextlib.suppress(Exception):
                        session.delete(*_passing(session))
                    raise
                session.delete(*_passing(session))
    # A host may be what has failed.
    with contextlib.suppress(Exception):
        for host, entries in session.journals().items():
            for line in entries:
                session.line.add(line['taken_s'], line['what'], f'{host} {line["who"]}')


def _passing(session):
    """Return the names of servers that no later phase needs."""
    return [name for name in session.servers if not name.startswith('plain-')]


def result(line, with_package, counters, label):
    """Return a report's content about a run."""
    return {
        'label': label,
        'with_package': with_package,
        'counters': counters,
        'passed': bool(line.phases) and all(entry['passed'] for entry in line.phases),
        'seconds': line.at_s(),
        'phases': line.phases,
        'events': line.events,
    }


def once(layout, with_package, counters, label):
    """Start everything from nothing, go through the scenario, stop everything.

    The logs stay in ``logs-LABEL``.

    :returns: :func:`result`; for a stack that does not start, with a failed phase
    """
    end(layout)
    layout.name_logs(label)
    shutil.rmtree(layout.logs, ignore_errors=True)
    line, session = TimeLine(), None
    try:
        # The phase has already reported it.
        with contextlib.suppress(Exception):
            with line.phase('control plane') as entry:
                entry['steps'] = control.up(layout, with_package)
                session = Session(layout, with_package, line)
                session.make_images_and_flavors()
            with line.phase('compute hosts'):
                session.bring_hosts_up(counters)
            go_through(session)
    finally:
        try:
            if session:
                keep_logs(session)
        finally:
            end(layout)
    return result(line, with_package, counters, label)


def keep_logs(session):
    """Save the hosts' logs next to the services'."""
    for name, host in session.hosts.items():

        def keep(part, text, name=name):
            with contextlib.suppress(Exception):
                session.layout.log(f'{name}-{part}').write_text(text())

        keep('nova-compute', host.nova_log)
        keep('journal', lambda host=host: host.run('journalctl --merge --no-pager').stdout)
        for part in ('console', 'qemu'):
            keep(part, (host.machine.dir / f'{part}.log').read_text)


def end(layout):
    """Stop hosts and control plane, and delete their data; return the names of what ran."""
    return compute.down() + fakehosts.down(layout) + control.down(layout)
