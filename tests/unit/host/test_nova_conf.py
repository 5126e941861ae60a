# SPDX-License-Identifier: Apache-2.0
"""Nova's options are read from the files, and in the order, that its service reads."""

import os

from hypothesis import given, settings, strategies
from oslo_config import cfg

from nova_numa_pmc.host import nova_conf, services
from tests.cases.root import RootCase
from tests.fixtures.services import add_process
from tests.fixtures.sysfs import write


class NovaConfTest(RootCase):
    def read(self, *texts):
        paths = []
        for number, text in enumerate(texts):
            write(self.root, '%d.conf' % number, text)
            paths.append(os.path.join(self.root, '%d.conf' % number))
        return nova_conf.NovaConf(paths)

    def test_options_are_read_as_oslo_reads_them(self):
        conf = self.read(
            '[DEFAULT]\nram_allocation_ratio = 1.5\nsite = x\ncompute_monitors = a,\n  b\n'
            '[filter_scheduler]\navailable_filters = one\navailable_filters = two\n'
            'weight_classes = y, z\n',
            '[DEFAULT]\nram_allocation_ratio = 2\n[filter_scheduler]\nhost_subset_size = 3\n',
        )
        self.assertEqual(2.0, conf.get('ram_allocation_ratio'))
        self.assertEqual(['one', 'two'], conf.get('available_filters', 'filter_scheduler'))
        self.assertEqual(['a', 'b'], conf.get('compute_monitors'))
        self.assertEqual(conf.files[1], conf.file_of('ram_allocation_ratio'))
        self.assertEqual(conf.files[0], conf.file_of('weight_classes', 'filter_scheduler'))

    def test_a_value_that_cannot_be_used_is_a_finding_and_the_default(self):
        conf = self.read('[filter_scheduler]\nhost_subset_size = many\n')
        self.assertEqual(1, conf.get('host_subset_size', 'filter_scheduler'))
        self.assertEqual(['nova-conf-value'], [f.code for f in conf.findings])
        self.assertNotIn('\n', conf.findings[0].message)

    @settings(max_examples=150, deadline=None)
    @given(
        strategies.lists(
            strategies.sampled_from(
                (
                    '[DEFAULT]',
                    '[compute]',
                    '[filter_scheduler]',
                    '[numa_pmc]',
                    '[',
                    '[]',
                    '=',
                    ':',
                    'a',
                    ' continued',
                    'compute_monitors',
                    'compute_monitors = ',
                    'cpu_shared_set = ^0-',
                    'update_resources_interval = 1e9',
                    'host_subset_size = -1',
                    'penalty_floor = nan',
                    'enabled_filters = $enabled_filters',
                    'weight_classes = ${a.b}',
                    '$',
                    '\x00',
                    '#x',
                    'ram_allocation_ratio = inf',
                    'max_pressure = ',
                    'unknown_weight = x',
                )
            )
            | strategies.text(max_size=30)
        )
    )
    def test_any_text_gives_values_and_findings_of_one_line(self, lines):
        conf = self.read('\n'.join(lines).encode('utf-8', 'surrogatepass'))
        for group, options in nova_conf.OPTIONS.items():
            for option in options:
                conf.get(option.name, group)
                conf.file_of(option.name, group)
        for finding in conf.findings:
            self.assertNotIn('\n', finding.message)

    def test_files_that_cannot_be_used_are_findings(self):
        os.mkfifo(os.path.join(self.root, 'fifo'))
        write(self.root, 'long', '#' * (nova_conf.SIZE_MAX_BYTES + 1))
        write(self.root, 'bytes', b'[DEFAULT]\nx = \xff\xfe\n')
        write(self.root, 'torn', '[DEFAULT\nx = 1\n')
        write(self.root, 'words', 'some words\n')
        for name in ('fifo', 'long', 'bytes', 'torn', 'words', 'absent', '.'):
            with self.subTest(name):
                conf = nova_conf.NovaConf([os.path.join(self.root, name)])
                self.assertEqual(['nova-conf-unreadable'], [f.code for f in conf.findings])
                self.assertEqual([], conf.get('compute_monitors'))


