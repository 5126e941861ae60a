# SPDX-License-Identifier: Apache-2.0
"""Read from a domain's elements its RAM, its page size, and whether its memory can be moved."""

from __future__ import annotations

import os

from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.host import domain_values as values
from nova_numa_pmc.host.domain_xml import MEMORY_SIZES

TYPE_CHECKING = False  # not typing's, which is slow to import

if TYPE_CHECKING:
    from nova_numa_pmc.host.domain_xml import Elements

#: Memory devices that are backed by a device, a file or memory reserved by the CPU (SGX), and not
#: by the host's RAM. libvirt counts them in <memory> (virDomainDefPostParseMemory in its
#: src/conf/domain_postparse.c), and Nova in <maxMemory> (_guest_add_vpmems in its
#: nova/virt/libvirt/driver.py).
_NOT_RAM = ('nvdimm', 'virtio-pmem', 'sgx-epc')

#: If this size is requested, libvirt uses no huge pages (qemuBuildMemoryGetPagesize in its
#: src/qemu/qemu_command.c).
_BASE_PAGE_BYTES = os.sysconf('SC_PAGESIZE')
#: Page size that is assumed of a ``<hugepages/>`` that names none. It is the kernel's default:
#: unless it was booted with another, 2 MiB on x86 and on arm64 with base pages of 4 KiB, but 512
#: MiB on arm64 with base pages of 64 KiB. Nova always names the size.
_DEFAULT_HUGE_PAGE_BYTES = 2 << 20


def ram_sizes_bytes(elements: Elements) -> tuple[int, int | None]:
    """Return the RAM that is plugged now and the RAM that a guest may grow to [bytes].

    The second is None if it equals the first. ``<currentMemory>``, the balloon's current size, is
    not considered, because the guest may take back the rest at any time.

    :raises DomainError: there is no ``<memory>``, or a size is malformed
    """
    if 'memory' not in elements:
        raise DomainError('<domain> has no <memory>')
    plugged_bytes = _size_bytes(elements, 'memory')
    total_max_bytes = max(
        plugged_bytes, _size_bytes(elements, 'maxMemory') if 'maxMemory' in elements else 0
    )
    not_ram_bytes = _not_ram_bytes(elements)
    if not_ram_bytes >= plugged_bytes:
        raise DomainError('memory: memory devices account for all of it, which leaves no RAM')
    return (
        plugged_bytes - not_ram_bytes,
        None if total_max_bytes == plugged_bytes else total_max_bytes - not_ram_bytes,
    )


def _size_bytes(elements: Elements, path: str) -> int:
    element = elements[path][0]
    return values.parse_size_bytes(path, element.text, element.attributes.get('unit'))


def _not_ram_bytes(elements: Elements) -> int:
    return sum(
        values.parse_size_bytes(model, element.text, element.attributes.get('unit'))
        for model in _NOT_RAM
        for element in elements.get('%s/%s' % (MEMORY_SIZES, model), ())
    )


def page_bytes(elements: Elements) -> int | None:
    """Return the largest size of the huge pages that back the guest, or None for normal pages.

    :raises DomainError: a size is malformed
    """
    if 'memoryBacking/hugepages' not in elements:
        return None
    pages = elements.get('memoryBacking/hugepages/page', ())
    if not pages:
        return _DEFAULT_HUGE_PAGE_BYTES
    largest_bytes = max(
        values.parse_size_bytes(
            'hugepages', element.attributes.get('size', ''), element.attributes.get('unit')
        )
        for element in pages
    )
    return largest_bytes if largest_bytes > _BASE_PAGE_BYTES else None


def is_locked(elements: Elements) -> bool:
    """Return whether the XML locks the guest's memory in place, other than by devices."""
    # Memory encryption (SEV, TDX, s390-pv) ties a page's contents to its address or leaves the
    # page to the firmware.
    return 'memoryBacking/locked' in elements or 'launchSecurity' in elements
