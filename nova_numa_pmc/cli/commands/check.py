# SPDX-License-Identifier: Apache-2.0
"""Find the common reasons why guests are not placed or hosts not weighed.

On a compute host it checks the hook, the daemon that runs the hook, the agent's
state, the monitor in nova-compute, and anything that works against placement. On a
controller it checks the weigher and the filter in nova-scheduler. It changes nothing.
With --events it shows instead which hardware events are counted: encoding, source, caveats.

examples:
  nova-numa-rebalance check
  nova-numa-rebalance check --role controller --nova-conf /etc/kolla/nova-scheduler/nova.conf
  nova-numa-rebalance check --json
  nova-numa-rebalance check --events --cpu GenuineIntel-6-55-4

exit codes: 0 nothing wrong (warnings and notes may be printed); 1 an error was
found; 64 usage error
"""

from __future__ import annotations

import functools
import os
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.checks import compute_host, hook as hook_checks, interpreter, nova, publication
from nova_numa_pmc.cli import arguments, tables
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.core.finding import ERROR, SEVERITIES, WARNING, Finding
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import nova_conf, services
from nova_numa_pmc.host.perf import event_table, events

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from typing import Any

    #: Runs one check and returns its findings.
    Check = Callable[[], Iterable[Finding]]

COMPUTE, CONTROLLER = 'compute', 'controller'
_SERVICES = {COMPUTE: services.NOVA_COMPUTE, CONTROLLER: services.NOVA_SCHEDULER}
_LOOKED_FOR = services.AGENT, services.NOVA_COMPUTE, services.NOVA_SCHEDULER
#: {role: the checks of its service's options, and of what its Python finds}
_CHECKS = {
    COMPUTE: (nova.check_compute, nova.check_monitor_loadable),
    CONTROLLER: (nova.check_scheduler, nova.check_scheduler_loadable),
}


OPTIONS = (
    arguments.option(
        '--role',
        choices=(COMPUTE, CONTROLLER),
        help='role to check (default: the roles found on this host, which can be both)',
    ),
    arguments.option(
        '--nova-conf',
        metavar='PATH',
        action='append',
        default=[],
        help='a configuration file of the service; later ones override earlier ones (default: '
        'those that the service was started with)',
    ),
    arguments.option(
        '--events',
        action='store_true',
        help='instead, show which hardware events would be counted here or on another CPU',
    ),
    arguments.option(
        '--cpu',
        metavar='MODEL',
        help="with --events: another CPU, in perf's form or by a name such as skylake-sp",
    ),
    arguments.ROOT,
    arguments.JSON,
)


def run(args: argparse.Namespace) -> int:
    """Run the checks, print the findings, and return the exit code."""
    if args.events:
        _show_events(args.cpu, args.json)
        return arguments.OK
    found = {name: interpreter.read_service(args.root, name) for name in _LOOKED_FOR}
    roles = (args.role,) if args.role else tuple(_roles_here(args.root, found))
    parts = interpreter.read_parts(args.root, found.values())
    findings = [*interpreter.check_parts(parts), *_collect(args, roles, found)]
    findings.sort(key=lambda finding: SEVERITIES.index(finding.severity))
    data = {
        'roles': list(roles),
        'findings': [finding._asdict() for finding in findings],
        'versions': {name: installed[0] for name, installed in parts.items()},
    }
    lines = ['%s: version %s' % (name, installed) for name, (installed, *_) in parts.items()]
    tables.show(args.json, data, [*lines, *to_lines(roles, findings)])
    has_errors = any(finding.severity == ERROR for finding in findings)
    return arguments.PROBLEM if has_errors else arguments.OK


def _roles_here(root: str, found: Mapping[str, interpreter.Service]) -> Iterator[str]:
    """Yield the host's roles, determined from what runs or is installed on it."""
    if (
        found[services.NOVA_COMPUTE].process
        or services.find_daemon(root)
        or os.path.isdir(os.path.join(root, 'etc/libvirt'))
    ):
        yield COMPUTE
    if found[services.NOVA_SCHEDULER].process:
        yield CONTROLLER


def _collect(
    args: argparse.Namespace, roles: Collection[str], found: Mapping[str, interpreter.Service]
) -> Iterable[Finding]:
    """Run the checks of the given roles; return what they find, each finding once."""
    checks: list[Check] = []
    for role in roles:
        service = found[_SERVICES[role]]
        conf = (
            nova_conf.NovaConf(args.nova_conf)
            if args.nova_conf
            else nova_conf.find(service.process, service.name, args.root)
        )
        if role == COMPUTE:
            checks += host_checks(args.root, service.process, conf)
        checks += service_checks(role, service, conf)
    findings = [finding for check in checks for finding in _run_check(check)]
    if not roles:
        findings.append(
            Finding(
                'role-unknown',
                ERROR,
                'neither libvirt nor nova-compute nor nova-scheduler was found here',
                'use --role to say what to check',
            )
        )
    return dict.fromkeys(findings)


