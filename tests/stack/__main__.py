# SPDX-License-Identifier: Apache-2.0
"""OpenStack for real, on this host's loopback: bring it up, use it, take it down.

examples:
  python -m tests.stack up
  python -m tests.stack shell openstack compute service list
  python -m tests.stack down
"""

import argparse
import os
import sys

from tests.stack import control, report
from tests.stack.layout import VENV, Layout
from tests.stack.service import StackError


def _shell(layout, args):
    """Run a command, or a shell, that talks to this stack."""
    environment = {**os.environ, **layout.client_environment(),
                   'PATH': f'{VENV}/bin:{os.environ["PATH"]}'}
    words = args.command or [os.environ.get('SHELL', '/bin/bash')]
    os.execvpe(words[0], words, environment)


def _up(layout, args):
    control.up(layout, args.package)
    if args.hosts:
        from tests.stack.scenario import Scenario
        scenario = Scenario(layout, args.package)
        scenario.make_images_and_flavors()
        scenario.bring_hosts_up()


def _run(layout, args):
    from tests.stack.scenario import Scenario
    scenario = Scenario(layout, args.package)
    scenario.find_hosts()
    passed = scenario.run()
    report.write(layout.root, {'phases': scenario.phases, 'events': scenario.events,
                               'with_package': args.package})
    for entry in scenario.phases:
        print(f'{"passed" if entry["passed"] else "FAILED"}  {entry["seconds"]:6.0f} s  '
              f'{entry["name"]}')
    print(f'report: {layout.root}/run.html')
    return 0 if passed else 1


def _status(layout, _args):
    running = {service.name: service.pid() for service in control.services(layout)}
    for name, pid in running.items():
        print(f'{name:18} {f"pid {pid}" if pid else "-":12} {layout.log(name)}')
    return 0 if all(running.values()) else 3


def main():
    parser = argparse.ArgumentParser(
        prog='python -m tests.stack', description=__doc__.splitlines()[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest='verb', required=True, metavar='VERB')
    up = verbs.add_parser('up', help='start what does not run')
    up.add_argument('--hosts', action='store_true',
                    help='also two emulated compute hosts, with the package as the guide says')
    up.add_argument('--without-package', dest='package', action='store_false',
                    help='a stack as it is without us, for comparison')
    run = verbs.add_parser('run', help='go through the scenario on a stack that is up with hosts')
    run.add_argument('--without-package', dest='package', action='store_false')
    verbs.add_parser('build', help="build the compute hosts' image and freeze a booted host")
    down = verbs.add_parser('down', help='end everything and forget its data')
    down.add_argument('--keep-data', action='store_true', help='keep databases and images')
    verbs.add_parser('status', help='say what runs, and where its log is')
    shell = verbs.add_parser('shell', help='run a command with the credentials of the stack')
    shell.add_argument('command', nargs=argparse.REMAINDER, metavar='CMD')
    args = parser.parse_args()
    layout = Layout()
    try:
        if args.verb == 'up':
            _up(layout, args)
            print('up: make stack-shell; make stack-down ends it')
        elif args.verb == 'build':
            from tests.stack import compute
            print(compute.freeze())
        elif args.verb == 'down':
            from tests.stack import compute
            ended = compute.down() + control.down(layout, args.keep_data)
            print('ended: ' + (', '.join(ended) or 'nothing ran'))
        else:
            return {'status': _status, 'shell': _shell, 'run': _run}[args.verb](layout, args)
    except StackError as error:
        print(f'stack: {error}', file=sys.stderr)
        return 1
    return 0


if __name__ == '__main__':
    sys.exit(main())
