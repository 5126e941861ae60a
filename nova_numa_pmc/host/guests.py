# SPDX-License-Identifier: Apache-2.0
"""Turn libvirt's domain XML into guests.

The XML comes from two places: libvirt hands it to its hook on stdin, and libvirt's QEMU driver
keeps a status file for every active domain in ``/run/libvirt/qemu`` (``<domstatus state= pid=>``
around the live ``<domain>``, written by virDomainObjFormat in src/conf/domain_conf.c and replaced
by rename). The hook therefore never has to call libvirt, which would deadlock.

The XML is not trusted: if it is hostile or unlike libvirt's, :class:`DomainError` is raised and
the guest is left alone. The elements are described in https://libvirt.org/formatdomain.html and,
for the metadata, in Nova's nova/virt/libvirt/config.py.
"""

from __future__ import annotations

import errno
import os

from nova_numa_pmc import model
from nova_numa_pmc.cpulist import is_label, is_number
from nova_numa_pmc.exceptions import CpusetError, DomainError, GuestGone, StateError
from nova_numa_pmc.host import allowed, domain_xml, files, host_devices, topology
from nova_numa_pmc.host.domain_xml import attribute_values
from nova_numa_pmc.record import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nova_numa_pmc.host.domain_xml import Elements
    from nova_numa_pmc.host.files import Identity

#: Where libvirt keeps a status file and a pid file for each active domain, below the root.
STATUS_DIRECTORY = 'run/libvirt/qemu'

#: The number of characters that are kept of a malformed value.
_SHOWN_MAX = 40

# Elements by which others have bound the guest to nodes or CPUs of this host. <vcpu cpuset> is not
# among them, because it only limits us, nor are <memoryBacking><hugepages><page nodeset> and
# <cpu><numa>, because they are about the guest's nodes, not the host's. Shares of cache and of
# memory bandwidth are: they belong to the cache or the memory controllers of one socket, and a
# guest that moved would leave them behind.
_PLACED_BY = (
    ('cputune/vcpupin', 'vcpupin'),
    ('cputune/emulatorpin', 'emulatorpin'),
    ('cputune/iothreadpin', 'iothreadpin'),
    ('cputune/cachetune', 'cachetune'),
    ('cputune/memorytune', 'memorytune'),
    ('devices/memory/source/nodemask', 'nodemask'),
)

#: Buses of disks and models of network cards that are not paravirtual; a CD-ROM may have any.
_EMULATED = frozenset(
    ('fdc', 'ide', 'sata', 'usb', 'e1000', 'e1000e', 'igb', 'ne2k_pci', 'pcnet', 'rtl8139')
)

#: Pins of single threads: (path, name of the group, attribute with the thread's number).
_PINS = (
    ('cputune/vcpupin', 'vcpu', 'vcpu'),
    ('cputune/emulatorpin', 'emulator', None),
    ('cputune/iothreadpin', 'iothread', 'iothread'),
)


def parse(xml: bytes) -> model.Guest:
    """Turn the XML of one domain, as the hook gets it, into a guest.

    ``pinned_nodes`` stays empty, because the XML only names CPUs, which are in ``pinned_cpus``.

    :raises DomainError: the XML is malformed, hostile, too large or unlike libvirt's
    """
    return _guest(domain_xml.collect(xml, 'domain'))


def parse_live(xml: bytes, root: str = '/') -> model.Guest:
    """Return the guest that :func:`parse` returns, with its grant and without full pins.

    The XML that the hook gets is that of a running guest if its memory is restored or migrated.

    :raises DomainError: as for :func:`parse`
    """
    return without_full_pins(allowed.with_grants([parse(xml)], root), root)[0]


def read_running(root: str = '/') -> tuple[list[model.Guest], list[str]]:
    """Return the running guests according to libvirt's status files, and problems.

    The guests have their ``pid``. A file is skipped if its process is gone or if it vanishes while
    it is being read.

    :returns: (guests sorted by file name, problems that each begin with the file's path)
    """
    return StatusFiles(root).read()


def active_names(root: str = '/') -> frozenset[str]:
    """Return the names of libvirt's active domains according to their status files.

    :raises StateError: the status files cannot be listed
    """
    directory = os.path.join(root, STATUS_DIRECTORY)
    try:
        return frozenset(name[:-4] for name in os.listdir(directory) if name.endswith('.xml'))
    except FileNotFoundError:
        return frozenset()
    except OSError as error:
        raise StateError(
            '%s: %s: the running guests are unknown' % (directory, error.strerror)
        ) from None


