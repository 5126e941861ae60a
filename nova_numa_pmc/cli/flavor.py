# SPDX-License-Identifier: Apache-2.0
"""The flavor of a guest that does not exist yet, as an operator describes it by options."""

from __future__ import annotations

import argparse
import json

from nova_numa_pmc.cli import arguments
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.cpulist import is_number
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.host import domain_xml
from nova_numa_pmc.record import Record

_UNITS = {'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30, 'T': 1 << 40}
_MEMORY_MAX_BYTES = 1 << 50
#: The parser of a number of vCPUs.
_vcpus = arguments.integer(domain_xml.VCPUS_MAX)


class FlavorError(NumaPmcError):
    """The file of a flavor cannot be used."""


class Flavor(Record):
    """Size and extra specs of a flavor."""

    vcpus: int
    memory_bytes: int
    specs: dict[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a flavor."""
    size = parser.add_argument_group('guest')
    size.add_argument('--vcpus', type=_vcpus, metavar='N', help='vCPUs of the guest')
    size.add_argument(
        '--memory',
        type=_memory_bytes,
        metavar='SIZE',
        help='memory of the guest: 8G, 512M; a plain number is MiB, as in a flavor',
    )
    size.add_argument(
        '--spec',
        action='append',
        default=[],
        type=_spec,
        metavar='KEY=VALUE',
        help='extra spec of the flavor (may be repeated)',
    )
    size.add_argument(
        '--flavor',
        metavar='FILE',
        help='file with the flavor, as "openstack flavor show NAME -f json" prints it',
    )


def requested(args: argparse.Namespace) -> Flavor:
    """Return the flavor that the options describe; exit if they do not include its size.

    :raises FlavorError: the flavor's file cannot be used
    """
    flavor = read_flavor(args.flavor) if args.flavor else None
    vcpus = args.vcpus or (flavor and flavor.vcpus)
    memory_bytes = args.memory or (flavor and flavor.memory_bytes)
    if not vcpus or not memory_bytes:
        parser: argparse.ArgumentParser = args.parser
        parser.error('the size of the guest is missing: give --vcpus and --memory, or --flavor')
    return Flavor(vcpus, memory_bytes, {**(flavor.specs if flavor else {}), **dict(args.spec)})


def read_flavor(path: str) -> Flavor:
    """Read a flavor from a file that openstackclient printed.

    :raises FlavorError: the file cannot be read or has no such flavor
    """
    try:
        with open(path, encoding='utf-8') as stream:
            flavor = json.loads(stream.read(host_options.SIZE_MAX_BYTES))
        specs = flavor.get('properties') or {}
        return Flavor(
            _vcpus(str(flavor['vcpus'])),
            _memory_bytes('%sM' % flavor['ram']),
            {str(key): str(value) for key, value in specs.items()},
        )
    except (
        OSError,
        ValueError,
        KeyError,
        AttributeError,
        RecursionError,
        argparse.ArgumentTypeError,
    ) as error:
        raise FlavorError(
            '%s: not a flavor with vcpus, ram and properties (%s): create the file with '
            '"openstack flavor show NAME -f json"' % (path, error)
        ) from None


def _memory_bytes(text: str) -> int:
    digits, unit = (text, 'M') if text[-1:].isdigit() else (text[:-1], text[-1:].upper())
    if not (
        is_number(digits, 15)
        and unit in _UNITS
        and 0 < int(digits) * _UNITS[unit] <= _MEMORY_MAX_BYTES
    ):
        raise argparse.ArgumentTypeError('%.40r is not a size like 8G or 512M' % text)
    return int(digits) * _UNITS[unit]


def _spec(text: str) -> tuple[str, str]:
    key, equals, value = text.partition('=')
    if not equals or not key:
        raise argparse.ArgumentTypeError('%.40r is not KEY=VALUE' % text)
    return key, value
