# SPDX-License-Identifier: Apache-2.0
"""The compute hosts: lab machines with Nova's compute service and, by the guide, the package."""

import json
import pathlib
import re
import time
import uuid

from machine import image
from machine.guests import Guests
from machine.shape import Shape
from machine.vm import LAB_DIR, WARM_UP, Base, Machine, MachineError, run_dir

from tests.stack import config, guide, hostimage, places
from tests.stack.service import StackError, print_step, wait

INSIDE = pathlib.Path(__file__).parent / 'inside'

HOSTS = {'cmp1': '192.168.77.11', 'cmp2': '192.168.77.12'}
#: Without counters: Nova and pip take half the time, and the location of pages does not need
#: them. Two habits of the kernel write 2 MiB at once, which is expensive in emulation (below):
#: clearing what is allocated, and moving huge pages between nodes.
SHAPE = Shape(
    nodes=2,
    cpus_per_node=2,
    memory_mib=(2048, 2048),
    pmu=False,
    append='init_on_alloc=0 transparent_hugepage=madvise',
)
#: While QEMU has translations of a page's code, it searches all of them at each write to that
#: page, which is wasted in freed pages (doc/source/contributor/lab.rst). Without this limit, the
#: hosts stood still for minutes and lost libvirt's and RabbitMQ's connections.
TRANSLATED_MIB = 512
NETWORK_CARD = ('-device', 'virtio-net-pci,netdev=link,romfile=')
#: The last command of the guide, which needs a running nova-compute.
CHECK = 'nova-numa-rebalance check --role compute'
NOVA_LOG = '/var/log/nova-compute.log'
UNIT = f"""[Unit]
After=libvirtd.service
[Service]
Environment=PYTHONWARNINGS=ignore PATH=/opt/nova/bin:/usr/sbin:/usr/bin:/sbin:/bin
ExecStart=/opt/nova/bin/nova-compute --config-file /etc/nova/nova.conf
StandardOutput=append:{NOVA_LOG}
StandardError=append:{NOVA_LOG}
KillMode=process
"""
# What both hosts share, before the freeze: libvirt accepts migrations from its peers (on a network
# that only they are on), ssh lets Nova copy a disk, and Nova's modules are read once.
PREPARE = f"""set -e
{WARM_UP}
cat >/etc/systemd/system/nova-compute.service <<'END'
{UNIT}
END
mkdir -p /etc/nova /var/lib/nova/instances /var/lib/nova/locks
printf 'auth_tcp = "none"\\n' >>/etc/libvirt/libvirtd.conf
ssh-keygen -q -t ed25519 -N '' -f /root/.ssh/id_ed25519
cat /root/.ssh/id_ed25519.pub >>/root/.ssh/authorized_keys
printf 'StrictHostKeyChecking no\\nUserKnownHostsFile /dev/null\\nLogLevel ERROR\\n' \\
    >/root/.ssh/config
systemctl daemon-reload
systemctl stop libvirtd
systemctl start libvirtd-tcp.socket
systemctl start libvirtd
virsh -q domcapabilities --virttype kvm >/dev/null
PYTHONWARNINGS=ignore /opt/nova/bin/python -c 'import nova.cmd.compute, nova.compute.manager,
import nova.virt.libvirt.driver' 2>/dev/null || true
cat /opt/nova/lib/python3.11/site-packages/nova/virt/libvirt/*.py >/dev/null
sync
"""


def _guide_steps():
    """Return the guide's commands on a compute host: (those before the package's, the others)."""
    steps = [
        *guide.commands(guide.INSTALL, 'On a compute host'),
        *guide.commands(guide.AGENT, 'Install it'),
        *guide.commands(guide.NOVA, 'On compute hosts'),
    ]
    early = [step for step in steps if ' -m venv ' in step]
    return early, [step for step in steps if step not in (*early, CHECK)]


def _base():
    early, _ = _guide_steps()
    return Base(
        hostimage.host_image(),
        user_network='restrict=off',
        devices=('-netdev', 'user,id=link,restrict=on', *NETWORK_CARD),
        warm_up='\n'.join([PREPARE, *early, 'sync']),
        translated_mib=TRANSLATED_MIB,
    )


def _link(name):
    """Return QEMU's arguments for the link between the two hosts: a socket for each end."""
    (own,) = [run_dir(n) / 'link' for n in HOSTS if n == name]
    (other,) = [run_dir(n) / 'link' for n in HOSTS if n != name]
    own.unlink(missing_ok=True)
    return (
        '-netdev',
        f'dgram,id=link,local.type=unix,local.path={own},remote.type=unix,remote.path={other}',
        *NETWORK_CARD,
    )


