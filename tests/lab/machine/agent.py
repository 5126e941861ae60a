# SPDX-License-Identifier: Apache-2.0
"""nova-numa-agent in a machine, under the unit that the package ships."""

import json
import re
import time

UNIT = 'nova-numa-agent'
#: The directory of the package's units, in words of a shell.
SHIPPED = (
    '"$(python3 -c \'import sysconfig; print(sysconfig.get_path("data"))\')"'
    '/share/nova-numa-pmc/systemd'
)
INTERVAL_S = 8  # a tick alone takes a second in emulation
#: Beginning of a line about a stage of a tick that failed; until November 2026, it was "fails".
STAGE_FAILED = re.compile(r'[^:]+ fail(ed|s): ')


class Agent:
    """The service in a machine.

    :param lab: the machine's ``conftest.Lab``
    """

    def __init__(self, lab, interval_s=INTERVAL_S):
        self.lab, self.run, self.interval_s = lab, lab.run, interval_s
        self._since_s = self.run('date +%s.%N').stdout.strip()

    def start(self, **options):
        """Install the unit and start it; return once the agent has reported that it is ready."""
        lines = ['[counters]', f'interval_s = {self.interval_s}', '[agent]'] + [
            f'{name} = {value}' for name, value in options.items()
        ]
        self.run('cat >>/etc/nova-numa-pmc/nova-numa-pmc.conf', stdin='\n'.join(lines) + '\n')
        self.run(
            f'cp {SHIPPED}/{UNIT}.service /etc/systemd/system/ && '
            f'install -D -m 644 -t /etc/systemd/system/{UNIT}.service.d '
            f'{SHIPPED}/perf-paranoid.conf && '
            f'systemctl daemon-reload && systemctl start {UNIT}',
            timeout=200,
        )

    def stop(self):
        """Stop the package's services and remove their units."""
        self.run(
            "systemctl stop 'nova-numa-*'; rm -rf /etc/systemd/system/nova-numa-*.service*; "
            'systemctl daemon-reload',
            timeout=200,
            check=False,
        )

    def show(self, name):
        """Return one of the service's systemd properties."""
        return self.run(f'systemctl show -P {name} {UNIT}').stdout.strip()

    def journal(self):
        """Return the lines that the service has logged since this object was made."""
        return self.run(
            f'journalctl -q -u {UNIT} -o cat --no-pager --since=@{self._since_s}'
        ).stdout.splitlines()

    def failures(self):
        """Return the logged lines about stages that failed."""
        return list(filter(STAGE_FAILED.match, self.journal()))

    def published(self):
        """Return (what is published, its age [s])."""
        text = self.run('cat /run/nova-numa-pmc/host; date +%s.%N').stdout
        host, now_s = text.rstrip('\n').rsplit('\n', 1)
        host = json.loads(host)
        return host, float(now_s) - host['taken_s']

    def after(self, intervals=2, every_s=0.5):
        """Wait until this number of whole intervals from now is published; return the last."""
        began_s = float(self.run('date +%s.%N').stdout)
        return self.until(
            lambda: self.published()[0],
            lambda host: host['taken_s'] > began_s + intervals * self.interval_s,
            120 + intervals * self.interval_s,
            every_s,
        )

    def until(self, ask, holds, seconds=120, every_s=0.5):
        """Ask until the answer fulfils the condition; return it.

        :param every_s: asking takes a CPU of the machine for a second, which the agent measures
        """
        deadline = time.monotonic() + seconds
        while True:
            answer = ask()
            if holds(answer):
                return answer
            if time.monotonic() > deadline:
                print('\n'.join(self.journal()[-20:]))
                raise AssertionError(f'not within {seconds} s: {answer}')
            time.sleep(every_s)
