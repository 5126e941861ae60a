#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Inside the machine: start walker guests with virsh, locate them, count their accesses.

Reads one JSON request on standard input and answers with one JSON object:
``{"do": "start", "guests": [...]}``, ``report``, ``count_accesses``, ``stop`` or ``move_memory``.
The reported data comes from the kernel (cgroups, /proc), from perf and
from the guests' serial logs.
"""

import concurrent.futures
import contextlib
import json
import pathlib
import subprocess
import sys
import time
from xml.sax.saxutils import escape, quoteattr

LOGS = pathlib.Path('/run/guests')
V2 = pathlib.Path('/sys/fs/cgroup/cgroup.controllers').exists()
ROOT = pathlib.Path('/sys/fs/cgroup')
XML = """<domain type='kvm'><name>{name}</name>{uuid}
<memory unit='MiB'>{memory_mib}</memory>{tune}
<vcpu {vcpu}>{vcpus}</vcpu>{cputune}
<metadata>{metadata}</metadata>
<os><type arch='x86_64' machine='pc'>hvm</type><kernel>/opt/lab/walker.elf</kernel>
<cmdline>{cmdline}</cmdline></os><features><acpi/></features>{more}
<devices><emulator>/usr/bin/qemu-system-x86_64</emulator>
<controller type='usb' model='none'/><memballoon model='{balloon}'/>
<serial type='file'><source path={log}/></serial></devices></domain>
"""


def domain_xml(spec):
    """Return a domain's XML; missing keys have defaults."""
    fields = {
        'uuid': '',
        'memory_mib': 64,
        'vcpus': 1,
        'vcpu': "placement='static'",
        'tune': '',
        'cputune': '',
        'more': '',
        'metadata': '',
        'cmdline': 'duty=20',
        'balloon': 'none',
        **spec,
    }
    fields['cmdline'] = escape(fields['cmdline'])
    fields['log'] = quoteattr(str(LOGS / f'{spec["name"]}.log'))
    fields['name'] = escape(spec['name'])
    if fields['uuid']:
        fields['uuid'] = f'<uuid>{fields["uuid"]}</uuid>'
    return XML.format(**fields)


