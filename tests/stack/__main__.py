# SPDX-License-Identifier: Apache-2.0
"""Start, use and stop a real OpenStack on this host's loopback interface.

examples:
  python -m tests.stack scenario --times 3
  python -m tests.stack up --hosts && python -m tests.stack run --phase resize
  python -m tests.stack shell openstack compute service list
  python -m tests.stack down
"""

import argparse
import os
import signal
import sys

from tests.stack import compute, control, report
from tests.stack.layout import VENV, Layout
from tests.stack.service import StackError


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
        session.start_hosts()
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
    return _write_report(layout, [scenario.result(session.line, session.with_package, label)])


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
        runs.append(scenario.run_once(layout, package, label))
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
    print(*report.lines(runs), sep='\n')
    print(f'report: {layout.root}/run.json', flush=True)
    return 0 if all(run['passed'] for run in runs) else 1


def _down(layout, _args):
    ended = compute.down() + control.down(layout)
    print('ended: ' + (', '.join(ended) or 'nothing ran'))
    return 0


def _parser():
    parser = argparse.ArgumentParser(
        prog='python -m tests.stack',
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')

    def command(name, do, summary):
        subparser = commands.add_parser(name, help=summary, description=summary)
        subparser.set_defaults(do=do)
        return subparser

    whole = command(
        'scenario',
        _scenario,
        'bring everything up, go through the scenario, end it: with the package and without',
    )
    whole.add_argument(
        '--times', type=int, default=1, metavar='N', help='number of runs with the package'
    )
    whole.add_argument('--only-with', action='store_true', help='skip the run without the package')
    up = command('up', _up, 'start what does not run')
    up.add_argument(
        '--without-package',
        dest='package',
        action='store_false',
        help='a stack without the package, for comparison',
    )
    up.add_argument(
        '--hosts',
        action='store_true',
        help='also two emulated compute hosts, with the package as the guide says',
    )
    run = command('run', _run, 'go through the scenario on a stack that is up with hosts')
    run.add_argument(
        '--phase', default='', metavar='WORD', help='only phases with this word in their name'
    )
    command('down', _down, 'stop everything and delete its data')
    shell = command('shell', _shell, 'run a command with the credentials of the stack')
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
