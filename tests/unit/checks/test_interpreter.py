# SPDX-License-Identifier: Apache-2.0
"""What nova-compute's Python can load is read from files, and nothing that is found is run."""

import os
import shutil
import subprocess
import sys
import tempfile
import venv

from nova_numa_pmc.checks import interpreter
from nova_numa_pmc.host import services
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write

NOVA = ('nova', 'nova/compute', 'nova/compute/monitors', 'nova/compute/monitors/cpu')
SHIM = 'nova/compute/monitors/cpu/numa_pmc.py'


def install(root, site, names=(*NOVA, 'nova_numa_pmc'), shim=True, kind='dist-info'):
    """Write packages with our entry point into a directory below ``root``."""
    for name in names:
        write(root, '%s/%s/__init__.py' % (site, name), 'raise SystemExit(3)\n')
    if shim:
        write(root, '%s/%s' % (site, SHIM), '')
    write(root, '%s/nova_numa_pmc-1.%s/entry_points.txt' % (site, kind), '')


class InterpreterTest(RootCase):
    def read(self, python, base=None):
        return interpreter.read(python, base or self.root)

    def seen(self, site):
        return interpreter.InterpreterModules(
            '/usr/bin/python3',
            site + '/nova',
            site + '/nova/compute/monitors/cpu',
            site + '/' + SHIM,
            site + '/nova_numa_pmc',
            ('1 in ' + site,),
        )

    def test_the_interpreter_is_the_one_that_runs_nova_compute(self):
        for command, expected in (
            (('/opt/venv/bin/python3', '/opt/venv/bin/nova-compute'), '/opt/venv/bin/python3'),
            (('python3', '/opt/venv/bin/nova-compute'), None),
            (('/usr/bin/nova-compute',), '/usr/bin/python3.11'),
        ):
            with self.subTest(command=command), tempfile.TemporaryDirectory() as root:
                write(root, 'usr/bin/nova-compute', '#!/usr/bin/python3.11 -I\nimport nova\n')
                add_process(root, 9, command)
                process = services.find(root, 'nova-compute')
                self.assertEqual(expected, interpreter.python_of(process, root=root))

    def test_the_interpreter_is_read_from_the_scripts_first_line(self):
        for text, expected in (
            (b'#!/usr/bin/python3\n', '/usr/bin/python3'),
            (b'#!/bin/sh\n', None),
            (b'\x7fELF\xff\n', None),
            (b'', None),
            (b'#! python3\n', None),
            (b'#!\n', None),
        ):
            with self.subTest(text=text):
                write(self.root, 'usr/bin/nova-compute', text)
                self.assertEqual(
                    expected, interpreter.python_of(None, '/usr/bin/nova-compute', self.root)
                )
        self.assertIsNone(interpreter.python_of(None, '/usr/bin/absent', self.root))

    def test_packages_are_found_where_each_system_installs_them(self):
        os.makedirs(self.root + '/usr/bin')
        write(self.root, 'usr/bin/python3.11', '')
        os.symlink('python3.11', self.root + '/usr/bin/python3')
        for site in ('/usr/lib/python3/dist-packages', '/usr/lib64/python3.11/site-packages'):
            for kind in ('dist-info', 'egg-info'):
                with self.subTest(site=site, kind=kind):
                    install(self.root, site.lstrip('/'), kind=kind)
                    self.assertEqual(self.seen(site), self.read('/usr/bin/python3'))
                    shutil.rmtree(self.root + site)
        # pip installs beside Debian's Nova, which does not find the shim there.
        install(self.root, 'usr/lib/python3/dist-packages', NOVA, shim=False)
        install(self.root, 'usr/local/lib/python3.11/dist-packages', ('nova_numa_pmc',))
        modules = self.read('/usr/bin/python3')
        local = '/usr/local/lib/python3.11/dist-packages'
        self.assertEqual(('', local + '/nova_numa_pmc'), (modules.shim, modules.package))

    def test_a_virtual_environment_has_only_its_own_packages_or_the_systems_too(self):
        install(self.root, 'usr/lib/python3/dist-packages')
        site = '/opt/venv/lib/python3.11/site-packages'
        install(self.root, site.lstrip('/'), ('nova_numa_pmc',), shim=False)
        for text, found in (('false', ''), ('true', '/usr/lib/python3/dist-packages/nova')):
            write(
                self.root,
                'opt/venv/pyvenv.cfg',
                'home = /usr/bin\ninclude-system-site-packages = %s\nversion = 3.11.2\n' % text,
            )
            modules = self.read('/opt/venv/bin/python3')
            self.assertEqual(found, modules.nova)
            self.assertEqual(site + '/nova_numa_pmc', modules.package)

    def test_what_is_read_is_what_an_interpreter_of_this_system_finds(self):
        directory = os.path.join(self.root, 'venv')
        venv.create(directory, symlinks=True)
        python = directory + '/bin/python3'
        install('/', self.own_site(python).lstrip('/'))
        modules = self.read(python, '/')
        self.assertEqual(self.own_site(python) + '/nova', modules.nova)
        self.assertEqual(('1 in ' + self.own_site(python),), modules.installed)

    def own_site(self, python):
        command = [python, '-c', 'import sysconfig; print(sysconfig.get_path("purelib"))']
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    def test_links_of_a_container_do_not_lead_out_of_it(self):
        image, outside = self.root + '/image', self.root + '/outside'
        install(outside, 'site')
        os.makedirs(image + '/usr/lib/python3')
        for target in (outside + '/site', '../' * 20 + outside[1:] + '/site'):
            os.symlink(target, image + '/usr/lib/python3/dist-packages')
            self.assertEqual('', self.read('/usr/bin/python3', image).nova)
            os.unlink(image + '/usr/lib/python3/dist-packages')
        install(image, 'opt/site')
        os.symlink('/opt/site', image + '/usr/lib/python3/dist-packages')
        self.assertEqual(
            '/usr/lib/python3/dist-packages/nova', self.read('/usr/bin/python3', image).nova
        )

    def parts(self):
        return interpreter.read_parts(
            self.root, [interpreter.read_service(self.root, 'nova-compute')]
        )

    def test_nothing_that_is_found_is_run(self):
        trap = '#!/bin/sh\ntouch %s/ran\n' % self.root
        for path in ('usr/bin/python3', 'usr/bin/nova-compute'):
            write(self.root, path, trap)
            os.chmod(os.path.join(self.root, path), 0o755)
        site = 'usr/lib/python3/dist-packages'
        install(self.root, site)
        for name in ('a.pth', 'x_finder.py', 'sitecustomize.py'):
            write(self.root, site + '/' + name, 'import os; os.mkdir("%s/ran")\n' % self.root)
        os.mkfifo(os.path.join(self.root, site, 'b.pth'))
        self.assertTrue(self.read('/usr/bin/python3').nova)
        self.assertFalse(os.path.exists(self.root + '/ran'))
        self.assertNotIn('subprocess', vars(interpreter))

    def test_an_odd_installation_is_read_without_an_error(self):
        site = 'usr/lib/python3/dist-packages'
        for text in (b'\xff\xfe[', b'[' * 9999, b'1', b'[]: 1', b''):
            with self.subTest(text[:9]):
                write(self.root, site + '/x_finder.py', b'MAPPING = {' + text + b'}\n')
                write(self.root, site + '/a.pth', text)
                self.assertEqual((), self.read('/usr/bin/python3').installed)
        self.assertEqual('', self.read(sys.executable).nova)

    def test_editable_installations_are_found(self):
        site = 'opt/venv/lib/python3.11/site-packages'
        write(self.root, 'opt/venv/pyvenv.cfg', 'home = /usr/bin\nversion_info = 3.11.2.final.0\n')
        install(self.root, 'opt/stack/nova')
        write(self.root, site + '/a.pth', '# no\nimport os; os._exit(3)\n/opt/stack/nova\n/no\n')
        modules = self.read('/opt/venv/bin/python3')
        self.assertEqual('/opt/stack/nova/' + SHIM, modules.shim)
        write(self.root, site + '/a.pth', 'import __editable___nova_1_finder\n')
        mapping = "MAPPING: dict[str, str] = {'nova': '/opt/stack/nova/nova'}\nX = f()\n"
        write(self.root, site + '/__editable___nova_1_finder.py', mapping)
        self.assertEqual('/opt/stack/nova/' + SHIM, self.read('/opt/venv/bin/python3').shim)

    def test_an_installation_by_pip_that_wins_over_the_package_is_reported(self):
        write(self.root, 'usr/bin/nova-compute', '#!/usr/bin/python3\n')
        write(self.root, 'usr/bin/python3.11', '')
        os.symlink('python3.11', self.root + '/usr/bin/python3')
        site, local = '/usr/lib/python3/dist-packages', '/usr/local/lib/python3.11/dist-packages'
        install(self.root, site.lstrip('/'))
        write(self.root, 'etc/libvirt/hooks/qemu.d/50-nova-numa-pmc', 'site=%s\n' % site)
        parts = self.parts()
        self.assertEqual({'hook': ('1 in ' + site,), 'nova-compute': ('1 in ' + site,)}, parts)
        self.assertEqual([], list(interpreter.check_parts(parts)))
        write(self.root, local.lstrip('/') + '/nova_numa_pmc-2.dist-info/entry_points.txt', '')
        parts = self.parts()
        self.assertEqual(('2 in ' + local, '1 in ' + site), parts['nova-compute'])
        self.assertEqual(
            ['installed-twice', 'versions-differ'],
            [finding.code for finding in interpreter.check_parts(parts)],
        )

    def test_what_a_services_account_names_cannot_control_a_terminal(self):
        write(self.root, 'usr/bin/nova-compute', '#!/usr/bin/python3\n')
        write(self.root, 'usr/bin/python3', '')
        site = 'usr/lib/python3/dist-packages'
        write(self.root, site + '/nova_numa_pmc-1\x1b[2J\n.dist-info/METADATA', '')
        self.assertEqual({'nova-compute': ('1?[2J? in /' + site,)}, self.parts())