def virsh(*words):
    """Run virsh; return (exit code, its messages)."""
    done = subprocess.run(['virsh', '-q', *words], capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


def log_text(name):
    """Return a guest's serial log, or '' if there is none."""
    try:
        return (LOGS / f'{name}.log').read_bytes()
    except OSError:
        return b''


def start(request):
    """Start guests in parallel; wait until each has touched its memory or is left paused."""
    LOGS.mkdir(exist_ok=True)

    def one(spec):
        path = LOGS / f'{spec["name"]}.xml'
        path.write_text(domain_xml(spec))
        (LOGS / f'{spec["name"]}.log').unlink(missing_ok=True)
        began = time.monotonic()
        code, message = virsh('create', str(path), *(['--paused'] if spec.get('paused') else []))
        return {'code': code, 'message': message, 'seconds': round(time.monotonic() - began, 2)}

    with concurrent.futures.ThreadPoolExecutor(request.get('parallel', 6)) as pool:
        results = dict(
            zip([g['name'] for g in request['guests']], pool.map(one, request['guests']))
        )
    waiting = [
        g['name']
        for g in request['guests']
        if not results[g['name']]['code'] and not g.get('paused')
    ]
    deadline = time.monotonic() + request.get('timeout', 120)
    while waiting and time.monotonic() < deadline:
        waiting = [n for n in waiting if b'B' not in log_text(n)]
        time.sleep(0.2 if waiting else 0)
    for name in waiting:
        results[name].update(code=1, message='did not touch its memory in time')
    return results


def pids():
    """Return {guest: QEMU's pid} of running guests, from libvirt's pid files."""
    pid_of = {}
    for path in pathlib.Path('/run/libvirt/qemu').glob('*.pid'):
        try:
            pid = int(path.read_text())
        except (OSError, ValueError):
            continue
        if pathlib.Path(f'/proc/{pid}').exists() and path.stem != 'driver':
            pid_of[path.stem] = pid
    return pid_of


def group(pid, controller):
    """Return the cgroup directory of a process; on v1, the one in a controller's hierarchy."""
    for line in pathlib.Path(f'/proc/{pid}/cgroup').read_text().splitlines():
        number, controllers, path = line.split(':', 2)
        if V2 and number == '0':
            return ROOT / path.lstrip('/')
        if not V2 and controller in controllers.split(','):
            return ROOT / controller / path.lstrip('/')
    raise OSError(f'pid {pid} is in no {controller} group')


def scope(directory):
    """Return the guest's scope: the directory of libvirt's machine unit above the group."""
    while not directory.name.endswith('.scope'):
        if directory == ROOT:
            raise OSError('not in a scope')
        directory = directory.parent
    return directory


def numa_bytes(pid):
    """Return {node: bytes} of a guest's memory: anonymous and shared, from the kernel."""
    total = {}
    if V2:
        for line in (scope(group(pid, 'memory')) / 'memory.numa_stat').read_text().splitlines():
            kind, *nodes = line.split()
            if kind in ('anon', 'shmem'):
                for word in nodes:
                    node, _, count = word.partition('=')
                    total[node[1:]] = total.get(node[1:], 0) + int(count)
        return total
    for line in pathlib.Path(f'/proc/{pid}/numa_maps').read_text().splitlines():
        words = dict(w.split('=', 1) for w in line.split()[2:] if '=' in w)
        if 'anon' in words:
            for key, value in words.items():
                if key[0] == 'N' and key[1:].isdigit():
                    total[key[1:]] = (
                        total.get(key[1:], 0) + int(value) * int(words['kernelpagesize_kB']) * 1024
                    )
    return total


def vcpus(pid):
    """Return the directories of a guest's vCPU threads in /proc."""
    tasks = []
    for task in pathlib.Path(f'/proc/{pid}/task').iterdir():
        # QEMU's other threads come and go.
        with contextlib.suppress(OSError):
            if (task / 'comm').read_text().startswith('CPU '):
                tasks.append(task)
    return tasks


def status_line(task, key):
    """Return a value from a thread's status file."""
    for line in (task / 'status').read_text().splitlines():
        if line.startswith(key + ':'):
            return line.split(':', 1)[1].strip()
    return None


def report(request):
    """Return for each guest: bytes by node, CPUs and nodes of its threads, its passes."""
    guests = {}
    for name, pid in pids().items():
        try:
            tasks = vcpus(pid)
            guests[name] = {
                'pid': pid,
                'bytes': numa_bytes(pid),
                'cpus': sorted({status_line(t, 'Cpus_allowed_list') for t in tasks}),
                'mems': sorted({status_line(t, 'Mems_allowed_list') for t in tasks}),
                'passes': log_text(name).count(b'.'),
            }
        except OSError:
            continue  # the guest ended in the meantime
    return guests


def count_accesses(request):
    """Count each guest's local and remote DRAM accesses and its passes over some seconds."""
    before = {n: log_text(n).count(b'.') for n in pids()}
    names = sorted(before)
    paths = {n: scope(group(p, 'perf_event')) for n, p in pids().items()}
    base = ROOT if V2 else ROOT / 'perf_event'
    groups = ','.join(str(paths[n].relative_to(base)) for n in names)
    events = 'numa_emu/local_dram/GH,numa_emu/remote_dram/GH'
    command = f'perf stat -x , -a -e {events} --for-each-cgroup'.split()
    command += [groups, 'sleep', str(request['seconds'])]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    counts = [line.split(',') for line in done.stderr.splitlines() if 'numa_emu' in line]
    if done.returncode or len(counts) != 2 * len(names):
        raise OSError(f'perf stat: {done.returncode}: {done.stderr[-800:]}')
    elapsed = time.monotonic() - began
    accesses = {}
    for name, local, remote in zip(names, counts[::2], counts[1::2]):
        accesses[name] = {
            'local': int(local[0]),
            'remote': int(remote[0]),
            'passes': log_text(name).count(b'.') - before[name],
        }
    return {'seconds': elapsed, 'guests': accesses}


def mems_of(pid):
    """Return the file that restricts a guest's memory to nodes."""
    return scope(group(pid, 'cpuset')) / 'cpuset.mems'


def move_memory(request):
    """Move guests' memory to nodes, then allow it on all nodes again."""
    anywhere = (ROOT / 'cpuset.mems.effective').read_text()
    for name, node in request['homes'].items():
        pid = pids()[name]
        mems = mems_of(pid)
        for _ in range(20):
            mems.write_text(str(node))
            mems.write_text(anywhere)
            per_node = numa_bytes(pid)
            if per_node.get(str(node), 0) >= 0.99 * sum(per_node.values()):
                break
    return report(request)


def stop(request):
    """End all guests, or those named."""
    names = request.get('guests') or list(pids())
    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda n: virsh('destroy', n), names))
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and set(names) & set(pids()):
        time.sleep(0.2)
    return {'left': sorted(set(names) & set(pids()))}


if __name__ == '__main__':
    request = json.load(sys.stdin)
    print(
        json.dumps(
            {
                'start': start,
                'report': report,
                'count_accesses': count_accesses,
                'move_memory': move_memory,
                'stop': stop,
            }[request['do']](request)
        )
    )
