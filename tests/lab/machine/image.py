# SPDX-License-Identifier: Apache-2.0
"""Build what a machine boots and runs; each part is cached under a hash of its content.

The cache is outside the checkout, below ``$XDG_CACHE_HOME/nova-numa-pmc/lab`` (default ~/.cache):

``image-KEY/``  root.img, vmlinuz, initrd.img, id_ed25519: Debian with libvirt and QEMU
``tools-KEY/``  numapmu.so (plugin), numa_emu.ko (PMU), walker.elf (guest), numawalk (probe)
``wheel-KEY/``  a wheel of the package in this checkout
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import time

LAB = pathlib.Path(__file__).resolve().parent.parent
CHECKOUT = LAB.parent.parent
SUITE = 'bookworm'
#: For one command of a build: the longest one, for the compute hosts' image, takes about ten
#: minutes.
BUILD_TIMEOUT_S = 3600
PROGRESS_S = 20
PACKAGES = """
systemd systemd-sysv udev dbus kmod procps iproute2 openssh-server apparmor apparmor-utils
libvirt-daemon-system libvirt-daemon-system-systemd libvirt-clients libvirt-daemon-driver-qemu
qemu-system-x86 numad numactl libpfm4 linux-perf initramfs-tools zstd strace
python3 python3-libvirt python3-installer python3-oslo.config python3-rich
python3-prometheus-client curl
""".split()
INITRD_MODULES = 'virtio_pci virtio_blk virtio_net ext4'
READY = 'numalab: ready'
# Units that would only take time or cause variation in a machine that lives for minutes.
MASKED = """
apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer
e2scrub_reap.service man-db.timer systemd-networkd-wait-online.service libvirt-guests.service
systemd-timesyncd.service numad.service virtlogd-admin.socket
""".split()
# fmt: off
FILES = {
    'etc/fstab': '/dev/vda / ext4 defaults,noatime 0 1\n',
    'etc/hostname': 'numalab\n',
    'etc/hosts': '127.0.0.1 localhost numalab\n',
    'etc/systemd/network/lab.network':
        '[Match]\nName=eth0\n[Network]\nAddress=10.0.2.15/24\nGateway=10.0.2.2\n',
    'etc/ssh/sshd_config.d/lab.conf':
        'PermitRootLogin prohibit-password\nUseDNS no\nUsePAM no\nHostKey '
        '/etc/ssh/ssh_host_ed25519_key\nMaxSessions 100\nMaxStartups 100\n',
    'etc/modules-load.d/lab.conf': 'kvm_amd\n',
    # libvirtd stays confined; a guest's own AppArmor profile would be compiled at each start.
    # Without the filtered capability, libvirt asks QEMU for one CPU property at a time, 400
    # questions of 30 ms each here.
    'etc/libvirt/qemu.conf': 'security_driver = "none"\nuser = "root"\ngroup = "root"\n'
                             'stdio_handler = "file"\nseccomp_sandbox = 0\n'
                             'capability_filters = [ "cpu-unavailable-features" ]\n',
    'etc/systemd/system/numalab-ready.service':
        '[Unit]\nAfter=libvirtd.service ssh.service multi-user.target\n'
        'Wants=libvirtd.service\n[Service]\nType=oneshot\n'
        f'ExecStart=/bin/sh -c "virsh -q list >/dev/null; echo {READY} >/dev/ttyS0"\n'
        '[Install]\nWantedBy=default.target\n',
    'etc/systemd/journald.conf.d/lab.conf': '[Journal]\nStorage=volatile\n',
}
# fmt: on


class BuildError(Exception):
    """A part could not be built; the message names the command and its log."""


def cache_dir():
    """Return the directory of built parts, outside the checkout."""
    base = os.environ.get('XDG_CACHE_HOME') or os.path.expanduser('~/.cache')
    return pathlib.Path(base) / 'nova-numa-pmc' / 'lab'


def print_step(text):
    """Report a step on standard error."""
    print(f'numalab: {text}', file=sys.stderr, flush=True)


_under_way = []


@contextlib.contextmanager
def progress(text):
    """Print the time that a step has taken, every 20 s, unless a step within it does."""
    began, ended = time.monotonic(), threading.Event()

    def tell():
        while not ended.wait(PROGRESS_S):
            if _under_way[-1:] == [ended]:
                print_step(f'  … {text}, {time.monotonic() - began:.0f} s')

    _under_way.append(ended)
    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        _under_way.remove(ended)
        ended.set()
        thread.join()


def kernel_version():
    """Return the version of the newest installed kernel headers, for image and module."""
    builds = sorted(
        pathlib.Path('/lib/modules').glob('*-amd64/build'),
        key=lambda p: [int(n) for n in p.parent.name.replace('.', '-').split('-') if n.isdigit()],
    )
    if not builds:
        raise BuildError(
            'no kernel headers in /lib/modules/*/build: apt-get install linux-headers-amd64'
        )
    return builds[-1].parent.name


def digest(*parts):
    sha = hashlib.sha256()
    for part in parts:
        if isinstance(part, pathlib.Path):
            part = part.name.encode() + b'\0' + part.read_bytes()
        sha.update(part.encode() if isinstance(part, str) else part)
        sha.update(b'\0')
    return sha.hexdigest()[:16]


def _run(command, log, note=None, **more):
    """Run a command with its output in a log file.

    After :data:`BUILD_TIMEOUT_S`, the command is killed.
    """
    with open(log, 'ab') as sink, progress(note or command[0]):
        try:
            code = subprocess.run(
                [str(c) for c in command],
                stdout=sink,
                stderr=sink,
                stdin=subprocess.DEVNULL,
                timeout=BUILD_TIMEOUT_S,
                **more,
            ).returncode
        except subprocess.TimeoutExpired:
            raise BuildError(f'{command[0]}: not within {BUILD_TIMEOUT_S} s; log: {log}') from None
    if code:
        tail = pathlib.Path(log).read_text(errors='replace').splitlines()[-8:]
        raise BuildError('\n'.join([f'{command[0]} failed ({code}), log in {log}:', *tail]))


@contextlib.contextmanager
def locked(name):
    """Let only one process at a time build the part of that name."""
    cache_dir().mkdir(parents=True, exist_ok=True)
    with open(cache_dir() / f'{name}.lock', 'w') as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cached(kind, key, build, keep=4):
    """Return the directory of a part, built in a temporary one so that none is partial."""
    target = cache_dir() / f'{kind}-{key}'
    with locked(kind):
        if target.is_dir():
            os.utime(target)
            return target
        began = time.monotonic()
        print_step(f'building {target.name}')
        # Leftovers of failed or killed builds, gigabytes: their logs were kept for the reader of
        # the error.
        for remainder in cache_dir().glob(f'.{kind}-*/'):
            shutil.rmtree(remainder, ignore_errors=True)
        work = pathlib.Path(tempfile.mkdtemp(prefix=f'.{kind}-', dir=cache_dir()))
        try:
            with progress(f'building {target.name}'):
                build(work)
        except BaseException:
            if not list(work.glob('*log')):  # the error names a log
                shutil.rmtree(work, ignore_errors=True)
            raise
        work.chmod(0o755)
        work.rename(target)
        print_step(f'built {target.name} in {time.monotonic() - began:.0f} s')
        _drop_old(kind, keep)
    return target


def _drop_old(kind, keep):
    old = sorted(cache_dir().glob(f'{kind}-*/'), key=lambda p: p.stat().st_mtime)[:-keep]
    for directory in old:
        shutil.rmtree(directory, ignore_errors=True)


def _build_image(work):
    version = kernel_version()
    log, root = work / 'log', work / 'root'
    if os.geteuid():
        raise BuildError('building the image needs root (mmdebstrap, mke2fs -d)')
    _run(
        [
            'mmdebstrap',
            '--variant=minbase',
            '--skip=check/empty',
            '--include=' + ','.join([*PACKAGES, f'linux-image-{version}']),
            '--customize-hook=printf "%s\\n" '
            + INITRD_MODULES
            + ' >>"$1/etc/initramfs-tools/modules"',
            '--customize-hook=echo MODULES=list >"$1/etc/initramfs-tools/conf.d/lab"',
            '--customize-hook=chroot "$1" update-initramfs -u',
            SUITE,
            root,
        ],
        log,
        'mmdebstrap',
    )
    key = work / 'id_ed25519'
    _run([*'ssh-keygen -q -t ed25519 -C numalab -N'.split(), '', '-f', key], log)
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    keys = root / 'root/.ssh/authorized_keys'
    keys.parent.mkdir(mode=0o700, exist_ok=True)
    keys.write_bytes((work / 'id_ed25519.pub').read_bytes())
    enabled = ('systemd-networkd', 'ssh', 'libvirtd', 'numalab-ready')
    _run(['chroot', root, 'systemctl', 'enable', *enabled], log)
    _run(['chroot', root, 'systemctl', 'mask', *MASKED], log)
    host_key = (root / 'etc/ssh/ssh_host_ed25519_key.pub').read_text().split()[:2]
    (work / 'known_hosts').write_text(f'numalab {" ".join(host_key)}\n')
    for name in ('vmlinuz', 'initrd.img'):
        shutil.copy(next((root / 'boot').glob(f'{name}-*')), work / name)
    _run(['mke2fs', '-q', '-t', 'ext4', '-d', root, '-L', 'root', work / 'root.img', '4G'], log)
    shutil.rmtree(root)


def image():
    """Return the directory with the root image, kernel and keys; build it if it is new."""
    recipe = repr((SUITE, PACKAGES, INITRD_MODULES, MASKED, sorted(FILES.items())))
    return cached('image', digest(recipe, kernel_version()), _build_image)


def _build_tools(work):
    log = work / 'log'
    shared = 'gcc -O2 -Wall -shared -fPIC -o'.split()
    _run([*shared, work / 'numapmu.so', LAB / 'plugin/numapmu.c'], log)
    freestanding = (
        'gcc -m32 -march=i686 -mno-sse -ffreestanding -fno-pic -no-pie -fno-stack-protector '
        '-nostdlib -static -O1 -Wall -Wl,--build-id=none'
    ).split()
    script, source = f'-Wl,-T,{LAB}/guest/walker.ld', LAB / 'guest/walker.c'
    _run([*freestanding, script, source, '-o', work / 'walker.elf'], log)
    static = 'gcc -O1 -static -Wall -o'.split()
    _run([*static, work / 'numawalk', LAB / 'probe/numawalk.c'], log)
    with tempfile.TemporaryDirectory() as scratch:
        for name in ('kmod', 'plugin'):
            shutil.copytree(LAB / name, pathlib.Path(scratch) / name)
        kernel = f'/lib/modules/{kernel_version()}/build'
        _run(['make', '-s', '-C', kernel, f'M={scratch}/kmod', 'modules'], log)
        shutil.copy(pathlib.Path(scratch) / 'kmod/numa_emu.ko', work)


def tools():
    """Return the directory with plugin, kernel module, walker guest and probe."""
    sources = sorted(
        p
        for d in ('plugin', 'kmod', 'guest', 'probe')
        for p in (LAB / d).iterdir()
        if p.suffix in ('.c', '.h', '.ld') or p.name == 'Makefile'
    )
    return cached('tools', digest(kernel_version(), *sources), _build_tools)


def _build_wheel(work, checkout):
    with tempfile.TemporaryDirectory() as scratch:
        source = pathlib.Path(scratch) / 'source'
        shutil.copytree(
            checkout,
            source,
            ignore=shutil.ignore_patterns(
                '.git', '.venv*', 'build', 'dist', '*.egg-info', '__pycache__', 'tests', '.tox'
            ),
        )
        python = CHECKOUT / '.venv/bin/python'
        _run(
            [
                python if python.exists() else sys.executable,
                *'-m pip wheel -q --no-deps -w'.split(),
                work,
                source,
            ],
            work / 'log',
            'pip wheel',
            env={**os.environ, 'PBR_VERSION': '0.0.0.dev0'},
        )


def wheel(checkout=CHECKOUT):
    """Return the wheel of a checkout's package (default: this one), made with its pip."""
    sources = sorted(
        p
        for d in ('nova_numa_pmc', 'shim', 'etc', 'hooks')
        for p in (checkout / d).rglob('*')
        if p.is_file() and '__pycache__' not in p.parts
    )
    sources += [
        checkout / name for name in ('setup.cfg', 'setup.py', 'pyproject.toml', 'requirements.txt')
    ]
    key = digest(*[str(p.relative_to(checkout)) for p in sources], *sources)
    built = cached('wheel', key, lambda work: _build_wheel(work, checkout))
    return next(built.glob('*.whl'))
