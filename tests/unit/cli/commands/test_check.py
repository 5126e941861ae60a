# SPDX-License-Identifier: Apache-2.0
"""A host that is set up well has no finding, and each thing broken has one with its remedy."""

import contextlib
import io
import json
import os
import shutil
import tempfile
import time
import unittest

from nova_numa_pmc.checks import nova
from nova_numa_pmc.cli.commands import check
from nova_numa_pmc.cmd import rebalance
from nova_numa_pmc.core import rates
from nova_numa_pmc.core.finding import NOTE, Finding
from nova_numa_pmc.state import publication
from tests.fixtures import fake_host, model_records
from tests.fixtures.services import add_process

GOOD_NOVA = """[DEFAULT]
compute_monitors = cpu.numa_pmc
ram_allocation_ratio = 1.5
[filter_scheduler]
available_filters = nova.scheduler.filters.all_filters
available_filters = %s
enabled_filters = ComputeFilter,NUMAPressureFilter
weight_classes = nova.scheduler.weights.all_weighers,%s
""" % (nova.FILTER, nova.WEIGHER)
SITE = 'usr/lib/python3/dist-packages/'


class CheckCommandTest(unittest.TestCase):
    def setUp(self):
        self.root = tempfile.mkdtemp(prefix='check-')
        self.addCleanup(shutil.rmtree, self.root)
        self.host = fake_host.FakeHost(self.root)
        self.host.configure('')  # installed with the hook's own time limit
        self.addCleanup(self.host.close)

    def call(self, *arguments):
        """Run the command with --json; return (exit code, {code: finding})."""
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            code = rebalance.main(['check', *arguments, '--root', self.root, '--json'])
        answer = json.loads(out.getvalue())
        return code, answer['roles'], {finding['code']: finding for finding in answer['findings']}

    def add_nova(self, service):
        """Add one of Nova's services, with the packages that its Python finds."""
        for name in ('', 'compute/', 'compute/monitors/', 'compute/monitors/cpu/'):
            self.host.write(SITE + 'nova/%s__init__.py' % name, '')
        self.host.write(SITE + 'nova/compute/monitors/cpu/numa_pmc.py', '')
        self.host.write(SITE + 'nova_numa_pmc/__init__.py', '')
        self.host.write(SITE + 'nova_numa_pmc-1.dist-info/METADATA', '')
        add_process(
            self.root,
            901,
            ('/usr/bin/python3', '/usr/bin/' + service),
            started_s=int(time.time()) + 60,
        )

    def good_host(self):
        add_process(self.root, 900, ('/usr/sbin/libvirtd',), started_s=time.time() + 60)
        self.add_nova('nova-compute')
        with contextlib.redirect_stdout(io.StringIO()):
            rebalance.main(['hook', 'install', '--root', self.root])
        self.host.configure('[placement]\nram_allocation_ratio = 1.5\n')
        self.host.write('etc/nova/nova.conf', GOOD_NOVA)
        self.host.write('dev/vhost-net', '')
        publication.write(
            self.host.path('run/nova-numa-pmc'),
            publication.Publication(
                time.time(), 10, model_records.counted_empty_host(), source='guests'
            ),
        )

    def test_a_good_compute_host_has_no_finding(self):
        self.good_host()
        self.assertEqual((0, ['compute'], {}), self.call())

    def test_a_good_controller_has_no_finding(self):
        self.add_nova('nova-scheduler')
        self.host.write('etc/nova/nova.conf', GOOD_NOVA)
        self.assertEqual((0, ['controller'], {}), self.call())

    def test_a_host_where_nothing_is_set_up_has_findings(self):
        self.host.write('etc/nova/nova.conf', '[DEFAULT]\n')
        code, roles, findings = self.call('--role', 'compute')
        self.assertEqual((1, ['compute']), (code, roles))
        self.assertLessEqual(
            {
                'monitor-not-enabled',
                'hook-not-installed',
                'publication-missing',
                'nova-compute-not-running',
            },
            findings.keys(),
        )
        code, _, findings = self.call('--role', 'controller')
        self.assertEqual(1, code)
        self.assertLessEqual({'weigher-not-enabled', 'filter-not-enabled'}, findings.keys())
        self.assertEqual(
            self.host.path('etc/nova/nova.conf'), findings['weigher-not-enabled']['file']
        )

    def test_each_thing_broken_is_found(self):
        self.good_host()
        for path, text, expected in (
            ('proc/sys/kernel/numa_balancing', '1\n', 'numa-balancing'),
            (
                'etc/nova/nova.conf',
                GOOD_NOVA.replace('cpu.numa_pmc', 'virt_driver'),
                'monitor-not-enabled',
            ),
            (
                'etc/nova/nova.conf',
                GOOD_NOVA + '[compute]\ncpu_shared_set = x\n',
                'cpu-shared-set-invalid',
            ),
            ('etc/nova/nova.conf', 'torn', 'nova-conf-unreadable'),
            ('etc/nova-numa-pmc/nova-numa-pmc.conf', '[placement]\n', 'ram-ratio'),
            ('run/nova-numa-pmc/host', '{}', 'publication-unreadable'),
            ('etc/libvirt/hooks/qemu.d/50-nova-numa-pmc', '#!/bin/sh\n', 'hook-outdated'),
        ):
            with self.subTest(expected):
                with open(self.host.path(path), 'a+', encoding='utf-8') as stream:
                    stream.seek(0)
                    before = stream.read()
                self.host.write(path, text)
                self.assertIn(expected, self.call()[2])
                self.host.write(path, before)
        os.chmod(self.host.path('etc/libvirt/hooks/qemu.d/50-nova-numa-pmc'), 0o644)
        self.assertIn('hook-not-executable', self.call()[2])

    def test_libvirt_in_a_container_is_checked_there(self):
        add_process(self.root, 900, ('/usr/sbin/libvirtd',), inside='image')
        findings = self.call()[2]
        self.assertIn('hook-not-in-container', findings)
        self.assertNotIn('hook-not-installed', findings)
        image = self.host.path('image')
        with contextlib.redirect_stdout(io.StringIO()):
            rebalance.main(['hook', 'install', '--root', image])
        hook = os.path.join(image, 'etc/libvirt/hooks/qemu.d/50-nova-numa-pmc')
        self.host.write('image/proc/sys/kernel/random/boot_id', 'x\n')
        self.assertFalse([code for code in self.call()[2] if code.startswith('hook-')])
        os.chmod(hook, 0o644)
        self.assertTrue(
            self.call()[2]['hook-not-executable']['file'].endswith(
                'proc/900/root/etc/libvirt/hooks/qemu.d/50-nova-numa-pmc'
            )
        )

    def test_a_host_of_no_role_is_a_finding(self):
        code, roles, findings = self.call()
        self.assertEqual((1, [], ['role-unknown']), (code, roles, list(findings)))

    def test_what_novas_python_can_load_is_checked(self):
        self.good_host()
        os.unlink(self.host.path(SITE + 'nova/compute/monitors/cpu/numa_pmc.py'))
        self.assertEqual(['monitor-shim-missing'], list(self.call()[2]))

    def test_text_of_a_finding_cannot_control_the_terminal(self):
        odd = Finding('code', NOTE, 'a\x1b[2J', 'b\x9b', '/etc/\udc80\n')
        self.assertEqual(
            ['note: a?[2J [code]', '  remedy: b?', '  file: /etc/??'],
            check.to_lines(('compute',), [odd])[:3],
        )


def run_events(*arguments):
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = rebalance.main(['check', '--events', *arguments])
    return code, output.getvalue()


class EventsTest(unittest.TestCase):
    def test_events_shows_the_register_code_of_the_deck_and_caveats(self):
        code, text = run_events('--cpu', 'westmere-dp')
        self.assertEqual(0, code)
        self.assertIn('r53100f', text)
        self.assertIn('prefetches and stores are left out', text)

    def test_each_role_of_this_machine_is_shown_with_an_event_or_as_missing(self):
        code, text = run_events()
        self.assertEqual(0, code)
        for role in rates.ROLES:
            self.assertIn(role, text)

    def test_json_has_the_cpus_name_and_missing_roles(self):
        code, text = run_events('--cpu', 'GenuineIntel-6-55-4', '--json')
        self.assertEqual(0, code)
        report = json.loads(text)
        self.assertEqual('Skylake-SP', report['known_as'])
        self.assertIn('mem_traffic', report['missing'])
