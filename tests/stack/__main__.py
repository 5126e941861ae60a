# SPDX-License-Identifier: Apache-2.0
"""Start, use and stop a real OpenStack on this host's loopback interface.

examples:
  python -m tests.stack scenario --times 3
  python -m tests.stack up --hosts && python -m tests.stack run --phase resize
  python -m tests.stack shell openstack compute service list
  python -m tests.stack herd --schedulers 2,16 --without
  python -m tests.stack down
"""

import argparse
import dataclasses
import json
import os
import signal
import sys

from tests.stack import compute, control, fakehosts, report
from tests.stack.layout import VENV, Layout
from tests.stack.service import Service, StackError


def _shell(layout, args):
    """Run a command, or a shell, with the credentials of this stack."""
    control.has_package(layout)  # otherwise there are no credentials
    environment = {
        **os.environ,
        **layout.client_environment(),
        'PATH': f'{VENV}/bin:{os.environ["PATH"]}',
    }
    words = args.words or [os.environ.get('SHELL', '/bin/bash')]
    os.execvpe(words[0], words, environment)


def _up(layout, args):
    """Start what does not run."""
    control.up(layout, args.package)
    if args.hosts:
        from tests.stack.session import Session

        session = Session(layout, args.package)
        session.make_images_and_flavors()
        session.start_hosts(args.counters)
    print('up: make stack-shell; make stack-down stops it')
    return 0


def _run(layout, args):
    """Run the scenario on a stack that is up."""
    from tests.stack import scenario
    from tests.stack.session import Session

    names = [name for name, _, _ in scenario.PHASES]
    if not any(args.phase in name for name in names):
        raise StackError(
            f'no phase has {args.phase!r} in its name; there are: ' + ', '.join(names)
        )
    session = Session(layout, control.has_package(layout))
    session.find_hosts()
    session.make_images_and_flavors()
    scenario.run_phases(session, args.phase)
    label = 'with the package' if session.with_package else 'without it'
    counters = any(host.machine.shape.pmu for host in session.hosts.values())
    return _write_report(
        layout, [scenario.result(session.line, session.with_package, counters, label)]
    )


def _scenario(layout, args):
    """Start everything, run the scenario and stop everything, with the package and without."""
    from tests.stack import scenario

    plans = [
        (f'with the package, {number}' if args.times > 1 else 'with the package', True)
        for number in range(1, args.times + 1)
    ]
    if not args.only_with:
        plans.append(('without it', False))
    runs = []
    for label, package in plans:
        runs.append(scenario.run_once(layout, package, args.counters, label))
        # Written after each run, so that it remains if the next one is interrupted.
        code = _write_report(layout, runs)
    return code


def _write_report(layout, runs):
    """Write the report, print the phases; return the exit code."""
    report.write(layout.root, runs)
    for run in runs:
        print(f'{run["label"]}: {"passed" if run["passed"] else "FAILED"}, {run["seconds"]:.0f} s')
        for entry in run['phases']:
            print(
                f'  {"passed" if entry["passed"] else "FAILED"}  {entry["seconds"]:6.0f} s  '
                f'{entry["name"]}'
            )
    print(f'report: {layout.root}/run.html', flush=True)
    return 0 if all(run['passed'] for run in runs) else 1


def _herd(layout, args):
    """Boot many servers within seconds, with several schedulers."""
    from tests.stack import figures, herd

    own = {field.name: getattr(args, field.name) for field in dataclasses.fields(herd.Plan)}
    # Explicit values replace the defaults, or those of a quick try.
    base = herd.SMOKE if args.smoke else herd.Plan()
    given_values = {name: value for name, value in own.items() if value is not None}
    plan = dataclasses.replace(base, **given_values)
    findings = herd.new_report(plan)
    try:
        herd.measure(layout, plan, findings)
    finally:
        if not args.json:
            print(figures.table(findings))
        print(json.dumps(figures.without_guests(findings)), flush=True)
    return 0 if figures.passed(findings) else 1


def _status(layout, _args):
    running = {name: Service(layout, name).pid() for name in control.NAMES}
    for name, pid in running.items():
        print(f'{name:18} {f"pid {pid}" if pid else "-":12} {layout.log(name)}')
    return 0 if all(running.values()) else 3


def _build(_layout, args):
    print(compute.freeze(args.counters))
    return 0


def _down(layout, args):
    ended = compute.down() + fakehosts.down(layout) + control.down(layout, args.keep_data)
    print('ended: ' + (', '.join(ended) or 'nothing ran'))
    return 0


def _times(text):
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 100):
        raise argparse.ArgumentTypeError(f'{text!r} is not a number from 1 to 99')
    return int(text)


def _count(text):
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= 1000):
        raise argparse.ArgumentTypeError(f'{text!r} is not a number from 1 to 1000')
    return int(text)


def _numbers(text):
    return tuple(_times(number) for number in text.split(','))


def _positive(text):
    value = float(text)
    if not 0 < value < float('inf'):
        raise argparse.ArgumentTypeError(f'{text!r} is not a number above 0')
    return value


