# SPDX-License-Identifier: Apache-2.0
"""Run a machine: freeze a booted one once per shape, and thaw it in seconds for each use."""

import contextlib
import dataclasses
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time

from machine import counters, image
from machine.qmp import Qmp, QmpError
from machine.shape import MIB, Shape

QEMU = 'qemu-system-x86_64'
BOOT_TIMEOUT_S, WARM_UP_TIMEOUT_S, THAW_TIMEOUT_S, SSH_TIMEOUT_S = 400, 900, 120, 120
COPY_TIMEOUT_S = 300
#: The translation buffer of machines without the plugin: the fewer translations there are, the
#: sooner a freed page that held code is cleared (doc/source/contributor/lab.rst) [MiB].
WITHOUT_PLUGIN_MIB = 128
SSH_FAILED = 255
LAB_DIR = '/opt/lab'  # in the machine: walker.elf, numawalk, numa_emu.ko
# Fills the page cache and libvirt's cache of QEMU's capabilities, so that guests start sooner.
WARM_UP = """
mkdir -p /opt/lab /run/guests
[ ! -e /dev/kvm ] || virsh -q domcapabilities --virttype kvm >/dev/null
apparmor_parser --version >/dev/null; perf --version >/dev/null; numactl -H >/dev/null
python3 -c 'import json, argparse, subprocess, libvirt' ; sync
"""


class MachineError(Exception):
    """A machine did not start, has ended, or does not exist."""


class MachineGone(MachineError):
    """QEMU has ended by itself, as it occasionally does in emulation."""


@dataclasses.dataclass(frozen=True)
class Base:
    """The base that machines of any shape are booted from and frozen with.

    :param image_dir: directory of root.img, vmlinuz, initrd.img and keys
    :param user_network: options of QEMU's user network
    :param devices: additional QEMU arguments; those of a thawed machine may name other backends
    :param warm_up: shell lines to run before the freeze
    :param translated_mib: whenever this much code has been translated, all of it is discarded
        and translated again [MiB]
    """

    image_dir: pathlib.Path
    user_network: str = 'restrict=on'
    devices: tuple = ()
    warm_up: str = WARM_UP
    translated_mib: int = 1024


def run_dir(name):
    """Return the directory of a running machine's sockets, console log and overlay."""
    if not name.replace('-', '').replace('_', '').isalnum():
        raise MachineError(f'{name!r} is not a name for a machine: letters, digits, - and _')
    return pathlib.Path(tempfile.gettempdir()) / f'numalab-{os.getuid()}' / name


def _free_port():
    with socket.socket() as probe:
        probe.bind(('127.0.0.1', 0))
        return probe.getsockname()[1]


def _wait(ready, timeout_s, what, log):
    """Poll until ready() is true; otherwise, raise a MachineError that names the log."""
    deadline = time.monotonic() + timeout_s
    with image.progress(what):
        while not ready():
            if time.monotonic() > deadline:
                raise MachineError(f'{what}: not within {timeout_s} s; console log: {log}')
            time.sleep(0.2)


def _translated_mib(base, shape):
    # With the counting plugin, QEMU before 8.0 may abort when it discards translations.
    return base.translated_mib if shape.pmu else min(base.translated_mib, WITHOUT_PLUGIN_MIB)


