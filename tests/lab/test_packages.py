# SPDX-License-Identifier: Apache-2.0
"""The Debian packages come and go while guests run (build/deb/bookworm, by `make deb`)."""

import pytest
from machine.image import CHECKOUT

pytestmark = pytest.mark.full

SPEC = {'memory_mib': 32, 'cmdline': 'duty=10'}
PACKAGES = ('python3-nova-numa-pmc', 'nova-numa-pmc-common', 'nova-numa-agent')
HOOK = '/etc/libvirt/hooks/qemu.d/50-nova-numa-pmc'
#: The lab's own installation, which would win over the package.
WITHOUT_WHEEL = (
    'rm -rf /usr/local/lib/python3*/dist-packages/nova_numa_pmc* /usr/local/bin/nova-numa-* '
    '/usr/local/sbin/nova-numa-*'
)
#: Allowed nodes and CPUs may change, but these processes have to stay.
PROCESSES = 'pidof libvirtd; cat /run/libvirt/qemu/old.pid'


@pytest.fixture
def host(machines):
    """Provide a machine with the packages' files and a guest, and without the lab's wheel."""
    debs = [
        path
        for name in PACKAGES
        for path in (CHECKOUT / 'build/deb/bookworm').glob(f'{name}_*.deb')
    ]
    if len(debs) != len(PACKAGES):
        pytest.skip('run make deb first')
    lab = machines.get(fresh=True)
    lab.run(WITHOUT_WHEEL + '; mkdir -p /run/debs')
    lab.machine.push(debs, '/run/debs')
    lab.guests.start([dict(SPEC, name='old')])
    yield lab
    machines.discard(lab)


def test_guests_keep_running_while_packages_are_installed_upgraded_removed_and_purged(host):
    """The hook comes and goes with the packages; neither libvirtd nor a guest restarts."""
    before = host.run(PROCESSES).stdout
    for step in ('install', 'upgrade'):
        host.run('dpkg -i /run/debs/*.deb', timeout=600)
        assert host.run(PROCESSES).stdout == before, step
        host.run(f'test -x {HOOK} && systemctl is-active nova-numa-agent')
    host.guests.start([dict(SPEC, name='new')])
    host.wait_for_hooks()
    assert host.guests.report()['new']['cpus'] in (['0-1'], ['2-3'])
    host.run('dpkg -r nova-numa-agent nova-numa-pmc-common python3-nova-numa-pmc', timeout=600)
    host.run(f'test ! -e {HOOK} && ! systemctl is-active nova-numa-agent')
    assert host.run(PROCESSES).stdout == before
    assert host.running() == ['new', 'old']
    host.run('dpkg -P nova-numa-agent nova-numa-pmc-common python3-nova-numa-pmc', timeout=600)
    host.run('test ! -e /var/lib/nova-numa-pmc -a ! -e /etc/nova-numa-pmc')
    assert host.run(PROCESSES).stdout == before
    assert host.running() == ['new', 'old']
