# SPDX-License-Identifier: Apache-2.0
"""Start the same six guests in each way on an emulated two-node host, and compare the results.

examples:
  make demo
  make demo ARGS='--only placed'
  python -m tests.lab.demo --only floating,placed,bound --out build/bound
  make demo ARGS='--picture doc/source/_static/demo.png'

arrangements: floating (the kernel's NUMA balancing off), balanced (on), numad (libvirt's
placement='auto'), placed (our hook and agent), bound (with [hook] bind = true).

Writes report.json, report.txt and report.png to the directory of --out. To refresh the picture
in README.rst, use --picture, and also correct the figures in its text.

If an arrangement fails, the others still run; the report and the picture say so and why, and
--only runs it again and joins it to them.

exit codes: 0 our guests are spread evenly and have at least 56 times fewer remote accesses than
floating ones; 1 they do not: the report says which; 2 usage; 3 the lab or an arrangement failed.
"""

import argparse
import io
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

from machine import image  # noqa: E402
from machine.qmp import QmpError  # noqa: E402
from machine.vm import MachineError  # noqa: E402
from rich.console import Console  # noqa: E402

from tests.lab.demo import (
    report,  # noqa: E402
    scenario,  # noqa: E402
    show,  # noqa: E402
)

LAB_ERRORS = (
    AssertionError,  # the agent did not do something in time
    MachineError,
    image.BuildError,
    QmpError,
    OSError,
    ValueError,
    subprocess.SubprocessError,
)
TEXT_WIDTH = 150


def print_progress(line):
    """Report progress."""
    print(f'demo: {line}', file=sys.stderr, flush=True)


def _names(text):
    names = text.split(',')
    unknown = [name for name in names if name not in scenario.ARRANGEMENTS]
    if unknown:
        raise argparse.ArgumentTypeError(
            f'{unknown[0]!r}: choose from {", ".join(scenario.ARRANGEMENTS)}'
        )
    return names


def parse_args(argv=None):
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog='python -m tests.lab.demo',
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--out',
        type=pathlib.Path,
        default=pathlib.Path('build/demo'),
        metavar='DIR',
        help='directory for the report (default build/demo)',
    )
    parser.add_argument(
        '--only',
        type=_names,
        metavar='NAME[,NAME…]',
        help='run these arrangements, and join them to the report in the directory of --out '
        f'(default: begin a new report, with {",".join(scenario.DEFAULT)})',
    )
    parser.add_argument(
        '--picture',
        type=pathlib.Path,
        metavar='FILE',
        help='also draw the plot into this file, such as the one that README.rst shows',
    )
    return parser.parse_args(argv)


def record_all(names, steps, runs):
    """Run the arrangements and put them into {name: run}.

    One that fails is recorded as failed, and the next one is tried.
    """
    for name in names:
        arrangement = scenario.ARRANGEMENTS[name]
        try:
            record = scenario.run(f'demo-{os.getpid()}', arrangement, steps)
        except LAB_ERRORS as error:
            print_progress(f'{name} failed: {error}')
            runs[name] = {'title': arrangement.title, 'failed': str(error)}
            continue
        run = runs[name] = report.summarize(record, scenario.SHAPE.nodes)
        print_progress(
            f'{name}: {":".join(map(str, run["guests_per_node"]))}, at least '
            f'{run["home_share_min"]:.1%} at home, {show.count(run["local"])} local and '
            f'{show.count(run["remote"])} remote accesses'
        )


def print_report(console, findings):
    """Print table and verdicts."""
    console.print(show.summary(findings))
    console.print(show.verdicts(findings))


def save(findings, directory, picture=None):
    """Save report.json, report.txt and report.png, and the plot also to another file."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / 'report.json').write_text(json.dumps(findings, indent=1) + '\n')
    text = io.StringIO()
    print_report(Console(file=text, width=TEXT_WIDTH), findings)
    (directory / 'report.txt').write_text(text.getvalue())
    for path in filter(None, (directory / 'report.png', picture)):
        show.picture(findings, path)


def main(argv=None):
    """Run the demo; return its exit code."""
    args, runs, status = parse_args(argv), {}, 0
    if args.only and (args.out / 'report.json').exists():
        former = json.loads((args.out / 'report.json').read_text())
        if (former['schema'], former.get('settings')) != (report.SCHEMA, scenario.SETTINGS):
            print_progress(f'{args.out}/report.json is of another release: name another --out')
            return 2
        runs = former['runs']
    names = args.only or list(scenario.DEFAULT)
    steps = scenario.Steps(print_progress)
    scenario.end_on_sigterm()
    try:
        scenario.build(steps)
        record_all(names, steps, runs)
    except KeyboardInterrupt:
        print_progress('interrupted; the machine is down')
        status = 130
    except LAB_ERRORS as error:
        print_progress(f'the lab failed: {error}')
        return 3
    if not runs:
        return status
    for name in names:
        title = scenario.ARRANGEMENTS[name].title
        runs.setdefault(name, {'title': title, 'failed': 'interrupted'})
    findings = report.report(
        {name: runs[name] for name in scenario.ARRANGEMENTS if name in runs},
        scenario.SETTINGS,
        steps.phases_s,
    )
    save(findings, args.out, args.picture)
    print_report(Console(width=None if sys.stdout.isatty() else TEXT_WIDTH), findings)
    print(f'report: {args.out}/report.json, report.txt, report.png')
    failed = ','.join(name for name, run in findings['runs'].items() if 'failed' in run)
    if failed:
        print_progress(f'failed: to run again: --only {failed} --out {args.out}')
        status = status or 3
    for check in report.missed(findings):
        print_progress(f'not met: {check["name"]}: {check["value"]}')
        status = status or 1
    return status


if __name__ == '__main__':
    sys.exit(main())
