# SPDX-License-Identifier: Apache-2.0
"""Test the package as an operator installs it: the wheel, in an environment of its own."""

import email
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import zipfile

from tests.fixtures.checkout import TOP


def run(*command):
    """Run a command; return its output.

    :raises AssertionError: with its output, if it fails
    """
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd='/',
    )
    if done.returncode:
        raise AssertionError(f'{command} ended with {done.returncode}:\n{done.stdout}')
    return done.stdout


class WheelTest(unittest.TestCase):
    top: pathlib.Path
    wheel: pathlib.Path
    host: pathlib.Path

    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory()
        cls.addClassCleanup(directory.cleanup)
        cls.top = pathlib.Path(directory.name)
        run(sys.executable, '-m', 'pip', 'wheel', '-q', '--no-deps', '-w', cls.top, TOP)
        (cls.wheel,) = cls.top.glob('*.whl')
        cls.host = cls.top / 'venv'
        run('/usr/bin/python3', '-m', 'venv', '--without-pip', cls.host)
        # Without dependencies: the hook and the command that installs it need none.
        run(
            sys.executable,
            '-m',
            'pip',
            '--python',
            cls.host / 'bin/python',
            'install',
            '-q',
            '--no-deps',
            cls.wheel,
        )

    def test_the_base_install_needs_small_oslo_libraries_only(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            (name,) = (n for n in wheel.namelist() if n.endswith('.dist-info/METADATA'))
            metadata = email.message_from_bytes(wheel.read(name))
        base = {
            requirement.partition('>')[0]
            for requirement in metadata.get_all('Requires-Dist')
            if 'extra ==' not in requirement
        }
        self.assertEqual({'oslo.config'}, base)

    def test_every_module_of_the_checkout_is_in_the_wheel(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            shipped = {name for name in wheel.namelist() if name.startswith('nova_numa_pmc/')}
        tracked = run('git', '-C', TOP, 'ls-files', 'nova_numa_pmc').split()
        self.assertEqual(set(tracked), shipped)

    def test_novas_package_gets_one_module_and_no_init_that_would_hide_it(self):
        with zipfile.ZipFile(self.wheel) as wheel:
            names = [name for name in wheel.namelist() if name.startswith('nova/')]
            (points,) = (n for n in wheel.namelist() if n.endswith('/entry_points.txt'))
            text = wheel.read(points).decode()
        self.assertEqual(['nova/compute/monitors/cpu/numa_pmc.py'], names)
        self.assertIn('numa_pmc = nova.compute.monitors.cpu.numa_pmc:Monitor', text)

    def test_the_wheel_has_scripts_and_samples_where_the_guide_says(self):
        for path in (
            'share/nova-numa-pmc/hooks/qemu',
            'share/nova-numa-pmc/systemd/nova-numa-agent.service',
            'share/nova-numa-pmc/systemd/nova-numa-metrics.service',
            'share/nova-numa-pmc/grafana/nova-numa-pmc.json',
            'share/nova-numa-pmc/prometheus/nova-numa-pmc.rules.yml',
            'share/nova-numa-pmc/systemd/perf-paranoid.conf',
            'share/nova-numa-pmc/nova-numa-pmc.conf.sample',
        ):
            with self.subTest(path=path):
                self.assertTrue((self.host / path).is_file())

    def test_the_command_installs_the_hook_into_another_root(self):
        root = self.top / 'root'
        (root / 'etc/libvirt/hooks').mkdir(parents=True)
        command = self.host / 'bin/nova-numa-rebalance'
        run(command, 'hook', 'install', '--root', root, '--force')
        script = root / 'etc/libvirt/hooks/qemu.d/50-nova-numa-pmc'
        self.assertTrue(os.access(script, os.X_OK))
        self.assertIn(str(self.host), script.read_text())
        self.assertIn('selftest: ok', run(script, '-', 'selftest'))
        run(command, 'hook', 'remove', '--root', root)
        self.assertFalse(script.exists())
