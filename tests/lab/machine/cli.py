# SPDX-License-Identifier: Apache-2.0
"""numalab: boot an emulated NUMA machine and work in it.

examples:
  numalab up                                    two nodes of two CPUs and 2 GiB
  numalab exec numactl -H
  numalab exec 'perf stat -a -e numa_emu/remote_dram/ sleep 5'
  numalab up --name four --nodes 4 --mem-per-node 1G --cpus-per-node 1
  numalab down --name four

exit codes: for exec, that of the command; otherwise 0 done, 1 failed, 2 usage.
"""

import argparse
import shlex
import subprocess
import sys

from machine import image
from machine.shape import Shape, ShapeError, mebibytes
from machine.vm import Machine, MachineError


def _parser():
    parser = argparse.ArgumentParser(
        prog='numalab',
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    up = commands.add_parser('up', help='start a machine with this checkout installed')
    up.add_argument('--nodes', type=int, default=2, metavar='N')
    up.add_argument('--cpus-per-node', type=int, default=2, metavar='N')
    up.add_argument('--mem-per-node', type=mebibytes, default=2048, metavar='SIZE')
    up.add_argument('--cgroup', choices=('v1', 'v2'), default='v2')
    execute = commands.add_parser('exec', help='run a command in it')
    down = commands.add_parser('down', help='end it')
    for command in (up, execute, down):
        command.add_argument('--name', default='lab', help='which machine (default lab)')
    execute.add_argument('words', nargs=argparse.REMAINDER, metavar='CMD')
    return parser


def _up(args):
    memory_mib = (args.mem_per_node,) * args.nodes
    shape = Shape(args.nodes, args.cpus_per_node, memory_mib, cgroup=args.cgroup)
    print(f'numalab exec --name {Machine.up(args.name, shape).name} CMD…')


def _exec(args):
    line = args.words[0] if len(args.words) == 1 else shlex.join(args.words)
    return subprocess.run(Machine.find(args.name).command(line), check=False).returncode


def _down(args):
    Machine.find(args.name).down()


def main(argv=None):
    """Run the command; return its exit code."""
    try:
        args = _parser().parse_args(argv)
        return {'up': _up, 'exec': _exec, 'down': _down}[args.command](args) or 0
    except (ShapeError, MachineError, image.BuildError, OSError) as error:
        print(f'numalab: {error}', file=sys.stderr)
        return 2 if isinstance(error, ShapeError) else 1