def runtime_file_identity(root: str, name: str, suffix: str) -> Identity | None:
    """Return the identity of a file that libvirt keeps while a guest runs; None without one.

    No later file has the same identity.

    :param name: the guest's name, in which libvirt allows no slash
    :param suffix: '.pid', or '.xml' for the status file
    """
    try:
        return files.identity(os.path.join(root, STATUS_DIRECTORY, name + suffix))
    except (OSError, ValueError):
        return None


def ids(root: str = '/') -> tuple[frozenset[int], frozenset[int]]:
    """Return the uids and the gids that the QEMUs of running guests have, except root's."""
    found: dict[str, set[int]] = {'Uid': set(), 'Gid': set(), 'Groups': set()}
    for name in files.list_names(os.path.join(root, STATUS_DIRECTORY)):
        if name.endswith('.pid'):
            pid = files.read_optional(os.path.join(root, STATUS_DIRECTORY), name) or ''
            status = files.read_fields(root, 'proc/%s/status' % pid) if pid.isdigit() else {}
            for field, numbers in found.items():
                numbers |= {int(each) for each in status.get(field, '').split() if each.isdigit()}
    return frozenset(found['Uid'] - {0}), frozenset(found['Gid'] | found['Groups']) - {0}


def with_process(guest: model.Guest, root: str = '/') -> model.Guest:
    """Return the guest with its QEMU from libvirt's pid file, checked against the guest's uuid.

    :raises GuestGone: there is no such process, or it is not (yet) the guest's QEMU
    :raises CpusetError: a file cannot be read for another reason
    """
    path = os.path.join(root, STATUS_DIRECTORY, guest.name + '.pid')
    try:
        pid = int(_read_bytes(path))
        start_ns = files.process_start_ns(pid, root)
        command = _read_bytes(os.path.join(root, 'proc/%d/cmdline' % pid))
    except (OSError, ValueError) as error:
        if getattr(error, 'errno', None) not in (None, errno.ENOENT, errno.ESRCH):
            raise CpusetError('%s: %s' % (path, error)) from None
        raise GuestGone('%s: %s: QEMU is not running' % (path, error)) from None
    # Names of guests may be reused; libvirt has passed the uuid since 0.4.6.
    if guest.uuid.encode() not in command.split(b'\0'):
        raise GuestGone('%s: process %d is not QEMU of guest %s' % (path, pid, guest.uuid))
    return guest._replace(pid=pid, start_ns=start_ns)


class StatusFiles:
    """Reads libvirt's status files, and parses a file again only if it was replaced.

    libvirt replaces a file by renaming another one over it, which changes the inode or the time.
    """

    def __init__(self, root: str = '/') -> None:
        self._root = root
        #: {path: (identity, guest, problem)} as last parsed.
        self._parsed: dict[str, tuple[Identity, model.Guest | None, str | None]] = {}

    def read(self) -> tuple[list[model.Guest], list[str]]:
        """Return the running guests and problems, as :func:`read_running` does."""
        directory = os.path.join(self._root, STATUS_DIRECTORY)
        before, self._parsed = self._parsed, {}
        try:
            names = sorted(os.listdir(directory))
        except FileNotFoundError:
            return [], []
        except OSError as error:
            return [], ['%s: %s' % (directory, error.strerror)]
        running: list[model.Guest] = []
        problems: list[str] = []
        for path in (os.path.join(directory, name) for name in names if name.endswith('.xml')):
            try:
                file_identity = files.identity(path)
                known = before.get(path)
                if known is None or known[0] != file_identity:
                    known = (file_identity, *self._parse(path))
            except FileNotFoundError:
                continue
            except OSError as error:
                problems.append('%s: %s' % (ascii(path)[1:-1], error.strerror))
                continue
            _, guest, problem = self._parsed[path] = known
            if problem is not None:
                problems.append(problem)
            if guest and self._is_running(guest):
                running.append(guest)
        return without_full_pins(allowed.with_grants(running, self._root), self._root), problems

    def _is_running(self, guest: model.Guest) -> bool:
        """Return whether the process that began before its file was parsed still runs."""
        if guest.start_ns is None:
            return os.path.exists(os.path.join(self._root, 'proc', str(guest.pid)))
        return guest.start_ns == files.process_start_ns(guest.pid, self._root)

    def _parse(self, path: str) -> tuple[model.Guest | None, str | None]:
        """Return (guest, None), (None, problem), or (None, None) if the file names no process."""
        try:
            guest = _running_guest(_read_bytes(path))
            start_ns = files.process_start_ns(guest.pid, self._root) if guest else None
            return guest and guest._replace(start_ns=start_ns), None
        except DomainError as error:
            return None, '%s: %s' % (ascii(path)[1:-1], error)


