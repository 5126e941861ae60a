# SPDX-License-Identifier: Apache-2.0
"""Run many fake compute hosts, each only a nova-compute, on this machine (inside/fakehost.py)."""

import concurrent.futures
import pathlib
import uuid

from tests.stack import compute, config, guide
from tests.stack.layout import VENV
from tests.stack.service import Service

PROGRAM = pathlib.Path(__file__).parent / 'inside/fakehost.py'
#: How many are started at once, and time limits for each and for all of them [s].
STARTS_AT_ONCE, START_S, ALL_S = 3, 240, 240
#: Nova would wait for work in progress.
STOP_S = 2
_PREFIX = 'nova-compute-'


def names(count):
    """Return the names of this number of hosts."""
    return [f'herd-{number:02}' for number in range(1, count + 1)]


def start(layout, cloud, hosts, interval_s, build_s, seed):
    """Start hosts and wait until Nova knows them.

    :param interval_s, build_s, seed: as in :func:`config.nova_fake_compute`
    """

    def one(name):
        state = layout.data / name
        for directory in (state / 'instances', state / 'locks'):
            directory.mkdir(parents=True, exist_ok=True)
        (state / 'compute_id').write_text(str(uuid.uuid5(uuid.NAMESPACE_DNS, name)))
        path = layout.conf(f'{name}.conf')
        path.touch(0o600)
        text = config.ini(config.nova_fake_compute(layout, name, interval_s, build_s, seed))
        path.write_text(text + '\n' + guide.compute_ini())
        published = state / 'nova-numa-pmc/host'
        published.unlink(missing_ok=True)
        service(layout, name, published.exists).start()

    pool = concurrent.futures.ThreadPoolExecutor(STARTS_AT_ONCE)
    try:
        list(pool.map(one, hosts))
    finally:
        # After an error, no more of them are started.
        pool.shutdown(cancel_futures=True)
    compute.wait_for_services(cloud, hosts, ALL_S)


def service(layout, name, ready=None):
    """Return a host's nova-compute."""
    return Service(
        layout,
        _PREFIX + name,
        [VENV / 'bin/python', PROGRAM, '--config-file', layout.conf(f'{name}.conf')],
        ready,
        START_S,
        {'PYTHONWARNINGS': 'ignore'},
    )


def down(layout):
    """Stop the hosts that run; return their names."""
    running = [
        path.stem.removeprefix(_PREFIX) for path in sorted(layout.run.glob(f'{_PREFIX}*.pid'))
    ]
    with concurrent.futures.ThreadPoolExecutor() as pool:
        ended = list(pool.map(lambda name: service(layout, name).stop(STOP_S), running))
    return [name for name, ran in zip(running, ended) if ran]
