# SPDX-License-Identifier: Apache-2.0
"""Measure for how long a notification bus that never answers delays Nova's claims.

``python -m tests.nova.black_hole [LIMIT]`` in an environment of ``tools/setup nova34``. The bus is
a listener on the loopback interface that accepts connections but does not answer, either from
the beginning (never) or after it has accepted one notification as a broker does and closed its
connections (dies). Nova's resource tracker sends ``compute.metrics.update`` with
oslo.messaging's rabbit driver, with all timeouts at their defaults, while it holds the
semaphore that claims wait for; a claim follows immediately. For each
``[oslo_messaging_notifications] retry``, a separate process reports how long both took [s], or
that they had not ended after LIMIT (60) seconds, and how many connections were tried. The last
line of output is a JSON object.
"""

import itertools
import json
import socket
import struct
import subprocess
import sys
import threading
import time

from tests import nova

#: Nova's default, the value advised by ``check`` (``notifications-endless``), and none.
RETRIES = -1, 1, 0
LIMIT_S = 60


def _method(channel, number, arguments=b''):
    """Return an AMQP 0-9-1 frame with a method, which is (class, method), and its arguments."""
    payload = struct.pack('>HH', *number) + arguments
    return struct.pack('>BHI', 1, channel, len(payload)) + payload + b'\xce'


#: A broker's answer to each method of a publishing client, as short as possible.
ANSWERS = {
    (10, 11): ((10, 30), struct.pack('>HIH', 2047, 131072, 0)),  # start-ok: tune, no heartbeats
    (10, 40): ((10, 41), b'\0'),  # open
    (20, 10): ((20, 11), b'\0\0\0\0'),  # channel.open
    (40, 10): ((40, 11), b''),  # exchange.declare
    (50, 10): ((50, 11), b'\1q' + b'\0' * 8),  # queue.declare
    (50, 20): ((50, 21), b''),  # queue.bind
    (85, 10): ((85, 11), b''),  # confirm.select
}


class Bus:
    """A listener that accepts connections, and answers as a broker while ``answers``.

    A message counts as published once the frame with its body has arrived.
    """

    def __init__(self, answers):
        self.answers, self.kept, self.tried, self.published = answers, [], 0, 0
        self.listener = socket.create_server(('127.0.0.1', 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self):
        return 'rabbit://guest:guest@127.0.0.1:%d/' % self.listener.getsockname()[1]

    def die(self):
        """Close the existing connections, and stop answering."""
        self.answers, self.tried = False, 0
        for kept in self.kept:
            kept.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        while True:
            self.kept.append(self.listener.accept()[0])
            self.tried += 1
            if self.answers:
                threading.Thread(target=self._serve, args=self.kept[-1:], daemon=True).start()

    def _serve(self, client):
        stream = client.makefile('rb')
        stream.read(8)  # name and version of the protocol
        start = b'\0\x09' + b'\0' * 4 + b'\0\0\0\x08AMQPLAIN' + b'\0\0\0\x05en_US'
        client.sendall(_method(0, (10, 10), start))
        while len(header := stream.read(7)) == 7:
            kind, channel, size = struct.unpack('>BHI', header)
            payload = stream.read(size + 1)
            answer = ANSWERS.get(struct.unpack('>HH', payload[:4])) if kind == 1 else None
            if answer:
                client.sendall(_method(channel, *answer))
            elif kind == 3:
                self.published += 1
                client.sendall(_method(channel, (60, 80), struct.pack('>QB', self.published, 0)))


def measure(retry, case, limit_s):
    """Return how long an audit's notification and a claim behind it took.

    :param case: 'never': the bus never answers; 'dies': it accepts one audit's notification first
    """
    import datetime

    import nova.conf
    from nova import context, objects, rpc, utils
    from nova.compute import resource_tracker

    objects.register_all()
    bus, conf = Bus(case == 'dies'), nova.conf.CONF
    conf([], project='nova', default_config_files=[])
    rpc.init(conf)
    group = 'oslo_messaging_notifications'
    for name, value in (('driver', ['messagingv2']), ('transport_url', bus.url), ('retry', retry)):
        conf.set_override(name, value, group=group)
    conf.set_override('transport_url', bus.url)
    rpc.cleanup()
    rpc.init(conf)

    class Monitor:
        def populate_metrics(self, found):
            found.objects.append(
                objects.MonitorMetric(
                    name='numa.membw.current',
                    value=1,
                    source='test',
                    timestamp=datetime.datetime.now(datetime.timezone.utc),
                )
            )

    tracker = resource_tracker.ResourceTracker.__new__(resource_tracker.ResourceTracker)
    tracker.monitors, tracker.host = [Monitor()], 'one'
    locked = utils.synchronized(resource_tracker.COMPUTE_RESOURCE_SEMAPHORE, fair=True)
    inside, ended = threading.Event(), {}

    @locked
    def audit():
        inside.set()
        tracker._get_host_metrics(context.get_admin_context(), 'one')

    @locked
    def claim():
        pass

    def timed(name, work):
        start = time.monotonic()
        work()
        ended[name] = round(time.monotonic() - start, 1)

    if case == 'dies':
        tracker._get_host_metrics(context.get_admin_context(), 'one')
        assert bus.published == 1
        bus.die()
    threads = [threading.Thread(target=timed, args=('audit_s', audit), daemon=True)]
    threads[0].start()
    inside.wait(limit_s)
    threads.append(threading.Thread(target=timed, args=('claim_s', claim), daemon=True))
    threads[1].start()
    deadline = time.monotonic() + limit_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return {
        'audit_s': ended.get('audit_s'),
        'claim_s': ended.get('claim_s'),
        'connections': bus.tried,
    }


def main(limit_s=LIMIT_S):
    """Measure each combination; print a line for each, and the figures."""
    figures = {'limit_s': float(limit_s)}
    for case, retry in itertools.product(('never', 'dies'), RETRIES):
        done = subprocess.run(
            [
                sys.executable,
                '-m',
                'tests.nova.black_hole',
                '--one',
                case,
                str(retry),
                str(limit_s),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # one message per failed attempt
            text=True,
            check=True,
            cwd=nova.CHECKOUT,
        )
        figures[f'{case}, retry {retry}'] = figure = json.loads(done.stdout.splitlines()[-1])
        took = [
            'not ended' if figure[name] is None else f'{figure[name]:.1f} s'
            for name in ('audit_s', 'claim_s')
        ]
        print(
            f'{case:5}, retry = {retry:2}: audit {took[0]}, the claim behind it {took[1]}, '
            f'{figure["connections"]} connections tried',
            flush=True,
        )
    print(json.dumps(figures))


if __name__ == '__main__':
    if sys.argv[1:2] == ['--one']:
        print(json.dumps(measure(int(sys.argv[3]), sys.argv[2], float(sys.argv[4]))))
        sys.stdout.flush()
    else:
        main(*sys.argv[1:])
