# SPDX-License-Identifier: Apache-2.0
"""numalab: boot an emulated NUMA machine and work in it.

examples:
  numalab up                                    two nodes of two CPUs and 2 GiB
  numalab exec numactl -H
  numalab exec 'perf stat -a -e numa_emu/remote_dram/ sleep 5'
  numalab up --name four --nodes 4 --mem-per-node 1G
  numalab up --name odd --mem-per-node 2G,1G --distances '10,16;16,10' --cgroup v1
  numalab status --json
  numalab down --name four

exit codes: for exec, that of the command; otherwise 0 done, 1 failed, 2 usage, 3 machine not up.
"""

import argparse
import json
import shlex
import shutil
import subprocess
import sys

from machine import image
from machine.qmp import QmpError
from machine.shape import Shape, ShapeError, mebibytes
from machine.vm import Machine, MachineError, build, run_dir, running


def _shape_options(parser):
    add = parser.add_argument
    add('--nodes', type=int, default=2, metavar='N', help='nodes with CPUs (default 2)')
    add('--cpus-per-node', type=int, default=2, metavar='N', help='CPUs per node (default 2)')
    add(
        '--threads',
        type=int,
        default=1,
        metavar='N',
        help='SMT threads per core (default 1); with more, the machine has no KVM',
    )
    add(
        '--mem-per-node',
        default='2G',
        metavar='SIZE[,SIZE…]',
        help='memory of each node, one size or one for each: 2G,1G (default 2G)',
    )
    add(
        '--memory-only-node',
        action='append',
        default=[],
        metavar='SIZE',
        help='add a node without CPUs; may be repeated',
    )
    add('--distances', metavar='ROWS', help="SLIT rows: '10,20;20,10' (default 10 and 20)")
    add('--hmat', action='store_true', help='give the kernel an HMAT (60/100 ns, 20/10 GiB/s)')
    add('--cgroup', choices=('v1', 'v2'), default='v2', help='cgroup version (default v2)')
    add(
        '--pmu',
        action=argparse.BooleanOptionalAction,
        default=True,
        help='count DRAM accesses and offer them to perf (default: yes)',
    )
    add(
        '--append',
        default='',
        metavar='WORDS',
        help="additional words for the kernel's command line",
    )


def _shape(args):
    sizes = [mebibytes(s) for s in args.mem_per_node.split(',')]
    if len(sizes) == 1:
        sizes *= args.nodes
    sizes += [mebibytes(s) for s in args.memory_only_node]
    rows = None
    if args.distances:
        try:
            rows = tuple(
                tuple(int(d) for d in row.split(',')) for row in args.distances.split(';')
            )
        except ValueError:
            raise ShapeError(f"--distances {args.distances!r}: write '10,20;20,10'") from None
    return Shape(
        nodes=args.nodes + len(args.memory_only_node),
        cpus_per_node=args.cpus_per_node,
        memory_mib=tuple(sizes),
        distances=rows,
        hmat=args.hmat,
        cgroup=args.cgroup,
        memory_only=len(args.memory_only_node),
        pmu=args.pmu,
        threads=args.threads,
        append=args.append,
    )


def _parser():
    parser = argparse.ArgumentParser(
        prog='numalab',
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition('\n\n')[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest='command', required=True, metavar='COMMAND')
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument('--name', default='lab', help='which machine (default lab)')
    common.add_argument('--json', action='store_true', help='answer in JSON')

    def command(name, text):
        return commands.add_parser(name, help=text, description=text, parents=[common])

    _shape_options(command('build', 'build the image, the tools, the wheel and a booted state'))
    up = command('up', 'start a machine')
    _shape_options(up)
    up.add_argument(
        '--pace',
        type=int,
        default=0,
        metavar='N',
        help='instructions per second of each vCPU (default 0: unpaced)',
    )
    up.add_argument(
        '--package',
        action=argparse.BooleanOptionalAction,
        default=True,
        help="install this checkout's wheel in it (default: yes)",
    )
    execute = command('exec', 'run a command in it; output and exit code pass through')
    execute.add_argument('words', nargs=argparse.REMAINDER, metavar='CMD')
    push = command('push', 'copy files into it')
    push.add_argument('sources', nargs='+', metavar='SRC')
    push.add_argument('target', metavar='DST')
    pull = command('pull', 'copy a file or directory out of it')
    pull.add_argument('source', metavar='SRC')
    pull.add_argument('target', metavar='DST')
    pace = command('pace', "set its vCPUs' speed")
    pace.add_argument('rate', type=int, metavar='N', help='instructions per second; 0: unpaced')
    command('console', "print its console's log")
    command('down', 'end it')
    command('status', 'list the machines that are up')
    return parser


def _show(args, value, text):
    print(json.dumps(value) if args.json else text)


def _build(args):
    parts = {name: str(path) for name, path in build(_shape(args)).items()}
    _show(args, parts, '\n'.join(f'{name:7} {path}' for name, path in parts.items()))


def _up(args):
    machine = Machine.up(args.name, _shape(args), args.package, args.pace)
    _show(
        args,
        {'name': machine.name, 'pid': machine.pid, 'ssh_port': machine.port},
        f'{machine.name}: numalab exec --name {machine.name} CMD…',
    )


def _exec(args):
    words = args.words[1:] if args.words[:1] == ['--'] else args.words
    if not words:
        raise ShapeError('exec: which command?')
    line = words[0] if len(words) == 1 else shlex.join(words)
    return subprocess.run(Machine.find(args.name).command(line), check=False).returncode


def _down(args):
    Machine.find(args.name).down()
    _show(args, {'name': args.name, 'up': False}, f'{args.name} is down')


def _list(args):
    machines = running()
    lines = [
        f'{m["name"]:12} {m["shape"]["nodes"]} nodes, {m["shape"]["memory_mib"]} MiB, '
        f'cgroup {m["shape"]["cgroup"]}, pid {m["pid"]}, ssh port {m["ssh_port"]}'
        for m in machines
    ]
    _show(args, machines, '\n'.join(lines) or 'no machine is up')


def _console(args):
    with open(run_dir(args.name) / 'console.log', errors='replace') as log:
        shutil.copyfileobj(log, sys.stdout)


COMMANDS = {
    'build': _build,
    'up': _up,
    'exec': _exec,
    'down': _down,
    'status': _list,
    'console': _console,
    'push': lambda a: Machine.find(a.name).push(a.sources, a.target),
    'pull': lambda a: Machine.find(a.name).pull(a.source, a.target),
    'pace': lambda a: Machine.find(a.name).pace(a.rate),
}


def main(argv=None):
    """Run the command; return its exit code."""
    args = _parser().parse_args(argv)
    try:
        return COMMANDS[args.command](args) or 0
    except ShapeError as error:
        print(f'numalab: {error}', file=sys.stderr)
        return 2
    except MachineError as error:
        print(f'numalab: {error}', file=sys.stderr)
        return 3 if 'is up:' in str(error) else 1
    except (image.BuildError, QmpError, OSError, subprocess.CalledProcessError) as error:
        print(f'numalab: {error}', file=sys.stderr)
        return 1
