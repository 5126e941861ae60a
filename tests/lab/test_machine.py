# SPDX-License-Identifier: Apache-2.0
"""Test the emulated machine: its shapes, the command numalab, and errors."""

import json
import pathlib
import subprocess

import pytest
from machine.shape import Shape, ShapeError, mebibytes

NUMALAB = pathlib.Path(__file__).resolve().parent / 'numalab'


def numalab(*words, **more):
    """Run the command; return its result."""
    return subprocess.run(
        [str(NUMALAB), *words],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        **more,
    )


def test_exec_passes_output_and_exit_code(lab):
    """A command's output and exit code are passed through."""
    name = lab.machine.name
    done = numalab('exec', '--name', name, 'echo out; echo err >&2; exit 7')
    assert (done.stdout, done.stderr, done.returncode) == ('out\n', 'err\n', 7)
    done = numalab('exec', '--name', name, 'printf', '%s', 'two words')
    assert done.stdout == 'two words'


def test_a_file_is_pushed_and_pulled_unchanged(lab, tmp_path):
    """A file is copied in and back unchanged."""
    source = tmp_path / 'with blank.bin'
    source.write_bytes(bytes(range(256)))
    name = lab.machine.name
    assert numalab('push', '--name', name, str(source), '/tmp').returncode == 0
    done = numalab('pull', '--name', name, '/tmp/with blank.bin', str(tmp_path / 'back'))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / 'back').read_bytes() == source.read_bytes()


def test_status_lists_a_machine_with_its_shape(lab):
    """The machine is listed with its shape."""
    listed = {m['name']: m for m in json.loads(numalab('status', '--json').stdout)}
    assert listed[lab.machine.name]['shape']['memory_mib'] == [2048, 2048]


def test_a_command_reports_that_a_machine_does_not_exist():
    """Each command says what to do, with exit code 3."""
    done = numalab('exec', '--name', 'nowhere', 'true')
    assert done.returncode == 3 and 'numalab up --name nowhere' in done.stderr


@pytest.mark.parametrize(
    'words, message',
    [
        (['--mem-per-node', '2X'], 'is not a size'),
        (['--nodes', '3', '--mem-per-node', '1G,1G'], '3 sizes'),
        (['--distances', '10,20'], '2 rows of 2'),
        (['--distances', '10,9;20,10'], '10 on the diagonal'),
        (['--nodes', '40'], '1 to 16'),
        (['--cpus-per-node', '3', '--threads', '2'], 'whole cores'),
        (['--name', '../x'], 'is not a name'),
    ],
)
def test_an_impossible_shape_is_refused(words, message):
    """An impossible shape is refused before anything is built."""
    done = numalab('up', *words)
    assert done.returncode in (1, 2) and message in done.stderr


def test_sizes_are_read_as_people_write_them():
    """Sizes are read as people write them."""
    assert [mebibytes(t) for t in ('2G', '512m', '300')] == [2048, 512, 300]
    with pytest.raises(ShapeError):
        mebibytes('-1G')


@pytest.mark.full
def test_the_kernel_sees_the_shape(lab_of):
    """The kernel sees three unequal nodes, one without CPUs, SMT, distances and an HMAT."""
    lab = lab_of(
        nodes=3,
        cpus_per_node=2,
        threads=2,
        memory_only=1,
        hmat=True,
        memory_mib=(3072, 2048, 1024),
        distances=((10, 16, 17), (16, 10, 17), (17, 17, 10)),
    )
    text = lab.run(
        'numactl -H; cat /sys/devices/system/cpu/smt/active; '
        'cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list; '
        'cat /sys/devices/system/node/node0/access1/initiators/read_latency'
    ).stdout
    assert 'node 2 cpus: \n' in text or 'node 2 cpus:\n' in text
    assert '17  17  10' in text
    assert text.splitlines()[-3:-1] == ['1', '0-1']
    # Node 1 and node 2 are above the PCI hole: the RAM blocks distinguish accesses to them.
    for node in (0, 1, 2):
        before = lab.machine.counts()
        lab.run(f'/opt/lab/numawalk 2 {node} 8 10')
        after = lab.machine.counts()
        grown = [b - a for a, b in zip(before[2]['dram'], after[2]['dram'])]
        assert grown[node] == max(grown) and grown[node] >= 10 * (8 << 20) // 64


def test_equal_shapes_share_a_frozen_state():
    """Equal shapes have equal keys, and different shapes have different keys."""
    assert Shape().key() == Shape(memory_mib=(2048, 2048)).key()
    assert Shape().key() != Shape(cgroup='v1').key()