def _qemu(base, shape, directory, disk, port, plugin=None, incoming=None, devices=None):
    """Start QEMU in a directory, where its own messages go to qemu.log."""
    parts = base.image_dir
    args = [
        *f'{QEMU} -nodefaults -display none -vga none -no-reboot'.split(),
        '-accel',
        f'tcg,thread=multi,tb-size={_translated_mib(base, shape)}',
        *shape.qemu_args(),
        '-kernel',
        parts / 'vmlinuz',
        '-initrd',
        parts / 'initrd.img',
        '-append',
        shape.kernel_words(),
        '-serial',
        f'file:{directory}/console.log',
        '-qmp',
        f'unix:{directory}/qmp.sock,server=on,wait=off',
        '-drive',
        f'file={disk},if=virtio,format=qcow2,cache=unsafe',
        '-netdev',
        f'user,id=net,{base.user_network},hostfwd=tcp:127.0.0.1:{port}-10.0.2.15:22',
        '-device',
        'virtio-net-pci,netdev=net,romfile=',
        *(base.devices if devices is None else devices),
    ]
    if shape.pmu:
        counters.create(directory / 'counters', shape)
        args += [
            '-object',
            f'memory-backend-file,id=pmu,share=on,size={counters.BAR_BYTES},'
            f'mem-path={directory}/counters',
            '-device',
            'ivshmem-plain,memdev=pmu,master=on',
        ]
        if plugin:
            args += ['-plugin', f'{plugin},counters={directory}/counters']
    if incoming:
        # A CPU that is reset ends the machine: its position is then the last entry in the log.
        args += ['-S', '-incoming', f'exec:zstd -dcq {incoming}', '-d', 'cpu_reset']
    with open(directory / 'qemu.log', 'wb') as log:
        return subprocess.Popen(
            [str(a) for a in args],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _alive(pid):
    try:
        with open(f'/proc/{pid}/cmdline', 'rb') as line:
            return QEMU.encode() in line.read()
    except OSError:
        return False


def _overlay(path, backing, backing_format):
    command = f'qemu-img create -q -f qcow2 -F {backing_format} -b'.split()
    subprocess.run([*command, backing, path], check=True)


class Machine:
    """A running machine; ``Machine.find`` finds one, ``Machine.up`` starts one."""

    def __init__(self, name, shape, pid, port, image_dir, directory=None):
        """Store the content of state.json."""
        self.name, self.shape, self.pid, self.port = name, shape, pid, port
        self.image_dir = pathlib.Path(image_dir)
        self.dir = directory or run_dir(name)
        self._process = None

    @classmethod
    def find(cls, name):
        """Return the running machine of that name, or raise MachineError."""
        try:
            state = json.loads((run_dir(name) / 'state.json').read_text())
        except (OSError, ValueError):
            raise MachineError(f'no machine {name!r} is up: numalab up --name {name}') from None
        shape = Shape(**{**state['shape'], 'memory_mib': tuple(state['shape']['memory_mib'])})
        machine = cls(name, shape, state['pid'], state['port'], state['image_dir'])
        if not _alive(machine.pid):
            raise MachineError(
                f'machine {name!r} is gone; console log: '
                f'{machine.dir}/console.log, QEMU: {machine.dir}/qemu.log'
            )
        return machine

    @classmethod
    def up(cls, name='lab', shape=None, package=True, base=None, devices=None):
        """Thaw a machine of that shape, with the tools and this package's wheel installed.

        :param base: what it is made from (default: the lab's image)
        :param devices: replaces the base's
        """
        shape, base = shape or Shape(), base or Base(image.image())
        directory = run_dir(name)
        if (directory / 'state.json').exists():
            with contextlib.suppress(MachineError):
                cls.find(name)
                raise SystemExit(f'numalab: {name} is up already: numalab down --name {name}')
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True, mode=0o700)
        tools, frozen = image.tools(), freeze(shape, base)
        wheel = image.wheel() if package else None
        began = time.monotonic()
        _overlay(directory / 'disk.qcow2', frozen / 'disk.qcow2', 'qcow2')
        port = _free_port()
        process = _qemu(
            base,
            shape,
            directory,
            directory / 'disk.qcow2',
            port,
            plugin=tools / 'numapmu.so',
            incoming=frozen / 'ram.zst',
            devices=devices,
        )
        self = cls(name, shape, process.pid, port, base.image_dir)
        self._process = process
        try:
            self._thaw(process)
            self._save()
            self._install(tools, wheel)
        except BaseException:
            process.kill()
            process.wait()
            raise
        image.print_step(f'{name} is up in {time.monotonic() - began:.0f} s')
        return self

    def _save(self):
        state = {
            'pid': self.pid,
            'port': self.port,
            'image_dir': str(self.image_dir),
            'shape': dataclasses.asdict(self.shape),
        }
        (self.dir / 'state.json').write_text(json.dumps(state))

    def _thaw(self, process):
        log = self.dir / 'qemu.log'
        _wait(
            lambda: process.poll() is not None or self._paused(),
            THAW_TIMEOUT_S,
            f'{self.name} thaws',
            log,
        )
        if process.poll() is not None:
            raise MachineError(
                f'QEMU ended with {process.returncode}: '
                f'{log.read_text(errors="replace").strip()[-500:]}'
            )
        with self.qmp() as qmp:
            if self.shape.pmu:
                counters.set_ranges(self.dir / 'counters', self._ranges(qmp))
            qmp('cont')
        _wait(self._answers, SSH_TIMEOUT_S, f'{self.name} answers', self.dir / 'console.log')

    def _paused(self):
        try:
            with self.qmp() as qmp:
                return qmp('query-status')['status'] in ('paused', 'prelaunch')
        except (OSError, QmpError):
            return False

    def _ranges(self, qmp):
        """Return (start, end, node) in the plugin API's addresses: ram_addr + position in RAM."""
        blocks, base, ranges = qmp.ram_blocks(), 0, []
        for node, size in enumerate(self.shape.memory_mib):
            offset, block_bytes = blocks[f'm{node}']
            ranges.append((offset + base, offset + base + block_bytes, node))
            base += size * MIB
        return ranges

    def _answers(self):
        try:
            done = self.run(f'date -s @{time.time():.0f} >/dev/null', timeout=30, check=False)
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def _install(self, tools, wheel):
        files = [tools / n for n in ('walker.elf', 'numawalk', 'numa_emu.ko')]
        self.push(files + ([wheel] if wheel else []), LAB_DIR)
        self.run(
            'set -e\n'
            + (f'insmod {LAB_DIR}/numa_emu.ko\n' if self.shape.pmu else '')
            + (f'python3 -m installer {LAB_DIR}/{wheel.name}\n' if wheel else '')
        )

    def reboot(self):
        """Restart the machine's kernel; its disk is unchanged."""
        before = self._boot_id()
        with self.qmp() as qmp:
            qmp('set-action', reboot='reset')
        self.run('systemctl reboot', timeout=60, check=False)
        self._hang_up()
        _wait(
            lambda: self._boot_id() not in ('', before),
            BOOT_TIMEOUT_S,
            f'{self.name} boots again',
            self.dir / 'console.log',
        )
        if self.shape.pmu:
            self.run(f'insmod {LAB_DIR}/numa_emu.ko')

    def _boot_id(self):
        """Return the kernel's boot id, or '' while the machine does not answer."""
        try:
            return self.run('cat /proc/sys/kernel/random/boot_id', timeout=30, check=False).stdout
        except subprocess.TimeoutExpired:
            return ''

    def qmp(self):
        """Open QEMU's monitor."""
        return Qmp(self.dir / 'qmp.sock')

    def _ssh(self, program, port_option):
        options = {
            'UserKnownHostsFile': self.image_dir / 'known_hosts',
            'HostKeyAlias': 'numalab',
            'ControlMaster': 'auto',
            'ControlPath': self.dir / 'ssh',
            'ControlPersist': 600,
            'ConnectTimeout': 60,
            'LogLevel': 'ERROR',
            'BatchMode': 'yes',
        }
        words = [f'-o{name}={value}' for name, value in options.items()]
        key = str(self.image_dir / 'id_ed25519')
        return [program, '-F', 'none', port_option, str(self.port), '-i', key, *words]

    def command(self, line):
        """Return the ssh command for a shell line in the machine, for callers that stream it."""
        return [*self._ssh('ssh', '-p'), 'root@127.0.0.1', line]

    def run(self, line, timeout=300, check=True, stdin=None):
        """Run a shell line in the machine; return its output (text) and exit code."""
        done = subprocess.run(
            self.command(line),
            timeout=timeout,
            text=True,
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
        )
        if check and done.returncode:
            if done.returncode == SSH_FAILED and not _alive(self.pid):
                raise MachineGone(
                    f'{self.name}: QEMU has ended{self._how()}; it said: '
                    + (self.dir / 'qemu.log').read_text(errors='replace')[-1500:]
                )
            raise MachineError(
                f'{self.name}: exit {done.returncode} of: {line[:300]}\n'
                f'{done.stdout[-1500:]}{done.stderr[-1500:]}'
            )
        return done

    def _how(self):
        """Return how QEMU has ended, if this process started it."""
        ended = self._process and self._process.poll()
        return '' if ended is None else f' with {ended}'

    def push(self, sources, target):
        """Copy files or directories into a directory of the machine."""
        subprocess.run(
            [*self._ssh('scp', '-P'), '-qrp', *map(str, sources), f'root@127.0.0.1:{target}'],
            check=True,
            stdin=subprocess.DEVNULL,
            timeout=COPY_TIMEOUT_S,
        )

    def pace(self, instructions_per_sec):
        """Hold each vCPU to that speed; 0 means as fast as the host allows."""
        if self.shape.pmu:
            counters.set_pace(self.dir / 'counters', int(instructions_per_sec))

    def counts(self):
        """Return the plugin's counts, read on the host."""
        return counters.read(self.dir / 'counters')

    def _hang_up(self):
        """Close the connection that the runs share."""
        subprocess.run(
            [*self._ssh('ssh', '-p'), '-O', 'exit', 'root@127.0.0.1'],
            stderr=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            check=False,
        )

    def down(self):
        """Stop the machine; its disk is discarded, its console log is kept until the next up."""
        self._hang_up()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        _wait(lambda: not _alive(self.pid), 20, f'{self.name} ends', self.dir / 'qemu.log')
        for name in ('state.json', 'disk.qcow2', 'counters', 'qmp.sock'):
            (self.dir / name).unlink(missing_ok=True)