def without_full_pins(running: Sequence[model.Guest], root: str = '/') -> list[model.Guest]:
    """Return the guests without what restricts nothing.

    That is a pin to every CPU that a guest may use, and memory that is bound to all nodes.
    """
    if not any(guest.pins or guest.mem_mode for guest in running):
        return list(running)
    online, with_memory = topology.read_online(root), topology.nodes_with_memory(root)
    return [
        domain_xml.without_full_pins(domain_xml.without_full_binding(guest, with_memory), online)
        if guest.pins or guest.mem_mode
        else guest
        for guest in running
    ]


def _read_bytes(path: str) -> bytes:
    # Non-blocking, in case it is a FIFO.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(descriptor, 'rb') as file:
        return file.read(domain_xml.SIZE_MAX_BYTES + 1)


def _running_guest(xml: bytes) -> model.Guest | None:
    elements = domain_xml.collect(xml, 'domstatus')
    digits = elements['domstatus'][0].attributes.get('pid', '')
    if digits in ('0', '-1'):
        return None
    pid = domain_xml.parse_integer('pid', digits, 1, 1 << 31)
    return _guest(elements)._replace(
        pid=pid,
        vcpu_tids=_tids(elements),
        state=_word(elements, 'domstatus', 'state'),
        job=_word(elements, 'job', 'async'),
    )


def _id(elements: Elements) -> int | None:
    digits = elements['domain'][0].attributes.get('id', '')
    # The id only names the guest, so a malformed one is no reason to leave the guest out.
    return int(digits) if is_number(digits, 9) else None


def _word(elements: Elements, path: str, name: str) -> str | None:
    """Return the keyword in an attribute, or None if there is none."""
    words = attribute_values(elements, path, name)
    # Keywords only hold moves back, so an unexpected one is no reason to leave the guest out.
    return ascii(words[0][:_SHOWN_MAX])[1:-1] if words and words[0] not in ('', 'none') else None


def _tids(elements: Elements) -> tuple[int, ...]:
    """Return the ids of the vCPUs' threads; empty if QEMU runs all vCPUs in one thread."""
    return tuple(
        sorted(
            {
                domain_xml.parse_integer('vcpu pid', digits, 1, 1 << 31)
                for digits in attribute_values(elements, 'vcpus/vcpu', 'pid')
                if digits not in ('0', '-1')
            }
        )
    )


def _guest(elements: Elements) -> model.Guest:
    vcpus, vcpus_max, allowed_cpus = _vcpus(elements)
    memory_bytes, memory_max_bytes = domain_xml.ram_sizes_bytes(elements)
    specs, devices = _extra_specs(elements), host_devices.list_devices(elements)
    pins = _pins(elements)
    vcpu_pins = [pin for pin in pins if pin[0].startswith('vcpu')]
    return model.Guest(
        uuid=domain_xml.parse_uuid(_text(elements, 'uuid')),
        name=domain_xml.parse_name(_text(elements, 'name')),
        vcpus=vcpus,
        memory_bytes=memory_bytes,
        vcpus_max=vcpus_max,
        allowed_cpus=allowed_cpus,
        placed_by=_placed_by(elements, specs),
        numatune_nodes=_numatune_nodes(elements),
        mem_mode=_mem_mode(elements),
        page_bytes=domain_xml.page_bytes(elements),
        locked=domain_xml.is_locked(elements) or any(device.locks_memory for device in devices),
        devices=devices,
        extra_specs=tuple(
            item for item in sorted(specs.items()) if item[0].startswith(model.EXTRA_SPEC_PREFIX)
        ),
        pinned_cpus=frozenset[int]().union(*(cpus for _, cpus in vcpu_pins)) or None,
        pins=pins,
        flavor=_flavor(elements),
        preallocated='immediate' in attribute_values(elements, 'memoryBacking/allocation', 'mode'),
        memory_max_bytes=memory_max_bytes,
        partition=_partition(elements),
        id=_id(elements),
        emulated=_emulated(elements),
    )


def _emulated(elements: Elements) -> tuple[str, ...]:
    disks = [
        element.children['target'].attributes.get('bus', '')
        for element in elements.get('devices/disk', ())
        if element.attributes.get('device', 'disk') == 'disk' and 'target' in element.children
    ]
    cards = attribute_values(elements, 'devices/interface/model', 'type')
    return tuple(sorted(_EMULATED.intersection(disks + cards)))


def _text(elements: Elements, path: str) -> str:
    if path not in elements:
        raise DomainError('<domain> has no <%s>' % path)
    return elements[path][0].text


