# SPDX-License-Identifier: Apache-2.0
"""Start guests by the hundred directly on this machine, and count the failures.

In the emulated machine, a start takes five seconds, and races are slow. Here, libvirt, QEMU and
the hook run from the lab's root image at this machine's speed, in a mount namespace of their own,
on a copy of which nothing is kept. This machine's single node is presented to them as two, each
with half of its CPUs: the CPUs that a guest is held to are real, while its memory stays where it
is. Half of the guests have a <vcpu cpuset>. The guests stay paused; they use QEMU's own emulation,
so no KVM is needed. Needs root, loop devices and overlayfs.

The last line is a JSON object; the exit code is 1 if a start failed or a guest was not held.
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

LAB = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(LAB))

from machine import image  # noqa: E402

NODES = pathlib.Path('/sys/devices/system/node')

#: Runs in a mount and PID namespace of its own; {work} contains root/, nodes/ and opt/.
INSIDE = r"""
set -e
mount --make-rprivate /
mount -o loop,ro {image} {work}/image
mount -t overlay overlay -o lowerdir={work}/image,upperdir={work}/up,workdir={work}/tmp {work}/root
R={work}/root
mount -t proc proc $R/proc; mount --rbind /sys $R/sys; mount --rbind /dev $R/dev
mount -t tmpfs tmpfs $R/run
mount --bind {work}/nodes $R/sys/devices/system/node
mkdir -p $R/opt/lab; cp {work}/opt/* $R/opt/lab/
exec chroot $R sh -ec '
  python3 -m installer /opt/lab/*.whl
  mkdir -p /etc/nova-numa-pmc
  [ {hook} = no ] || nova-numa-rebalance hook install >&2
  libvirtd -d
  python3 /opt/lab/labstarts.py {starts} {parallel} {hook}
  exit 0'      # as PID 1 the shell reaps what libvirtd leaves
"""


def _show_two_nodes(target):
    """Copy the kernel's files about this machine's first node, once for each half of its CPUs."""
    cpus = sorted(int(path.name[3:]) for path in NODES.glob('node0/cpu[0-9]*'))
    for name in ('online', 'possible', 'has_cpu', 'has_memory', 'has_normal_memory'):
        (target / name).write_text('0-1\n')
    half = len(cpus) // 2
    for node, part in enumerate((cpus[:half], cpus[half:])):
        directory = target / f'node{node}'
        (directory / 'hugepages').mkdir(parents=True)
        (directory / 'cpulist').write_text(','.join(map(str, part)) + '\n')
        (directory / 'cpumap').write_text(f'{sum(1 << cpu for cpu in part):08x}\n')
        (directory / 'distance').write_text(('10 20\n', '20 10\n')[node])
        (directory / 'meminfo').write_text(
            (NODES / 'node0/meminfo').read_text().replace('Node 0', f'Node {node}')
        )
        for cpu in part:
            (directory / f'cpu{cpu}').symlink_to(f'../../cpu/cpu{cpu}')


def main():
    """Prepare the namespace's files, run it, and pass on its counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument('--starts', type=int, default=500, metavar='N', help='(default 500)')
    parser.add_argument('--parallel', type=int, default=4, metavar='N', help='(default 4)')
    parser.add_argument('--without-hook', action='store_true', help='to compare')
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix='lab-starts-') as work:
        for name in ('image', 'up', 'tmp', 'root', 'nodes', 'opt'):
            pathlib.Path(work, name).mkdir()
        _show_two_nodes(pathlib.Path(work, 'nodes'))
        for path in (image.tools() / 'walker.elf', image.wheel(), *(LAB / 'inside').glob('*.py')):
            shutil.copy(path, f'{work}/opt')
        script = INSIDE.format(
            work=work,
            image=image.image() / 'root.img',
            starts=args.starts,
            parallel=args.parallel,
            hook='no' if args.without_hook else 'yes',
        )
        done = subprocess.run(
            ['unshare', '--mount', '--pid', '--fork', '--kill-child', 'sh', '-c', script],
            stdout=subprocess.PIPE,
            text=True,
        )
    print(done.stdout, end='')
    try:
        findings = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        return 1
    return int(bool(findings['failed'] or findings.get('not_held')))


if __name__ == '__main__':
    sys.exit(main())
