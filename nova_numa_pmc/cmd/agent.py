# SPDX-License-Identifier: Apache-2.0
"""Measure this host, publish the results, and keep guests where they belong.

The agent needs root and runs until it is stopped, usually as a systemd service. A move in
progress is then kept if most of the memory has moved, and undone otherwise.

examples:
  systemctl enable --now nova-numa-agent     # the usual way
  nova-numa-agent --check                    # are the options right?

exit codes: 0 stopped, or done; 1 a problem (printed with its remedy);
64 usage error
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import logging
import os
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.agent import binding
from nova_numa_pmc.agent.agent import Agent, hold_agent_lock, run
from nova_numa_pmc.agent.metrics import MetricsFile
from nova_numa_pmc.cli import arguments, tables
from nova_numa_pmc.conf import host_options, opts
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import process

if TYPE_CHECKING:
    from collections.abc import Sequence

LOG = logging.getLogger('nova_numa_pmc.agent')
#: Modules that others import late, to keep the hook fast. The agent imports them at its start: it
#: keeps running while an upgrade replaces the package's files, and must not mix in modules of the
#: new version.
LATE_MODULES = (
    'core.extra_specs',
    'core.host_view',
    'core.placement.l3',
    'core.placement.placement',
    'host.cpusets',
)
for _name in LATE_MODULES:
    importlib.import_module('nova_numa_pmc.' + _name)
#: (lowest level, priority) that journald reads at the beginning of a line (sd-daemon(3)).
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


_OPTIONS = (
    arguments.option(
        '--config-file',
        default=host_options.PATH,
        metavar='FILE',
        help='configuration file (default: %(default)s)',
    ),
    arguments.option('--root', default='/', help=argparse.SUPPRESS),
    arguments.VERSION,
    [
        arguments.option(
            '--check',
            action='store_true',
            help='read the options, report what is wrong with them and exit',
        ),
        arguments.option(
            '--unbind',
            action='store_true',
            help='unbind the memory of bound guests, then exit; the unit does this when the agent '
            'ends, because nothing watches their nodes after that',
        ),
    ],
)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = arguments.Parser(
        prog='nova-numa-agent',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    arguments.add(parser, _OPTIONS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the agent; return its exit code."""
    args = build_parser().parse_args(argv)
    log_to_stderr()
    try:
        if args.unbind:  # whatever else is wrong with the options
            hook_options = host_options.read(args.config_file)
            for problem in hook_options.problems:
                LOG.warning('%s', problem)
            binding.unbind_all(hook_options, args.root, LOG, 'the agent has ended')
            return 0
        if args.check:
            return _check(args.config_file)
        options = opts.read(args.config_file)
        for problem in options.host_options.problems:
            LOG.warning('%s', problem)
        with hold_agent_lock(options.host_options.state_path(args.root)):
            return _serve(args, options)
    except (NumaPmcError, OSError) as error:
        print('nova-numa-agent: %s' % error, file=sys.stderr)
        return 1


def _check(path: str) -> int:
    """Print what is wrong with a file of options; return the exit code."""
    from nova_numa_pmc.checks import compute_host  # which the service does not need

    findings = list(compute_host.check_options(path))
    lines = tables.finding_lines(findings)
    if not os.path.exists(path):
        lines.append('%s: there is no such file: all options have their defaults' % path)
    print('\n'.join(lines or ['%s: nothing wrong' % path]))
    return 1 if findings else 0


def _serve(args: argparse.Namespace, options: opts.AgentOptions) -> int:
    with process.blocked() as wait, contextlib.closing(Agent(options, args.root)) as agent:
        LOG.info(
            'started: interval %g s; rebalance: %s',
            options.counter_options.interval_s,
            options.rebalance,
        )
        run(
            agent,
            wait,
            MetricsFile(LOG, options.host_options.state_path(args.root)).write,
            watchdog_s=process.watchdog_s(),
        )
        LOG.info('stopped')
    return 0


class JournalFormatter(logging.Formatter):
    """Formatter for journald, which puts the priority in front of each line of a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, each preceded by the priority."""
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        lines = super().format(record).splitlines()
        return '\n'.join('<%d>%s' % (priority, line) for line in lines)


def log_to_stderr() -> None:
    """Log to standard error, with priorities if that is the journal, otherwise with timestamps."""
    handler = logging.StreamHandler()
    if os.environ.get('JOURNAL_STREAM'):
        handler.setFormatter(JournalFormatter('%(message)s'))
    else:
        handler.setFormatter(logging.Formatter('%(asctime)s %(levelname)s %(message)s'))
    logger = logging.getLogger('nova_numa_pmc')
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)


if __name__ == '__main__':
    sys.exit(main())
