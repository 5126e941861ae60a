# SPDX-License-Identifier: Apache-2.0
"""Boot many servers within seconds with several nova-schedulers, and count them per host.

Each scheduler reads hosts from the database, where a guest is counted once its nova-compute has
claimed it, seconds after the decision. Until then, other schedulers do not know of the decision.
"""

import collections
import concurrent.futures
import contextlib
import dataclasses
import json
import logging
import math
import os
import shutil
import signal
import time
from typing import Any

from tests.stack import config, control, fakehosts, figures, logs, scenario
from tests.stack.progress import Database, Progress
from tests.stack.service import StackError, print_step, wait

#: The flavor of every guest: five take a sixth of a host's memory.
FLAVOR = {'vcpus': 4, 'ram': 8192, 'disk': 0}
#: How long building a guest takes, minimum and maximum [s].
BUILD_S = 5.0, 180.0
#: Workers of nova-conductor, through which every claim goes.
CONDUCTORS = 2
#: Time limits [s]: until schedulers have started, until all guests have a host, until all are
#: gone, and until all are built, in addition to the build times.
START_S, HOSTS_S, DELETED_S, ACTIVE_S = 240, 420, 420, 300
#: Interval at which the database is polled [s], and how many servers are deleted at once.
POLL_S, DELETED_AT_ONCE = 0.2, 8
#: Interval of progress reports during a wait [s].
PROGRESS_S = 15
#: Number of guests that are built at a time on a host; the next one is not claimed before one of
#: them runs (Nova's max_concurrent_builds).
BUILDS_AT_ONCE = 10
_READY = 'Join ServiceGroup membership for this service scheduler'
_SCHEDULER = 'nova-scheduler'


@dataclasses.dataclass(frozen=True)
class Plan:
    """The plan of a measurement.

    :ivar schedulers: numbers of nova-scheduler's workers, tried one after the other
    :ivar subsets: values of ``host_subset_size``, likewise with each of these
    :ivar without: whether to measure also without the package
    :ivar seconds: time within which a round's requests are sent
    :ivar build_scale: factor for :data:`BUILD_S`
    :ivar interval_s: how often hosts report; Nova's default is 60
    :ivar minutes: no round starts that would end later, counted from the very start; each
        variant has at least one; None means no limit
    :ivar hold: whether schedulers wait until all requests have been accepted
    :ivar keep: whether to leave everything running
    """

    schedulers: tuple[int, ...] = (2, 4, 8, 16)
    subsets: tuple[int, ...] = (1,)
    without: bool = False
    rounds: int = 5
    boots: int = 100
    seconds: float = 10.0
    computes: int = 20
    build_scale: float = 1.0
    seed: int = 1
    interval_s: int = 30
    minutes: float | None = None
    hold: bool = False
    keep: bool = False

    @property
    def build_s(self):
        """Return how long building a guest takes, minimum and maximum [s]."""
        return tuple(round(self.build_scale * bound_s, 3) for bound_s in BUILD_S)

    def variants(self):
        """Return [(schedulers, host_subset_size, with the package)]."""
        return [
            (count, subset, package)
            for count in self.schedulers
            for subset in self.subsets
            for package in ((True, False) if self.without else (True,))
        ]


#: A quick try of whether everything works.
SMOKE = Plan(
    schedulers=(1,),
    without=True,
    rounds=1,
    boots=5,
    seconds=2.0,
    computes=3,
    build_scale=0.02,
    interval_s=10,
)


