# SPDX-License-Identifier: Apache-2.0
"""Start the same six guests in each way on an emulated two-node host, and compare the results.

examples:
  make demo
  make demo ARGS='--skew 0 --parallel 1'
  make demo ARGS='--only placed'
  python -m tests.lab.demo --only floating,placed,bound --out build/bound
  python -m tests.lab.demo --json >report.json
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


def _integer_from(least):
    def parse(text):
        number = int(text)
        if number < least:
            raise ValueError
        return number

    parse.__name__ = f'whole number from {least}'
    return parse


def parse_args(argv=None):
    """Parse the command line."""
    plan = scenario.Plan()
    parser = argparse.ArgumentParser(
        prog='python -m tests.lab.demo',
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        '--out',
        type=pathlib.Path,
        default=pathlib.Path('build/demo'),
        metavar='DIR',
        help='directory for the report (default build/demo)',
    )
    add(
        '--only',
        type=_names,
        metavar='NAME[,NAME…]',
        help='run these arrangements, and join them to the report in the directory of --out '
        f'(default: begin a new report, with {",".join(scenario.DEFAULT)})',
    )
    add(
        '--skew',
        type=_integer_from(0),
        default=plan.skew_mib,
        metavar='MIB',
        help=f'memory taken on node 0 before (default {plan.skew_mib})',
    )
    add(
        '--parallel',
        type=_integer_from(1),
        default=plan.parallel,
        metavar='N',
        help=f'guests that start at the same time (default {plan.parallel})',
    )
    add(
        '--windows',
        type=_integer_from(1),
        default=plan.windows,
        metavar='N',
        help=f'how often to count; the counts are summed (default {plan.windows})',
    )
    add(
        '--seconds',
        type=_integer_from(1),
        default=plan.window_s,
        metavar='N',
        help=f'length of a window (default {plan.window_s})',
    )
    add(
        '--balance',
        type=_integer_from(0),
        default=plan.balance_s,
        metavar='N',
        help=f"seconds for the kernel's balancing before it is counted (default {plan.balance_s})",
    )
    add(
        '--picture',
        type=pathlib.Path,
        metavar='FILE',
        help='also draw the plot into this file, such as the one that README.rst shows',
    )
    add('--json', action='store_true', help='print the report as JSON instead of tables')
    return parser.parse_args(argv)


def record_all(args, plan, steps, runs):
    """Run the arrangements and put them into {name: run}.

    One that fails is recorded as failed, and the next one is tried.
    """
    for name in args.only:
        arrangement = scenario.ARRANGEMENTS[name]
        try:
            record = scenario.run(f'demo-{os.getpid()}', arrangement, plan, steps)
        except LAB_ERRORS as error:
            print_progress(f'{name} failed: {error}')
            runs[name] = {'title': arrangement.title, 'failed': str(error)}
            continue
        runs[name] = report.summarize(record, plan.shape.nodes)
        _print_result(name, runs[name])


def _print_result(name, run):
    print_progress(
        f'{name}: {":".join(map(str, run["guests_per_node"]))}, at least '
        f'{run["home_share_min"]:.1%} at home, {show.count(run["local"])} local and '
        f'{show.count(run["remote"])} remote accesses'
    )


def settings_of(plan):
    """Return what the runs of a report have in common, in the form that JSON has."""
    return {
        'nodes': plan.shape.nodes,
        'cpus_per_node': plan.shape.cpus_per_node,
        'memory_mib': list(plan.shape.memory_mib),
        'skew_mib': plan.skew_mib,
        'guest_memory_mib': plan.memory_mib,
        'guest_cmdline': scenario.CMDLINE,
        'parallel': plan.parallel,
        'windows': plan.windows,
        'window_s': plan.window_s,
        'balance_s': plan.balance_s,
    }


def print_report(console, findings):
    """Print tables, bars and verdicts."""
    for part in (
        show.summary(findings),
        show.guests(findings),
        show.bars(findings),
        show.verdicts(findings),
    ):
        console.print(part)
    console.print(show.notes(findings))
    console.print(
        'seconds: '
        + ', '.join(f'{phase} {seconds:.0f}' for phase, seconds in findings['phases_s'].items())
        + f', in all {findings["total_s"]:.0f}',
        highlight=False,
    )


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
    args = parse_args(argv)
    plan = scenario.Plan(
        skew_mib=args.skew,
        windows=args.windows,
        window_s=args.seconds,
        balance_s=args.balance,
        parallel=args.parallel,
    )
    runs = {}
    if args.only and (args.out / 'report.json').exists():
        former = json.loads((args.out / 'report.json').read_text())
        runs = report.comparable_runs(former, settings_of(plan))
        if runs is None:
            print_progress(
                f'{args.out}/report.json has other settings or another format: name another --out'
            )
            return 2
    args.only = args.only or list(scenario.DEFAULT)
    steps, status = scenario.Steps(print_progress), 0
    scenario.end_on_sigterm()
    try:
        scenario.build(plan, steps)
        record_all(args, plan, steps, runs)
    except KeyboardInterrupt:
        print_progress('interrupted; the machine is down')
        status = 130
    except LAB_ERRORS as error:
        print_progress(f'the lab failed: {error}')
        return 3
    if not runs:
        return status
    interrupted = {
        name: {'title': scenario.ARRANGEMENTS[name].title, 'failed': 'interrupted'}
        for name in args.only
    }
    runs = {**interrupted, **runs}
    findings = report.report(
        {name: runs[name] for name in scenario.ARRANGEMENTS if name in runs},
        {**settings_of(plan), 'host': scenario.host_facts(), 'command': sys.orig_argv},
        steps.phases_s,
    )
    save(findings, args.out, args.picture)
    if args.json:
        print(json.dumps(findings))
    else:
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