def to_lines(roles: Sequence[str], findings: Sequence[Finding]) -> list[str]:
    """Return the findings as lines of text, each with its remedy."""
    counts = [
        '%d %s%s' % (count, severity, '' if count == 1 else 's')
        for severity in SEVERITIES
        for count in [sum(finding.severity == severity for finding in findings)]
        if count
    ]
    checked = 'checked as ' + ' and '.join(roles) if roles else 'no role found to check'
    summary = '%s: %s' % (checked, ', '.join(counts) or 'nothing wrong')
    return [*tables.finding_lines(findings), summary]


def host_checks(
    root: str, process: services.Process | None, conf: nova_conf.NovaConf
) -> list[Check]:
    """Return the checks of a compute host, apart from those of nova-compute.

    :param process, conf: nova-compute's
    """
    ours = host_options.read_under_root(root)
    directory = ours.state_path(root)
    checks: list[Check] = [
        *(
            functools.partial(check, root)
            for check in (
                compute_host.check_nodes,
                compute_host.check_numad,
                compute_host.check_balancing,
                compute_host.check_ksm,
                compute_host.check_huge_pages,
                compute_host.check_devices,
                compute_host.check_counting,
                publication.check_paused,
                compute_host.check_limits,
                hook_checks.check_libvirt,
                hook_checks.check_hook,
            )
        ),
        lambda: compute_host.check_options(host_options.path_under_root(root, host_options.PATH)),
        lambda: publication.check_publication(directory, time.time(), conf),
        lambda: publication.check_turns(directory),
        lambda: publication.check_visible(ours.state_dir, process),
        lambda: compute_host.check_withheld_memory(root, conf),
        lambda: compute_host.check_governor(root, conf),
    ]
    if conf.files:
        checks += [
            lambda: compute_host.check_ram_ratio(root, conf),
            lambda: compute_host.check_shared_set(root, conf),
        ]
    return checks


def service_checks(
    role: str, service: interpreter.Service, conf: nova_conf.NovaConf
) -> list[Check]:
    """Return the checks of one of Nova's services."""
    check_options, check_loadable = _CHECKS[role]
    # A host that runs libvirt but no Nova service needs no configuration of nova-compute.
    required = role == CONTROLLER
    checks: list[Check] = [
        lambda: nova.check_service(service.name, service.process, conf, required, service.refusal)
    ]
    if conf.files:
        checks += [
            lambda: check_options(conf),
            lambda: nova.check_our_group(conf.files),
            lambda: conf.findings,  # the last: reading an option may add one
        ]
    if service.modules:
        checks.append(functools.partial(check_loadable, service.modules))
    return checks


def _run_check(check: Check) -> list[Finding]:
    """Run one check and return its findings; a check that fails is itself reported as one."""
    try:
        return list(check())
    except (NumaPmcError, OSError) as error:
        remedy = 'correct what it names' if os.geteuid() == 0 else 'run as root'
        return [Finding('check-failed', WARNING, str(error), remedy)]


def _show_events(cpu: str | None, as_json: bool) -> None:
    """Print which events would be counted; there may be none.

    :param cpu: a key of the table, or perf's form of a CPU; None: this one
    """
    overrides = {} if cpu else dict(opts.read_counters().events)
    selection = events.select_events(cpu=cpu, overrides=overrides)
    tables.show(as_json, _events_data(selection), _event_lines(selection))


def _events_data(selection: events.EventSelection) -> dict[str, Any]:
    """Return the selection as plain data."""
    return {
        'cpu': selection.cpu._asdict(),
        'known_as': selection.row.title if selection.row else None,
        'events': [dict(event._asdict(), encoding=_encoding(event)) for event in selection.events],
        'missing': dict(selection.missing),
    }


def _encoding(event: events.Event) -> str:
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


def _event_lines(selection: events.EventSelection) -> list[str]:
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
        lines.append('%-15s %s' % (event.role, _encoding(event)))
        size = '%g bytes per count' % event.bytes_per_count if event.bytes_per_count else ''
        details = '%s: %s' % (event.source, event.name), event.document, size, *event.caveats
        lines += ['%15s - %s' % ('', text) for text in details if text]
    return lines + ['not counted: %s: %s' % pair for pair in selection.missing]
