# SPDX-License-Identifier: Apache-2.0
"""Start processes that outlive the command which started them, and stop exactly those."""

import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request


class StackError(Exception):
    """Something did not start, or is not there; the message names the log to read."""


def print_step(text):
    """Report a step on standard error."""
    print(f'stack: {text}', file=sys.stderr, flush=True)


def wait(ready, timeout_s, what, log=None, pause_s=0.2):
    """Return ready()'s first true answer; raise StackError after timeout_s."""
    deadline = reported_s = time.monotonic()
    deadline += timeout_s
    while not (answer := ready()):
        now = time.monotonic()
        if now > deadline:
            raise StackError(f'{what}: not within {timeout_s} s' + (f'; see {log}' if log else ''))
        if now - reported_s > 20:
            reported_s = now
            print_step(f'  … {what}')
        time.sleep(pause_s)
    return answer


def is_listening(port):
    """Return whether something listens on that port of the loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(('127.0.0.1', port)) == 0


def answers_http(url):
    """Return whether that address answers with any status below 500."""
    try:
        with urllib.request.urlopen(url, timeout=20):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except OSError:
        return False


def _started_at(pid):
    """Return when a process started, in the kernel's ticks, or None if it has gone."""
    try:
        text = pathlib.Path(f'/proc/{pid}/stat').read_text()
    except OSError:
        return None
    state, *fields = text.rpartition(')')[2].split()
    return None if state == 'Z' else fields[18]


class Service:
    """A process in a session of its own, found again by pid and start time."""

    def __init__(self, layout, name, command=(), ready=None, timeout_s=60, environment=None):
        """Store how to run it; start() does.

        :param ready: called until true
        :param environment: variables in addition to this process's own
        """
        self.name, self.command, self.ready = name, [str(word) for word in command], ready
        self.timeout_s, self.environment = timeout_s, environment or {}
        self.log, self.pid_file = layout.log(name), layout.run / f'{name}.pid'

    def pid(self):
        """Return the process's id, or None if it does not run."""
        try:
            pid, started = self.pid_file.read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _started_at(int(pid)) == started else None

    def start(self):
        """Start the process unless it runs, and wait until it is ready."""
        if not self.pid():
            with open(self.log, 'ab') as log:
                process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    env={**os.environ, **self.environment},
                )
            self.pid_file.write_text(f'{process.pid} {_started_at(process.pid)}\n')
        wait(self._ready_or_gone, self.timeout_s, self.name, self.log)

    def _ready_or_gone(self):
        if not self.pid():
            tail = self.log.read_text(errors='replace').splitlines()[-8:]
            raise StackError('\n'.join([f'{self.name} ended; {self.log}:', *tail]))
        return self.ready is None or self.ready()

    def stop(self, timeout_s=20):
        """Stop the process and what it started; return whether it ran."""
        pid = self.pid()
        for number in (signal.SIGTERM, signal.SIGKILL) if pid else ():
            try:
                os.killpg(pid, number)
                wait(lambda: not self.pid(), timeout_s, f'{self.name} ends', self.log)
                break
            except ProcessLookupError:
                break
            except StackError:
                continue
        if self.pid():
            print_step(f'{self.name} does not end: pid {pid}')
        else:
            self.pid_file.unlink(missing_ok=True)
        return bool(pid)


def run(layout, name, command, timeout_s=600, environment=None):
    """Run a command with its output in a log until it ends; raise StackError if it fails."""
    log = layout.log(name)
    with open(log, 'ab') as sink:
        try:
            code = subprocess.run(
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                timeout=timeout_s,
                env={**os.environ, **(environment or {})},
                check=False,
            ).returncode
        except subprocess.TimeoutExpired:
            raise StackError(f'{name}: not within {timeout_s} s; see {log}') from None
    if code:
        tail = log.read_text(errors='replace').splitlines()[-8:]
        raise StackError('\n'.join([f'{name} failed ({code}); {log}:', *tail]))
