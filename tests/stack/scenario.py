# SPDX-License-Identifier: Apache-2.0
"""Run the scenario's phases in order, on a stack that is started and stopped for it."""

import contextlib
import shutil

from tests.stack import compute, control, lifecycle, pressure
from tests.stack.session import Session
from tests.stack.timeline import TimeLine

#: (name, what is done, whether it is meaningful without the package).
PHASES = [
    ('empty', lifecycle.delete_leftovers, True),
    ('eight plain guests of one request', lifecycle.check_spread, True),
    ('two guests beside a loaded host', pressure.check_loaded_host, True),
    ('two guests beside a loaded node', pressure.check_loaded_node, True),
    ('reboot, stop, suspend, delete', lifecycle.check_operations, True),
    ('a flavor with hw:numa_nodes', lifecycle.check_pinned_guest, False),
    ('live migration', lifecycle.check_live_migration, True),
    ('resize', lifecycle.check_resize, True),
    ('an imbalance evened out', pressure.check_imbalance, False),
    (pressure.STALE_PHASE, pressure.check_stale_host, False),
    ('hook broken', pressure.check_failing_hook, False),
    ('logs', pressure.check_logs, False),
]


def run_phases(session, wanted='', phases=PHASES):
    """Run the phases, including those after a failed one.

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
                        session.delete(*_temporary_servers(session))
                    raise
                session.delete(*_temporary_servers(session))
    # A host may be what has failed.
    with contextlib.suppress(Exception):
        for host, entries in session.journals().items():
            for line in entries:
                session.line.add_past_event(
                    line['taken_s'], line['message'], f'{host} {line["source"]}'
                )


def _temporary_servers(session):
    """Return the names of servers that no later phase needs."""
    return [name for name in session.servers if not name.startswith('plain-')]


def result(line, with_package, label):
    """Return what the report has about a run."""
    return {
        'label': label,
        'with_package': with_package,
        'passed': bool(line.phases) and all(entry['passed'] for entry in line.phases),
        'seconds': line.at_s(),
        'phases': line.phases,
        'events': line.events,
    }


def run_once(layout, with_package, label):
    """Start a new stack, run the scenario on it, and stop it.

    The logs stay in ``logs-LABEL``.

    :returns: :func:`result`; for a stack that does not start, with a failed phase
    """
    stop_all(layout)
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
                session.start_hosts()
            run_phases(session)
    finally:
        try:
            if session:
                save_logs(session)
        finally:
            stop_all(layout)
    return result(line, with_package, label)


def save_logs(session):
    """Save the hosts' logs next to the services'."""
    for name, host in session.hosts.items():

        def keep(part, text, name=name):
            with contextlib.suppress(Exception):
                session.layout.log(f'{name}-{part}').write_text(text())

        keep('nova-compute', host.nova_log)
        keep('journal', lambda host=host: host.run('journalctl --merge --no-pager').stdout)
        for part in ('console', 'qemu'):
            keep(part, (host.machine.dir / f'{part}.log').read_text)


def stop_all(layout):
    """Stop hosts and control plane, and delete their data; return the names of what ran."""
    return compute.down() + control.down(layout)
