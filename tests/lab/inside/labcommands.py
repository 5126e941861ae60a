#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside the machine: run libvirt's and systemd's own commands on guests, and show the effects.

    labcommands.py COMMAND=GUEST,CPU,NODE...

CPU and NODE must not be the guest's. Prints one JSON object
{command: {code, message, effect, wanted, works}}; with ``--no-run``, no command is run.
"""

import argparse
import json
import pathlib
import subprocess

ROOT = pathlib.Path('/sys/fs/cgroup')


def run(*words):
    """Return (exit code, messages in one line)."""
    done = subprocess.run(words, capture_output=True, text=True)
    return done.returncode, ' '.join((done.stdout + done.stderr).split())


def scope(pid):
    """Return a guest's scope in the hierarchy with cpusets."""
    for line in pathlib.Path(f'/proc/{pid}/cgroup').read_text().splitlines():
        number, controllers, path = line.split(':', 2)
        base = ROOT if number == '0' else ROOT / 'cpuset'
        if number == '0' or 'cpuset' in controllers.split(','):
            directory = base / path.lstrip('/')
            if '.scope' in path and (directory / 'cpuset.cpus').exists():
                while not directory.name.endswith('.scope'):
                    directory = directory.parent
                return directory
    raise SystemExit(f'pid {pid} has no cpuset')


def allowed(pid, *comms):
    """Return the CPUs that threads with such names may use, according to the kernel."""
    masks = set()
    for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
        if (task / 'comm').read_text().startswith(comms):
            for line in (task / 'status').read_text().splitlines():
                if line.startswith('Cpus_allowed_list:'):
                    masks.add(line.split()[1])
    return ' '.join(sorted(masks))


def mems(pid):
    """Return the nodes on which the vCPUs' group may allocate."""
    for path in scope(pid).rglob('vcpu0/cpuset.*'):
        if path.name in ('cpuset.mems.effective', 'cpuset.effective_mems'):
            return path.read_text().strip()
    return ''


def effects(name, cpu, node):
    """Return {command: (words, a function that returns its effect, the effect wanted)}."""
    pid = int(pathlib.Path(f'/run/libvirt/qemu/{name}.pid').read_text())
    own = scope(pid)
    vcpu0 = sorted(own.rglob('vcpu0'))[0] / 'cpuset.cpus'
    return {
        'vcpupin': (
            ['virsh', '-q', 'vcpupin', name, '0', cpu],
            lambda: allowed(pid, 'CPU 0'),
            cpu,
        ),
        'emulatorpin': (
            ['virsh', '-q', 'emulatorpin', name, cpu],
            lambda: allowed(pid, 'qemu-system'),
            cpu,
        ),
        'iothreadpin': (
            ['virsh', '-q', 'iothreadpin', name, '1', cpu],
            lambda: allowed(pid, 'IO iothread1'),
            cpu,
        ),
        'numatune': (
            ['virsh', '-q', 'numatune', name, '--nodeset', node, '--live'],
            lambda: mems(pid),
            node,
        ),
        'setvcpus': (
            ['virsh', '-q', 'setvcpus', name, '2', '--live'],
            lambda: str(len(allowed_each(pid))),
            '2',
        ),
        # The walker has no balloon driver, so only the command's exit code can be seen.
        'setmem': (['virsh', '-q', 'setmem', name, '32M', '--live'], lambda: '', ''),
        'AllowedCPUs': (
            ['systemctl', 'set-property', '--runtime', own.name, f'AllowedCPUs={cpu}'],
            lambda: allowed(pid, 'CPU 0'),
            cpu,
        ),
        'cpuset by hand': (
            ['sh', '-c', f"echo {cpu} >'{vcpu0}'"],
            lambda: allowed(pid, 'CPU 0'),
            cpu,
        ),
    }


def allowed_each(pid):
    """Return the names of a guest's vCPU threads."""
    return [
        task.name
        for task in pathlib.Path(f'/proc/{pid}/task').iterdir()
        if (task / 'comm').read_text().startswith('CPU ')
    ]


def main():
    """Run the commands and print the result of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('guests', nargs='+', metavar='COMMAND=GUEST,CPU,NODE')
    parser.add_argument('--no-run', action='store_true', help='only report the effects')
    args = parser.parse_args()
    outcomes = {}
    for text in args.guests:
        command, _, rest = text.partition('=')
        words, effect, expected = effects(*rest.split(','))[command]
        code, message = (0, '') if args.no_run else run(*words)
        outcomes[command] = {
            'code': code,
            'message': message,
            'effect': effect(),
            'wanted': expected,
            'works': not code and effect() == expected,
        }
    print(json.dumps(outcomes))


if __name__ == '__main__':
    main()