def running():
    """Return the machines that run."""
    machines, parent = [], run_dir('any').parent
    for directory in sorted(parent.glob('*/')) if parent.is_dir() else ():
        with contextlib.suppress(MachineError):
            machines.append(Machine.find(directory.name))
    return machines


def build(shape):
    """Build what the machines of a shape need and is not cached."""
    for part in (image.image, image.tools, image.wheel):
        part()
    freeze(shape)


def freeze(shape, base=None):
    """Return the directory of a booted, frozen machine of that shape: disk and memory."""
    base = base or Base(image.image())
    version = subprocess.run(
        [QEMU, '--version'], capture_output=True, text=True, check=True
    ).stdout.splitlines()[0]
    key = image.digest(
        base.image_dir.name,
        shape.key(),
        *shape.qemu_args(),
        shape.kernel_words(),
        version,
        base.warm_up,
        base.user_network,
        *base.devices,
    )
    return image.cached('frozen', key, lambda work: _freeze(base, shape, work), keep=16)


def _freeze(base, shape, work):
    """Boot without the plugin (twice as fast, and it leaves no trace in the state), then save."""
    log, port = work / 'console.log', _free_port()
    _overlay(work / 'disk.qcow2', base.image_dir / 'root.img', 'raw')
    process = _qemu(base, shape, work, work / 'disk.qcow2', port)
    machine = Machine('freezer', shape, process.pid, port, base.image_dir, work)
    try:
        _wait(
            lambda: (
                process.poll() is not None
                or (log.exists() and image.READY in log.read_text(errors='replace'))
            ),
            BOOT_TIMEOUT_S,
            'the machine boots',
            log,
        )
        if process.poll() is not None:
            raise MachineError(f'QEMU ended: {(work / "qemu.log").read_text()[-500:]}')
        if shape.threads == 1:  # systemd gives it up if a busy host takes too long to boot
            machine.run('modprobe kvm_amd')
        machine.run(base.warm_up, timeout=WARM_UP_TIMEOUT_S)
        machine._hang_up()
        with machine.qmp() as qmp:
            qmp('stop')
            qmp('migrate', uri=f'exec:zstd -1 -q -T2 -o {work}/ram.zst')
            _wait(
                lambda: qmp('query-migrate').get('status') in ('completed', 'failed'),
                120,
                'the machine freezes',
                work / 'qemu.log',
            )
            if qmp('query-migrate')['status'] != 'completed':
                raise MachineError(f'not frozen: {qmp("query-migrate")}')
            qmp('quit')
        process.wait(30)
    except BaseException:
        process.kill()
        process.wait()
        image.print_step(f'console log: {log}')
        raise
    for name in ('qmp.sock', 'counters'):
        (work / name).unlink(missing_ok=True)