class Host:
    """A compute host that is up."""

    def __init__(self, name, machine):
        """Wrap a machine; Host.up() starts one."""
        self.name, self.machine, self.address = name, machine, HOSTS[name]
        self.run = machine.run

    @classmethod
    def running(cls, name):
        """Return the host of that name, or None if it does not run."""
        try:
            return cls(name, Machine.find(name))
        except MachineError:
            return None

    @classmethod
    def find(cls, name):
        """Return the host of that name; raise StackError if it does not run."""
        host = cls.running(name)
        if not host:
            raise StackError(f'no host {name} is up: make stack-up ARGS=--hosts')
        return host

    @classmethod
    def up(cls, name):
        """Thaw a host and give it its own name, address and identity."""
        machine = Machine.up(name, SHAPE, package=False, base=_base(), devices=_link(name))
        self = cls(name, machine)
        number = list(HOSTS).index(name) + 1
        names = '\n'.join(f'{address} {host}' for host, address in HOSTS.items())
        self.run(f"""set -e
hostname {name}; echo {name} >/etc/hostname
printf '127.0.0.1 localhost\\n{names}\\n' >/etc/hosts
rm -f /etc/machine-id; systemd-machine-id-setup 2>/dev/null
ip link set eth1 address 52:54:00:77:00:{number:02x} up
ip addr replace {self.address}/24 dev eth1
echo 'host_uuid = "{uuid.uuid4()}"' >>/etc/libvirt/libvirtd.conf
systemctl restart libvirtd
""")
        return self

    def start_nova(self, layout, more_ini=''):
        """Write nova.conf and start nova-compute.

        :param more_ini: appended to the file, as an operator does
        """
        text = config.ini(config.nova_compute(layout, self.name, self.address)) + more_ini
        self.run('umask 077; cat >/etc/nova/nova.conf', stdin=text)
        # For Nova, it is the same host as the machine of that name in an earlier run.
        self.run(f'echo {uuid.uuid5(uuid.NAMESPACE_DNS, self.name)} >/var/lib/nova/compute_id')
        # A graceful stop would take minutes.
        self.run('systemctl kill -s KILL nova-compute; systemctl restart nova-compute')

    def install_package(self, options):
        """Follow the operator's guide up to Nova's configuration.

        The package's environment is made before the freeze, because that takes minutes here.

        :param options: text of nova-numa-pmc.conf; the default times are for real hardware
        """
        self.run(
            'mkdir -p /etc/nova-numa-pmc /root/package && cat >'
            '/etc/nova-numa-pmc/nova-numa-pmc.conf',
            stdin=options,
        )
        self.machine.push([image.wheel()], '/root/package')
        for command in _guide_steps()[1]:
            self.run_step(command)

    def run_step(self, command):
        """Run a step of the guide, with the wheel for its dot and Nova's Python for its python."""
        wheel = f'/root/package/{image.wheel().name}'
        line = re.sub(
            r"(pip install(?: --no-deps)?) (?:\.|'\.(\[[a-z,]+\])')$",
            lambda install: f"{install[1]} '{wheel}{install[2] or ''}'",
            command,
        )
        line = line.replace('/usr/bin/python3 -m pip', '/opt/nova/bin/python -m pip')
        began = time.monotonic()
        done = self.run('export PATH=/opt/nova/bin:$PATH; ' + line, timeout=400)
        print_step(f'{self.name}: {command} ({time.monotonic() - began:.0f} s)')
        return done.stdout

    def cpus_of(self, node):
        """Return a node's CPUs as the kernel lists them: '2-3'."""
        cpus = self.machine.shape.node_cpus(node)
        return f'{cpus[0]}-{cpus[-1]}'

    def promises(self):
        """Return what the host has promised to guests, as a list of dicts."""
        done = self.run('cat /run/nova-numa-pmc/promises 2>/dev/null || echo {}')
        return json.loads(done.stdout).get('promises', [])

    def publication(self):
        """Return what the agent has published."""
        return json.loads(self.run('cat /run/nova-numa-pmc/host').stdout)

    def run_json(self, command, timeout_s=300):
        """Run nova-numa-rebalance with a command, in JSON; return (exit code, answer)."""
        done = self.run(f'nova-numa-rebalance {command} --json', timeout=timeout_s, check=False)
        try:
            return done.returncode, json.loads(done.stdout)
        except ValueError:
            raise StackError(
                f'{self.name}: nova-numa-rebalance {command}: exit '
                f'{done.returncode}: {done.stderr[-500:]}'
            ) from None

    def guest_places(self):
        """Return {domain's name: :func:`places.place`} by the kernel, once no hook is working."""
        guests = Guests(self.machine)
        guests.wait_for_hooks()
        reports = guests.report()
        if not reports:
            return {}
        self.machine.push([INSIDE / 'vcpunodes.py'], LAB_DIR)
        ticks = json.loads(self.run(f'python3 {LAB_DIR}/vcpunodes.py').stdout)
        return {name: places.place(guest, ticks.get(name)) for name, guest in reports.items()}

    def force(self, homes):
        """Hold paused guests' CPUs, promise and memory to {domain's name: node}, as ours."""
        Guests(self.machine).force(homes, '/opt/nova-numa-pmc/bin/python')

    def nova_log(self):
        """Return nova-compute's log."""
        return self.run(f'cat {NOVA_LOG}').stdout

    def journal(self, since_s=0):
        """Return the hook's and the agent's lines of the journal as JSON, one per line.

        :param since_s: start of the lines [s since the epoch]
        """
        # Of all machine ids, because the host got its own when it was already up. Messages of
        # systemd about the agent have UNIT; long messages are shown with --all only.
        unit = 'nova-numa-agent.service'
        return self.run(
            f'journalctl --quiet --merge --no-pager --all --since @{since_s} '
            '--output json SYSLOG_IDENTIFIER=nova-numa-pmc '
            f'+ _SYSTEMD_UNIT={unit} + UNIT={unit}',
            check=False,
        ).stdout

    def down(self):
        """Stop the machine."""
        self.machine.down()


def wait_for_services(cloud, names, timeout_s):
    """Wait until nova-compute of each host is up and has reported its inventory to Placement."""

    def ready():
        services_up = {
            s.host for s in cloud.compute.services(binary='nova-compute') if s.state == 'up'
        }
        with_inventory = {h.name for h in cloud.compute.hypervisors()}
        return services_up >= set(names) and with_inventory >= set(names)

    wait(ready, timeout_s, f'nova-compute on {", ".join(names)}', pause_s=3)


def down():
    """Stop the hosts that are up; return their names."""
    ended = []
    for name in HOSTS:
        host = Host.running(name)
        if host:
            try:
                host.down()
            except MachineError as error:  # the others must be stopped nevertheless
                print_step(str(error))
            ended.append(name)
    return ended