class FilesTest(RootCase):
    def files(self, process=None, service='nova-compute'):
        return [
            os.path.relpath(path, self.root)
            for path in nova_conf.files_of(process, service, self.root)
        ]

    def test_configuration_files_are_those_where_oslo_looks(self):
        self.assertEqual([], self.files())
        write(self.root, 'etc/nova/nova.conf', '')
        write(self.root, 'etc/nova/nova-compute.conf', '')
        write(self.root, 'etc/nova/nova.conf.d/b.conf', '')
        write(self.root, 'etc/nova/nova.conf.d/a.conf', '')
        write(self.root, 'etc/nova/nova.conf.d/README', '')
        self.assertEqual(
            [
                'etc/nova/nova.conf',
                'etc/nova/nova-compute.conf',
                'etc/nova/nova.conf.d/a.conf',
                'etc/nova/nova.conf.d/b.conf',
            ],
            self.files(),
        )

    def test_files_override_each_other_in_oslos_order(self):
        for path in ('nova.conf', 'nova.conf.d/a.conf', 'other.conf', 'd/x.conf'):
            write(self.root, 'etc/nova/' + path, '[compute]\ncpu_shared_set = %s\n' % path)
        directory = os.path.join(self.root, 'etc/nova')
        for number, arguments in enumerate(
            (
                [],
                ['--config-file', '/etc/nova/nova.conf', '--config-file=/etc/nova/other.conf'],
                ['--config-dir=/etc/nova/d'],
                ['--config-dir', '/etc/nova/d', '--config-file', '/etc/nova/other.conf'],
                ['--config-file', '/etc/nova/other.conf', '--config-dir', '/etc/nova/d'],
            )
        ):
            with self.subTest(arguments=arguments):
                oslo = cfg.ConfigOpts()
                oslo.register_opts([cfg.StrOpt('cpu_shared_set')], group='compute')
                oslo(
                    [argument.replace('/etc/nova', directory) for argument in arguments],
                    default_config_files=[os.path.join(directory, 'nova.conf')],
                    default_config_dirs=[os.path.join(directory, 'nova.conf.d')],
                )
                root = os.path.join(self.root, str(number))
                add_process(root, 9, ('/usr/bin/nova-compute', *arguments), inside='..')
                process = services.find(root, 'nova-compute')
                conf = nova_conf.NovaConf(nova_conf.files_of(process, 'nova-compute', root))
                self.assertEqual(
                    oslo.compute.cpu_shared_set, conf.get('cpu_shared_set', 'compute')
                )

    def found(self, process=None):
        conf = nova_conf.find(process, 'nova-compute', self.root)
        names = [os.path.relpath(path, self.root) for path in conf.files]
        return names, [finding.code for finding in conf.findings]

    def test_a_file_that_others_can_change_is_not_believed_and_is_a_finding(self):
        write(self.root, 'etc/nova/nova.conf', '')
        write(self.root, 'etc/nova/nova.conf.d/a.conf', '')
        good = ['etc/nova/nova.conf', 'etc/nova/nova.conf.d/a.conf'], []
        self.assertEqual(good, self.found())
        for path in ('etc/nova/nova.conf', 'etc/nova/nova.conf.d', 'etc/nova', 'etc'):
            for mode in (0o777, 0o775):
                with self.subTest(path=path, mode=oct(mode)):
                    full = os.path.join(self.root, path)
                    before = os.stat(full).st_mode
                    os.chmod(full, mode)
                    self.assertEqual(
                        ([], {'nova-conf-exposed'}), (self.found()[0], {*self.found()[1]})
                    )
                    os.chmod(full, before)
        self.assertEqual(good, self.found())

    def test_a_link_of_others_to_a_file_of_root_is_not_believed(self):
        write(self.root, 'etc/motd', '[compute]\n')
        os.makedirs(self.root + '/home/eve')
        os.symlink('/etc/motd', self.root + '/home/eve/nova.conf')
        add_process(self.root, 9, ('/usr/bin/nova-compute', '--config-file=/home/eve/nova.conf'))
        process = services.find(self.root, 'nova-compute')
        self.assertEqual((['etc/motd'], []), self.found(process))
        os.chmod(self.root + '/home/eve', 0o777)
        self.assertEqual(([], ['nova-conf-exposed']), self.found(process))

    def test_a_link_in_a_container_does_not_lead_out_of_it(self):
        write(self.root, 'etc/nova/nova.conf', '[compute]\ncpu_shared_set = 1\n')
        write(self.root, 'image/etc/nova/other.conf', '')
        os.symlink('/etc/nova/other.conf', self.root + '/image/etc/nova/nova.conf')
        add_process(self.root, 9, ('/usr/bin/nova-compute',), inside='image')
        process = services.find(self.root, 'nova-compute')
        self.assertEqual((['proc/9/root/etc/nova/other.conf'], []), self.found(process))

    def test_files_of_novas_account_are_believed_unless_guests_run_as_it(self):
        if os.geteuid() != 0:
            self.skipTest('only root can give a file to another user')
        write(self.root, 'etc/nova/nova.conf', '')
        os.chmod(self.root, 0o755)
        os.chown(self.root + '/etc/nova/nova.conf', 4321, -1)
        self.assertEqual(([], ['nova-conf-exposed']), self.found())
        add_process(self.root, 9, ('/usr/bin/python3', '/usr/bin/nova-compute'), uid=4321)
        process = services.find(self.root, 'nova-compute')  # its unit's own account
        self.assertEqual((['etc/nova/nova.conf'], []), self.found(process))
        write(self.root, 'etc/passwd', 'x:x:1:1::/:/\nnova:x:4321:4321::/var/lib/nova:/bin/sh\n')
        self.assertEqual((['etc/nova/nova.conf'], []), self.found())
        write(self.root, 'run/libvirt/qemu/a.pid', '77\n')
        write(self.root, 'proc/77/status', 'Uid:\t4321\t4321\t4321\t4321\n')
        self.assertEqual(([], ['nova-conf-exposed']), self.found())
        self.assertEqual(([], ['nova-conf-exposed']), self.found(process))
        os.chown(self.root + '/etc/nova/nova.conf', 0, 4321)
        os.chmod(self.root + '/etc/nova/nova.conf', 0o660)
        for groups, is_believed in (('Groups:\t7\n', True), ('Groups:\t7 4321 \n', False)):
            write(self.root, 'proc/77/status', 'Uid:\t8 8 8 8\nGid:\t9\t9\t9\t9\n' + groups)
            self.assertEqual(is_believed, bool(self.found()[0]), groups)