def _add_herd(parser):
    """Add the herd's arguments; None stands for the value of :class:`herd.Plan` or a quick try."""
    parser.add_argument(
        '--schedulers',
        type=_numbers,
        metavar='N,…',
        help='numbers of nova-scheduler workers to try, one after the other (2,4,8,16)',
    )
    parser.add_argument(
        '--subsets',
        type=_numbers,
        metavar='N,…',
        help='values of host_subset_size to try with each of them (1)',
    )
    parser.add_argument('--rounds', type=_times, metavar='N', help='rounds with each setting (5)')
    parser.add_argument('--boots', type=_count, metavar='N', help='servers per round (100)')
    parser.add_argument(
        '--seconds', type=_positive, metavar='S', help='time within which they are requested (10)'
    )
    parser.add_argument('--computes', type=_times, metavar='N', help='compute hosts (20)')
    parser.add_argument(
        '--build-scale',
        type=_positive,
        metavar='X',
        help='factor for the 5 to 180 s that building a guest takes (1)',
    )
    parser.add_argument(
        '--interval',
        dest='interval_s',
        type=_count,
        metavar='S',
        help='how often hosts report: update_resources_interval (30)',
    )
    parser.add_argument('--seed', type=int, metavar='N', help='seed for these times (1)')
    parser.add_argument(
        '--minutes',
        type=_positive,
        metavar='M',
        help='run fewer rounds, at least one with each setting, if all would take longer',
    )
    parser.add_argument(
        '--without', action='store_true', default=None, help='also without the package'
    )
    parser.add_argument(
        '--hold',
        action='store_true',
        default=None,
        help='let schedulers start when all servers have been requested, for an API that takes '
        'longer than S',
    )
    parser.add_argument(
        '--keep', action='store_true', default=None, help='leave everything running at the end'
    )
    parser.add_argument(
        '--smoke', action='store_true', help='a quick try: 3 hosts, 1 scheduler, 5 servers'
    )
    parser.add_argument(
        '--json', action='store_true', help='print only the JSON, without the table'
    )


def _parser():
    parser = argparse.ArgumentParser(
        prog='python -m tests.stack',
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    counters = argparse.ArgumentParser(add_help=False)
    counters.add_argument(
        '--counters', action='store_true', help="emulate the hosts' counters: takes twice as long"
    )
    package = argparse.ArgumentParser(add_help=False)
    package.add_argument(
        '--without-package',
        dest='package',
        action='store_false',
        help='a stack without the package, for comparison',
    )
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')

    def command(name, do, summary, *parents, examples=''):
        subparser = commands.add_parser(
            name,
            help=summary,
            description=summary,
            parents=parents,
            epilog=examples and f'examples:\n{examples}',
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        subparser.set_defaults(do=do)
        return subparser

    whole = command(
        'scenario',
        _scenario,
        'bring everything up, go through the scenario, end it: with the package and without',
        counters,
        examples='  python -m tests.stack scenario --times 3\n'
        '  python -m tests.stack scenario --only-with --counters\n',
    )
    whole.add_argument(
        '--times', type=_times, default=1, metavar='N', help='number of runs with the package'
    )
    whole.add_argument('--only-with', action='store_true', help='skip the run without the package')
    up = command(
        'up',
        _up,
        'start what does not run',
        package,
        counters,
        examples='  python -m tests.stack up --hosts\n'
        '  python -m tests.stack up --hosts --without-package\n',
    )
    up.add_argument(
        '--hosts',
        action='store_true',
        help='also two emulated compute hosts, with the package as the guide says',
    )
    run = command(
        'run',
        _run,
        'go through the scenario on a stack that is up with hosts',
        examples='  python -m tests.stack run\n  python -m tests.stack run --phase resize\n',
    )
    run.add_argument(
        '--phase', default='', metavar='WORD', help='only phases with this word in their name'
    )
    _add_herd(
        command(
            'herd',
            _herd,
            'boot many servers within seconds on fake compute hosts, with several schedulers',
            examples='  python -m tests.stack herd --smoke\n'
            '  python -m tests.stack herd --schedulers 2,16 --without --build-scale 0.1\n',
        )
    )
    command('build', _build, "build the compute hosts' image and freeze a booted host", counters)
    down = command('down', _down, 'stop everything and delete its data')
    down.add_argument('--keep-data', action='store_true', help='keep databases and images')
    command('status', _status, 'show which services run, and their logs')
    shell = command(
        'shell',
        _shell,
        'run a command with the credentials of the stack',
        examples='  python -m tests.stack shell openstack server list --long\n',
    )
    shell.add_argument('words', nargs=argparse.REMAINDER, metavar='CMD')
    return parser


def main():
    """Carry out the arguments; return the exit code."""
    args = _parser().parse_args()
    # As with Ctrl-C, the scenario stops what it has started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return args.do(Layout(), args)
    except (StackError, compute.MachineError, compute.image.BuildError) as error:
        print(f'stack: {error}', file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print('stack: interrupted', file=sys.stderr)
        return 130


if __name__ == '__main__':
    sys.exit(main())