class Herd:
    """A running stack with fake hosts."""

    def __init__(self, layout, plan):
        """Start a new stack."""
        self.layout, self.plan = layout, plan
        scenario.stop_all(layout)
        layout.name_logs('herd')
        shutil.rmtree(layout.logs, ignore_errors=True)
        control.up(layout, with_package=True)
        # As many as answer while a hundred clients request servers.
        logging.getLogger('urllib3').setLevel(logging.ERROR)
        self._more_workers()
        self.cloud = control.connect(layout)
        self.database = Database(layout)
        self.hosts = fakehosts.names(plan.computes)
        began = time.monotonic()
        fakehosts.start(layout, self.cloud, self.hosts, plan.interval_s, plan.build_s, plan.seed)
        print_step(f'{plan.computes} hosts: {time.monotonic() - began:.0f} s')
        self.server = self._make_image_and_flavor()

    def _more_workers(self):
        """Let nova-conductor and nova-api use both of the machine's cores."""
        with open(self.layout.conf('nova.conf'), 'a') as file:
            file.write(f'\n[conductor]\nworkers = {CONDUCTORS}\n')
        self._restart('nova-conductor', 'Starting conductor node', CONDUCTORS)
        os.kill(self._service('nova-api').pid(), signal.SIGTTIN)  # gunicorn's: one more

    def _service(self, name):
        return next(service for service in control.services(self.layout) if service.name == name)

    def _restart(self, name, line, count):
        """Restart a service, which is ready when its log has this number of additional lines."""
        service = self._service(name)
        pid = service.pid()
        service.stop(fakehosts.STOP_S)
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # no worker takes up requests any more
        before = service.log.stat().st_size
        service.ready = lambda: _read_from(service.log, before).count(line) >= count
        service.timeout_s = START_S
        service.start()
        return service

    def _make_image_and_flavor(self):
        disk = self.layout.run / 'empty.raw'
        disk.write_bytes(bytes(1 << 20))
        image = self.cloud.create_image(
            'herd', filename=str(disk), disk_format='raw', container_format='bare', wait=True
        )
        flavor = self.cloud.compute.create_flavor(name='herd', **FLAVOR)
        return {'image_id': image.id, 'flavor_id': flavor.id, 'networks': 'none'}

    def start_schedulers(self, count, subset, with_package):
        """Replace nova-scheduler with one that has this number of workers."""
        for name, text in config.schedulers(count, subset, with_package).items():
            self.layout.conf(name).write_text(text)
        began = time.monotonic()
        self.schedulers = self._restart(_SCHEDULER, _READY, count)
        # Workers inherit a connection that nova-scheduler opened before it forked them, and would
        # get each other's answers from it: new workers of Placement close it.
        os.kill(self._service('placement').pid(), signal.SIGHUP)
        label = figures.variant_label(count, subset, with_package)
        print_step(f'{label}: up after {time.monotonic() - began:.0f} s')

    def wait_until_counted(self, with_package):
        """Wait until no host knows of any guest."""
        bound_s = 3 * self.plan.interval_s + 120
        self._wait(
            lambda: not figures.hosts_not_ready(self.database.hosts(), with_package),
            bound_s,
            'the hosts report that they are empty',
            self.layout.log(f'nova-compute-{self.hosts[0]}'),
            lambda: str(figures.hosts_not_ready(self.database.hosts(), with_package)),
        )

    def _wait(self, ready, timeout_s, what, log, progress):
        """Wait like :func:`wait`; report the progress from time to time and on a timeout."""
        reported_s = time.monotonic()

        def ready_or_report():
            nonlocal reported_s
            answer = ready()
            if not answer and time.monotonic() > reported_s + PROGRESS_S:
                reported_s = time.monotonic()
                print_step(f'  {progress()}')
            return answer

        try:
            wait(ready_or_report, timeout_s, what, log, POLL_S)
        except StackError as error:
            faults = '; '.join(self.database.faults()[:3])
            raise StackError(
                f'{error}: {progress()}' + (f'; {faults}' if faults else '')
            ) from None

    def round(self, number, with_package):
        """Boot, wait until all run, delete; return the findings."""
        began, log = time.monotonic(), self.layout.log(_SCHEDULER)
        self.wait_until_counted(with_package)
        before, progress = log.stat().st_size, Progress(self.database, FLAVOR['vcpus'])
        # If all go to one host.
        builds_s = self.plan.build_s[1] * (1 + self.plan.boots / BUILDS_AT_ONCE)
        names = [f'herd-{number}-{at:03}' for at in range(self.plan.boots)]
        with _send_requests(names, self.plan.seconds, self._boot) as requests:
            with self._schedulers_stopped():
                self._wait(
                    lambda: progress.poll() or _all_done(requests),
                    HOSTS_S,
                    'Nova has answered all requests',
                    self.layout.log('nova-api'),
                    progress.text,
                )
            answers = [request.result() for request in requests]
            servers = {answer['id'] for answer in answers if answer['id']}
            self._wait(
                lambda: progress.poll() or progress.is_complete(servers),
                HOSTS_S + builds_s,
                'all servers have a host',
                self.layout.log('nova-conductor'),
                progress.text,
            )
        findings = self._findings(answers, progress, _read_from(log, before), with_package)
        print_step(f'round {number}: most on a host {findings["most"]}: {findings["counts"]}')
        print_step(
            f'  by Placement, where each has room for {findings["room"]}: {findings["promised"]}'
        )
        self._wait(
            lambda: (
                progress.poll() or progress.active | progress.failed | progress.refused >= servers
            ),
            ACTIVE_S + builds_s,
            'all servers are built',
            self.layout.log(f'nova-compute-{self.hosts[0]}'),
            progress.text,
        )
        findings['failed'], findings['faults'] = len(progress.failed), self.database.faults()[:3]
        self._delete(servers)
        findings['seconds'] = round(time.monotonic() - began, 1)
        return findings

    def _boot(self, name):
        return self.cloud.compute.create_server(name=name, **self.server).id

    @contextlib.contextmanager
    def _schedulers_stopped(self):
        """Stop the schedulers within the block if the plan says so."""
        if not self.plan.hold:
            yield
            return
        os.killpg(self.schedulers.pid(), signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self.schedulers.pid(), signal.SIGCONT)

    def _findings(self, answers, progress, text, with_package):
        """Combine a round's figures."""
        selected, retries = figures.decisions(text)
        weighed = logs.weighings(text)
        if bool(weighed) != with_package:
            raise StackError(
                f'{len(weighed)} hosts weighed by the package: {progress.text()}; see '
                f'{self.layout.log(_SCHEDULER)}'
            )
        decided = {server: at_s for server, (at_s, _) in selected.items()}
        counted = figures.counted_at(progress.claims, progress.polls, FLAVOR['vcpus'])
        hosts = {server: host for server, (_, host) in progress.claims.items()}
        counts = collections.Counter(hosts.values())
        promised = self.database.promised()
        sent = [answer['sent_s'] for answer in answers]
        errors = [answer['error'] for answer in answers if answer['error']]
        return {
            'most': max(counts.values(), default=0),
            'counts': sorted((counts[host] for host in self.hosts), reverse=True),
            'promised': sorted(
                (promised.get(host, (0, 0))[0] // FLAVOR['ram'] for host in self.hosts),
                reverse=True,
            ),
            'room': max((most // FLAVOR['ram'] for _, most in promised.values()), default=None),
            'placed': len(hosts),
            'refused': len(progress.refused),
            'not_accepted': len(errors),
            'errors': sorted(set(errors))[:3],
            'retries': retries,
            'reschedules': sum(
                selected.get(server, (0, host))[1] != host for server, host in hosts.items()
            ),
            'weighed': len(weighed),
            'unknown': sum(weighing['why'].startswith('unknown') for weighing in weighed),
            'sent_s': round(max(sent) - min(sent), 1),
            'requests_s': round(max(answer['answered_s'] for answer in answers) - min(sent), 1),
            'decisions_s': (
                round(max(decided.values()) - min(decided.values()), 1) if decided else None
            ),
            'claimed_s': figures.delays_s(
                decided, {s: at for s, (at, _) in progress.claims.items()}
            ),
            'counted_s': figures.delays_s(decided, counted),
            'under_way': figures.under_way(decided, counted),
        }

    def _delete(self, servers):
        def delete_one(server):
            try:
                self.cloud.compute.delete_server(server)
            except Exception as error:  # the others must be deleted, and this one is waited for
                print_step(f'{server} is not deleted: {error}')

        with concurrent.futures.ThreadPoolExecutor(DELETED_AT_ONCE) as pool:
            list(pool.map(delete_one, servers))
        self._wait(
            lambda: not self.database.servers() and not self.database.refused(),
            DELETED_S,
            'all servers are deleted',
            self.layout.log(f'nova-compute-{self.hosts[0]}'),
            lambda: f'{len(self.database.servers())} are there',
        )


@contextlib.contextmanager
def _send_requests(names, seconds, ask):
    """Request servers, evenly over this number of seconds; yield futures of the answers.

    These are {'id', 'error', 'sent_s', 'answered_s'}. If the block is left by an error, what has
    not been requested yet is left out.
    """
    began, pool = time.time(), concurrent.futures.ThreadPoolExecutor(len(names))

    def send_one(at, name):
        time.sleep(max(0.0, began + seconds * at / len(names) - time.time()))
        answer: dict[str, Any] = {'id': None, 'error': None, 'sent_s': time.time()}
        try:
            answer['id'] = ask(name)
        except Exception as error:  # whatever the error, the others continue
            answer['error'] = f'{type(error).__name__}: {error}'[:300]
        return {**answer, 'answered_s': time.time()}

    try:
        yield [pool.submit(send_one, at, name) for at, name in enumerate(names)]
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _all_done(futures):
    return all(future.done() for future in futures)


def _read_from(log, at):
    """Return a log's text from that byte on."""
    with open(log, 'rb') as file:
        file.seek(at)
        return file.read().decode(errors='replace')


def new_report(plan):
    """Return a report without any round."""
    return {
        'plan': dataclasses.asdict(plan),
        'cpus': os.cpu_count(),
        'flavor': FLAVOR,
        'build_s': plan.build_s,
        'blind': figures.blind_choice(plan.boots, plan.computes),
        'variants': [],
    }


def measure(layout, plan, report):
    """Start the stack, measure each variant, add it to the report, and stop the stack.

    The report is also written to ``herd.json`` after each round.
    """
    began = time.monotonic()
    try:
        herd = Herd(layout, plan)
        variants, set_up = plan.variants(), time.monotonic()
        report['set_up_s'] = round(set_up - began)
        for at, (count, subset, package) in enumerate(variants, 1):
            herd.start_schedulers(count, subset, package)
            variant = {'schedulers': count, 'subset': subset, 'package': package, 'rounds': []}
            until = math.inf
            if plan.minutes:
                # Each variant gets an equal share of the remaining time for rounds.
                until = set_up + (began + 60 * plan.minutes - set_up) * at / len(variants)
            for number in range(1, plan.rounds + 1):
                done = variant['rounds']
                if done and time.monotonic() + done[-1]['seconds'] > until:
                    print_step(f'{len(done)} rounds of {plan.rounds}: no time for more')
                    break
                done.append(herd.round(number, package))
                variant['summary'] = figures.summary(done)
                if len(done) == 1:
                    report['variants'].append(variant)
                (layout.root / 'herd.json').write_text(json.dumps(report, indent=1))
                print_step(f'round {number}: {figures.summary_lines(done[-1])}')
    finally:
        if not plan.keep:
            scenario.stop_all(layout)
