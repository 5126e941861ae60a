# SPDX-License-Identifier: Apache-2.0
"""Measure this host, publish the results, and keep guests where they belong.

The agent needs root and runs until it is stopped, usually as a systemd service. On SIGHUP it
reads the options again. On SIGTERM, a move in progress continues for at most 10 s;
the move is then kept if most of the memory has moved, and undone otherwise.

examples:
  systemctl enable --now nova-numa-agent     # the usual way
  nova-numa-agent --once                     # measure and print one interval
  nova-numa-agent --once --json | jq '.nodes[] | {id, demand_cores}'
  nova-numa-agent --check                    # are the options right?

exit codes: 0 stopped, or done; 1 a problem (printed with its remedy);
64 usage error
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib
import json
import logging
import os
import sys
import time
from typing import TYPE_CHECKING

from nova_numa_pmc.agent import binding, loop
from nova_numa_pmc.agent.agent import Agent, hold_agent_lock
from nova_numa_pmc.agent.metrics import MetricsFile
from nova_numa_pmc.cli import arguments
from nova_numa_pmc.conf import agent as agent_conf, host_options
from nova_numa_pmc.exceptions import NumaPmcError, StateLocked
from nova_numa_pmc.host import guests, libvirt_events, process
from nova_numa_pmc.json_values import printable
from nova_numa_pmc.state import publication

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from nova_numa_pmc.state.publication import Publication

LOG = logging.getLogger('nova_numa_pmc.agent')
#: Modules that others import late, to keep the hook fast. The agent imports them at its start: it
#: keeps running while an upgrade replaces the package's files, and must not mix in modules of the
#: new version.
LATE_MODULES = (
    'core.extra_specs',
    'core.node_memory',
    'core.placement.explain',
    'core.placement.l3',
    'core.placement.placement',
    'host.cpusets',
    'host.page_moves.hugetlb',
)
for _name in LATE_MODULES:
    importlib.import_module('nova_numa_pmc.' + _name)
#: (lowest level, priority) that journald reads at the beginning of a line (sd-daemon(3)).
_PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser."""
    parser = arguments.Parser(
        prog='nova-numa-agent',
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        '--config-file',
        default=host_options.PATH,
        metavar='FILE',
        help='configuration file (default: %(default)s)',
    )
    parser.add_argument('--root', default='/', help=argparse.SUPPRESS)
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument(
        '--once',
        action='store_true',
        help='measure and publish one interval, print it and exit; nothing is moved, and '
        'nothing is published while the service runs',
    )
    modes.add_argument(
        '--check',
        action='store_true',
        help='read the options, report what is wrong with them and exit',
    )
    modes.add_argument(
        '--unbind',
        action='store_true',
        help='unbind the memory of bound guests, then exit; the unit does this when the agent '
        'ends, because nothing watches their nodes after that',
    )
    parser.add_argument(
        '--json', action='store_true', help='with --once: print what is published as JSON'
    )
    return parser