def _vcpus(elements: Elements) -> tuple[int, int | None, frozenset[int] | None]:
    """Return the vCPUs at start, their maximum and the allowed CPUs.

    The maximum is None if it equals the first number; the CPUs are None if any are allowed.
    """
    if 'vcpu' not in elements:
        return 1, None, None
    element = elements['vcpu'][0]
    maximum = domain_xml.parse_integer('vcpu', element.text, 1, domain_xml.VCPUS_MAX)
    current = domain_xml.parse_integer(
        'vcpu current', element.attributes.get('current', element.text), 1, maximum
    )
    # For libvirt an empty set is the same as none.
    allowed = (
        domain_xml.parse_cpuset('vcpu cpuset', [element.attributes.get('cpuset', '')]) or None
    )
    return current, maximum if maximum != current else None, allowed


def _partition(elements: Elements) -> str:
    text = elements['resource/partition'][0].text if 'resource/partition' in elements else ''
    # A name that libvirt could not use is no reason to leave the guest alone: it would not start.
    return text if text.startswith('/') and is_label(text) else allowed.DEFAULT_PARTITION


def _pins(elements: Elements) -> tuple[tuple[str, frozenset[int]], ...]:
    """Return (name of the thread's control group, CPUs) of each pin, sorted."""
    pins = []
    texts = [text for path, *_ in _PINS for text in attribute_values(elements, path, 'cpuset')]
    cpus_by_text = dict(domain_xml.parse_cpusets('cputune', texts))
    for path, kind, number in _PINS:
        for element in elements.get(path, ()):
            cpus = cpus_by_text.get(element.attributes.get('cpuset', ''), frozenset())
            name = kind
            if number is not None:
                text = element.attributes.get(number, '')
                name += '%d' % domain_xml.parse_integer(path, text, 0, domain_xml.VCPUS_MAX)
            if cpus:
                pins.append((name, cpus))
    return tuple(sorted(pins))


def _numatune_nodes(elements: Elements) -> tuple[int, ...]:
    nodes = domain_xml.parse_cpuset(
        'numatune',
        attribute_values(elements, 'numatune/memory', 'nodeset')
        + attribute_values(elements, 'numatune/memnode', 'nodeset'),
    )
    masks = [element.text for element in elements.get('devices/memory/source/nodemask', ())]
    return tuple(sorted(nodes | domain_xml.parse_cpuset('nodemask', masks)))


def _mem_mode(elements: Elements) -> str:
    """Return the mode in which numatune gives nodes to all memory, else ''; the default is strict.

    'restrictive' also binds the memory to its nodes, only without a policy of QEMU's.
    """
    modes = {
        mode if mode in (model.PREFERRED, model.INTERLEAVE) else model.STRICT
        for path in ('numatune/memory', 'numatune/memnode')
        for mode in attribute_values(elements, path, 'mode')
    }
    if not any(attribute_values(elements, 'numatune/memory', 'nodeset')) or len(modes) > 1:
        return ''
    return modes.pop() if modes else model.STRICT


def _placed_by(elements: Elements, specs: Mapping[str, str]) -> tuple[str, ...]:
    """Return codes for the elements and extra specs by which others have placed the guest."""
    codes = []
    if 'numatune/memory' in elements or 'numatune/memnode' in elements:
        codes.append('numatune')
    # Each of its own nodes is bound; pins of vCPUs, as Nova adds them, say so as well.
    if 'numatune/memnode' in elements and 'cputune/vcpupin' not in elements:
        codes.append('memnode')
    if 'auto' in (
        attribute_values(elements, 'vcpu', 'placement')
        + attribute_values(elements, 'numatune/memory', 'placement')
    ):
        codes.append('numad')
    codes += [name for path, name in _PLACED_BY if path in elements]
    if specs.get('hw:cpu_policy') in model.DEDICATED_POLICIES:
        codes.append('dedicated')
    codes += sorted(key for key in specs if key.startswith('hw:numa_'))
    return tuple(codes)


def _flavor(elements: Elements) -> str | None:
    names = attribute_values(elements, 'metadata/instance/flavor', 'name')
    return domain_xml.parse_label('flavor', names[0]) if names else None


def _extra_specs(elements: Elements) -> dict[str, str]:
    specs: dict[str, str] = {}
    for element in elements.get('metadata/instance/flavor/extraSpecs/extraSpec', ()):
        key = domain_xml.parse_label('extra spec', element.attributes.get('name', ''))
        if key in specs:
            raise DomainError('the extra spec %a occurs twice' % key)
        specs[key] = element.text.strip()
        if key.startswith(model.EXTRA_SPEC_PREFIX) and not is_label(specs[key]):
            # An invalid hint is ignored; this text is not a valid value, and can be logged.
            specs[key] = ascii(specs[key][:_SHOWN_MAX])
    return specs