def main(argv: Sequence[str] | None = None, wait: Callable[[float], object] | None = None) -> int:
    """Run the agent; return its exit code.

    :param wait: waits for the given number of seconds, for --once; tests replace it
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.json and not args.once:
        parser.error('--json needs --once')
    try:
        if args.unbind:  # whatever else is wrong with the options
            log_plainly(logging.INFO)
            hook_options = host_options.read(args.config_file)
            for problem in hook_options.problems:
                LOG.warning('%s', problem)
            binding.unbind_all(hook_options, args.root, LOG, 'the agent has ended')
            return 0
        if args.check:
            return _check(args.config_file)
        options = agent_conf.read(args.config_file)
        set_up_logging(args.config_file, logging.WARNING if args.once else logging.INFO)
        for problem in options.host_options.problems:
            LOG.warning('%s', problem)
        directory = options.host_options.state_path(args.root)
        if args.once:
            return _once(args, options, directory, wait or time.sleep)
        with hold_agent_lock(directory):
            return _serve(args, options)
    except (NumaPmcError, OSError) as error:
        print('nova-numa-agent: %s' % error, file=sys.stderr)
        return 1


def _check(path: str) -> int:
    """Print what is wrong with a file of options; return the exit code."""
    from nova_numa_pmc.checks import capacity  # which the service does not need

    findings = list(capacity.check_options(path))
    for finding in findings:
        print('%s: %s' % (finding.severity, printable(finding.message)))
        print('  remedy: %s' % finding.remedy)
    if not os.path.exists(path):
        print('%s: there is no such file: all options have their defaults' % path)
    elif not findings:
        print('%s: nothing wrong' % path)
    return 1 if findings else 0


def _serve(args: argparse.Namespace, options: agent_conf.AgentOptions) -> int:
    # Signals are blocked before libvirt starts threads, which inherit the mask and therefore
    # receive no signals.
    with (
        process.blocked() as wait,
        contextlib.closing(Agent(options, args.root, _listener(args.root))) as agent,
    ):
        wait.watch(*agent.descriptors)
        LOG.info(
            'started: interval %g s; publish: %s; rebalance: %s',
            options.counter_options.interval_s,
            'yes' if options.publish else 'no',
            options.rebalance,
        )
        loop.AgentLoop(
            agent,
            lambda: agent_conf.read(args.config_file),
            LOG,
            wait,
            watchdog_s=process.watchdog_s(),
            write_metrics=MetricsFile(LOG, options.host_options.state_path(args.root)).write,
        ).run()
        LOG.info('stopped')
    return 0


def _listener(root: str) -> libvirt_events.Listener:
    listener = libvirt_events.Listener(
        functools.partial(guests.runtime_file_identity, root, suffix='.xml')
    )
    listener.start()
    return listener


def _once(
    args: argparse.Namespace,
    options: agent_conf.AgentOptions,
    directory: str,
    wait: Callable[[float], object],
) -> int:
    # A process that binds a guest's memory has to watch the guest's nodes; this one exits.
    options = options._replace(rebalance=agent_conf.OFF, reassert=False)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(hold_agent_lock(directory))
        except StateLocked:
            print(
                'the service is running: this measurement is separate and is not published',
                file=sys.stderr,
            )
            options = options._replace(publish=False)
        agent = stack.enter_context(contextlib.closing(Agent(options, args.root)))
        agent.tick()
        wait(options.counter_options.interval_s)
        last_publication = agent.tick().publication
    if last_publication is None:
        print('nova-numa-agent: nothing to publish: see the warnings above', file=sys.stderr)
        return 1
    if args.json:
        print(json.dumps(json.loads(publication.encode(last_publication))))
    else:
        print('\n'.join(to_lines(last_publication)))
    return 0


def to_lines(published: Publication) -> list[str]:
    """Return the publication as lines of text."""
    lines = ['over %.3g s, source: %s' % (published.interval_s, published.source or 'none')]
    for node in published.view.nodes:
        remote_ratio, demand_now_cores = node.remote_ratio, node.demand_now_cores
        demand = 'unknown' if node.demand_cores is None else '%.2f' % node.demand_cores
        bandwidth = (
            'unknown'
            if node.bandwidth_bytes_per_sec is None
            else '%.2f GB/s' % (node.bandwidth_bytes_per_sec / 1e9)
        )
        lines.append(
            'node %d: %s of %.3g cores wanted (now %s), bandwidth %s, remote %s, %.1f of %.1f '
            'GiB promised to %.3g guests'
            % (
                node.id,
                demand,
                node.cores,
                'unknown' if demand_now_cores is None else '%.2f' % demand_now_cores,
                bandwidth,
                'unknown' if remote_ratio is None else '%.2f %%' % (100 * remote_ratio),
                node.promised_bytes / 2**30,
                node.capacity_bytes / 2**30,
                node.guests,
            )
        )
    return lines


class JournalFormatter(logging.Formatter):
    """Formatter for journald, which puts the priority in front of each line of a record."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's lines, each preceded by the priority."""
        priority = next((number for level, number in _PRIORITIES if record.levelno >= level), 7)
        lines = super().format(record).splitlines()
        return '\n'.join('<%d>%s' % (priority, line) for line in lines)


def set_up_logging(config_file: str, level: int) -> None:
    """Set up oslo.log as the group [DEFAULT] configures it, or plain logging without oslo.log.

    Plain logging is also used if standard error is systemd's journal and no log destination is
    configured: oslo.log would add timestamps there and, before 5.1, colours. And it is used if
    oslo.log cannot be set up, because guests matter more than where the log is.

    :param level: the lowest level that plain logging shows
    :raises OptionsError: an option of oslo.log is wrong
    """
    conf = agent_conf.read_log_options(config_file)
    configured = conf is not None and (
        conf.log_file or conf.log_dir or conf.use_syslog or conf.use_journal or conf.use_stderr
    )
    if conf is None or (not configured and os.environ.get('JOURNAL_STREAM')):
        log_plainly(logging.DEBUG if conf is not None and conf.debug else level)
        return
    from oslo_log import log

    if not configured:
        conf.set_default('use_stderr', True)  # without a destination it would use stdout
    try:
        log.setup(conf, 'nova-numa-agent')
    except Exception as error:  # also what its handlers raise, such as without systemd-python
        log_plainly(level)
        LOG.warning(
            "oslo.log's options in [DEFAULT]: %s: logging to standard error instead; with the "
            'unit, a log file has to be in /var/log/nova-numa-pmc, and use_journal needs '
            'systemd-python',
            error,
        )


def log_plainly(level: int) -> None:
    """Log to standard error, with priorities if that is the journal, otherwise with timestamps."""
    handler = logging.StreamHandler()
    if os.environ.get('JOURNAL_STREAM'):
        handler.setFormatter(JournalFormatter('%(message)s'))
    else:
        handler.setFormatter(logging.Formatter('%(asctime)s %(levelname)s %(message)s'))
    logger = logging.getLogger('nova_numa_pmc')
    logger.handlers[:] = [handler]
    logger.propagate = False  # importing oslo.log gives the root logger a handler
    logger.setLevel(level)


if __name__ == '__main__':
    sys.exit(main())
