# SPDX-License-Identifier: Apache-2.0
"""Read the few options of Nova that matter here, as Nova's services would.

They are read by oslo.config itself (with its substitutions and lists, and with later files
overriding earlier ones), with the defaults of Nova's own nova/conf/*.py. The files are not
trusted: only regular files of at most 1 MiB are opened, and a value that cannot be used is a
finding, not an error.

The host's CPUs are those of ``cpu_shared_set`` and ``cpu_dedicated_set``. As in Nova,
``vcpu_pin_set`` takes precedence over the former (``_get_vcpu_available`` in
nova/virt/libvirt/driver.py). Guests may also be pinned to its CPUs.

This module is for the agent and the commands. The libvirt hook cannot afford to import
oslo.config, and reads what the agent has published.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from oslo_config import cfg

from nova_numa_pmc.conf import (
    compute as compute_conf,
    host_options,
    opts,
    scheduler as scheduler_conf,
)
from nova_numa_pmc.core import finding
from nova_numa_pmc.core.finding import Finding
from nova_numa_pmc.cpulist import CPUS_MAX
from nova_numa_pmc.exceptions import DomainError
from nova_numa_pmc.host import domain_xml, files, guests, ownership, services
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

    from nova_numa_pmc.host.services import Process


SIZE_MAX_BYTES = 1 << 20
_DIRECTORY_FILES_MAX = 100
_FILE, _DIRECTORY = '--config-file', '--config-dir'
#: How the names of default files and directories end.
_SUFFIXES = {_FILE: '.conf', _DIRECTORY: '.conf.d'}

#: Options with the defaults of Nova 29 to 34, by group. An option without a default is None if it
#: is not set.
OPTIONS: dict[str, Sequence[cfg.Opt]] = {
    'DEFAULT': [
        cfg.ListOpt('compute_monitors', default=[]),
        cfg.IntOpt('update_resources_interval', default=0),
        cfg.IntOpt('reserved_host_memory_mb', default=512),
        cfg.FloatOpt('ram_allocation_ratio'),
        cfg.FloatOpt('initial_ram_allocation_ratio', default=1.0),
        cfg.StrOpt('vcpu_pin_set'),
    ],
    'compute': [cfg.StrOpt('cpu_shared_set'), cfg.StrOpt('cpu_dedicated_set')],
    'libvirt': [cfg.BoolOpt('cpu_power_management', default=False)],
    'filter_scheduler': [
        cfg.ListOpt('weight_classes', default=['nova.scheduler.weights.all_weighers']),
        cfg.MultiStrOpt('available_filters', default=['nova.scheduler.filters.all_filters']),
        cfg.ListOpt(
            'enabled_filters',
            default=[
                'ComputeFilter',
                'ComputeCapabilitiesFilter',
                'ImagePropertiesFilter',
                'ServerGroupAntiAffinityFilter',
                'ServerGroupAffinityFilter',
            ],
        ),
        cfg.IntOpt('host_subset_size', default=1),
        cfg.FloatOpt('cpu_weight_multiplier', default=1.0),
        cfg.FloatOpt('ram_weight_multiplier', default=1.0),
        cfg.FloatOpt('disk_weight_multiplier', default=1.0),
        cfg.FloatOpt('hypervisor_version_weight_multiplier', default=1.0),
        cfg.FloatOpt('num_instances_weight_multiplier', default=0.0),
        cfg.FloatOpt('io_ops_weight_multiplier', default=-1.0),
    ],
    # In Placement's own file.
    'metrics': [cfg.ListOpt('weight_setting', default=[])],
    # Options of oslo.messaging.
    'oslo_messaging_notifications': [
        cfg.MultiStrOpt('driver', default=['']),
        cfg.IntOpt('retry', default=-1),
    ],
    # Our own options, in Nova's file.
    scheduler_conf.GROUP.name: [*scheduler_conf.OPTIONS, *compute_conf.OPTIONS],
}


class Trust(Record):
    """Who may change the configuration files that were found.

    :param base: the root directory below which they are
    :param owners: uids that may own them
    :param groups: ids of groups whose members may write to them
    """

    base: str
    owners: frozenset[int]
    groups: frozenset[int]


class _FilesOnly(cfg.ConfigOpts):
    """ConfigOpts that only reads files: ``config_source`` in a file could name a URI to fetch."""

    def _load_alternative_sources(self) -> None:
        pass


class NovaConf:
    """Options as read from a service's files.

    :ivar files: paths of the files that were read; later ones override earlier ones
    :ivar findings: findings about files and values that could not be used
    """

    def __init__(self, files: Iterable[str], trust: Trust | None = None) -> None:
        """Read files.

        :param trust: who may change them; None: anybody, because the operator has named them. If
            others can change one of them, none is used
        """
        self.findings: list[Finding] = []
        paths = [path if trust is None else self._believed(path, trust) for path in files]
        self.files = [path for path in paths if self._is_usable(path)] if all(paths) else []
        try:
            self._conf = _parse(self.files)
        except (cfg.Error, ValueError, RecursionError) as error:
            path = getattr(error, 'config_file', self.files[0])
            remedy = 'correct it; Nova cannot read it either'
            message = '%s: %s' % (path, opts.in_words(error))
            self._add('nova-conf-unreadable', message, remedy, path)
            self.files = []
            self._conf = _parse([])

    def get(self, name: str, group: str = 'DEFAULT') -> Any:
        """Return an option's value.

        If the value cannot be used, return the default and add a finding.
        """
        try:
            return self._conf[name] if group == 'DEFAULT' else self._conf[group][name]
        except (cfg.Error, ValueError, RecursionError) as error:
            self._add(
                'nova-conf-value',
                '[%s] %s cannot be used: %s' % (group, name, opts.in_words(error)),
                'correct it; Nova cannot use it either',
                self.first_file,
            )
            return next(opt for opt in OPTIONS[group] if opt.name == name).default

    def file_of(self, name: str, group: str = 'DEFAULT') -> str:
        """Return the last file that sets an option, or :attr:`first_file` if none does."""
        return self.file_that_sets(name, group) or self.first_file

    def file_that_sets(self, name: str, group: str = 'DEFAULT') -> str | None:
        """Return the last file that sets an option, or None if none does.

        The option does not have to be one of :data:`OPTIONS`.
        """
        for path in reversed(self.files):
            # Not ConfigOpts.get_location, which names the last file with the option's group.
            sections: dict[str, dict[str, list[str]]] = {}
            cfg.ConfigParser(path, sections).parse()
            if name in sections.get(group, {}):
                return path
        return None

    @property
    def first_file(self) -> str:
        """Return the first file that was read, or '' if none was."""
        return self.files[0] if self.files else ''

    def _believed(self, path: str, trust: Trust) -> str:
        """Return a file's path without links; '' if it is not trusted, which is a finding."""
        name = path[len(trust.base) :]
        real_path = ownership.real_path(name, trust.base)
        exposed = (
            ownership.find_changeable(name, trust.base, trust.owners, trust.groups)
            if real_path
            else None
        )
        if exposed is None:
            return real_path or path
        self._add(
            'nova-conf-exposed',
            "%s is not used, because users other than root and Nova's can change %s"
            % (path, exposed),
            'chown root:nova %s; chmod g-w,o-w %s' % (exposed, exposed),
            path,
        )
        return ''

    def _is_usable(self, path: str) -> bool:
        try:
            status = os.stat(path)
            if not stat.S_ISREG(status.st_mode) or status.st_size > SIZE_MAX_BYTES:
                raise OSError(None, 'not a regular file of at most %d bytes' % SIZE_MAX_BYTES)
            os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            self._add(
                'nova-conf-unreadable',
                '%s: %s' % (path, error.strerror),
                'run as root, or name the file with --nova-conf',
                path,
            )
        else:
            return True
        return False

    def _add(self, code: str, message: str, remedy: str, file: str) -> None:
        self.findings.append(Finding(code, finding.ERROR, ' '.join(message.split()), remedy, file))


def _parse(files: list[str]) -> cfg.ConfigOpts:
    conf = _FilesOnly()
    for group, group_options in OPTIONS.items():
        conf.register_opts(group_options, group=None if group == 'DEFAULT' else group)
    # Do not use this process's environment: the service has its own.
    conf([], project='nova', default_config_files=files, default_config_dirs=[], use_env=False)
    return conf


def trust_in(process: Process | None, root: str) -> Trust:
    """Return who may change the files of a service.

    :param process: the service's process, or None if it is not running
    """
    base = process.root if process else root
    accounts = set(process.accounts if process else ())
    groups = {process.gid} if process and accounts else set()
    for uid, gid in ownership.accounts('nova', base):
        accounts.add(uid)
        groups.add(gid)
    # A guest that has taken over its QEMU has the ids of QEMU, which kolla also gives to Nova.
    guest_uids, guest_gids = guests.ids(root)
    owners = {ownership.root_uid(root), *(accounts - guest_uids)}
    return Trust(base, frozenset(owners), frozenset(groups - guest_gids))


def find(process: Process | None, service: str, root: str) -> NovaConf:
    """Return what a service reads, as far as it can be trusted.

    :param process, service: as for :func:`files_of`
    """
    return NovaConf(files_of(process, service, root), trust_in(process, root))


def files_of(process: Process | None, service: str, root: str) -> list[str]:
    """Return the files that a service reads; later ones override earlier ones.

    As in oslo.config, these are first the files and directories where it looks by default, each
    only if the service's command line names none of that kind, and then those that the command
    line names, in its order.

    :param process: the service's process, or None if it is not running
    :param service: 'nova-compute' or 'nova-scheduler'
    """
    command = process.command if process else ()
    base = process.root if process else root
    named = [
        (option, host_options.path_under_root(base, path)) for option, path in _arguments(command)
    ]
    paths: list[str] = []
    for option in (_FILE, _DIRECTORY):
        if option not in [named_option for named_option, _ in named]:
            for name in ('nova', service):
                default = '/etc/nova/%s%s' % (name, _SUFFIXES[option])
                path = host_options.path_under_root(base, default)
                if ownership.real_path(default, base):
                    paths += _files_of_argument(option, path, base)
    for option, path in named:
        paths += _files_of_argument(option, path, base)
    return paths


def _arguments(command: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the options of a command line that name files or directories, with the paths."""
    for word, following in zip(command, (*command[1:], '')):
        option, equals, path = word.partition('=')
        path = path if equals else following
        if option in _SUFFIXES and path:
            yield option, path


def _files_of_argument(option: str, path: str, base: str) -> list[str]:
    if option == _FILE:
        return [path]
    directory = ownership.real_path(path[len(base) :], base)
    names = [name for name in files.list_names(directory or '') if name.endswith('.conf')]
    return [os.path.join(path, name) for name in names[:_DIRECTORY_FILES_MAX]]


#: The option of the dedicated CPUs, and its group.
DEDICATED_SET = 'cpu_dedicated_set', 'compute'
#: How often to search for nova-compute's process, and to read its files again.
_AGE_MAX_NS = 60 * 10**9


class NovaCpuSets(Record):
    """Nova's two sets of CPUs.

    :param shared: the CPUs of ``vcpu_pin_set`` or, if that is not set, of ``cpu_shared_set``
    :param dedicated: the CPUs of ``cpu_dedicated_set``; each is None if the option is not set or
        cannot be read
    """

    shared: frozenset[int] | None = None
    dedicated: frozenset[int] | None = None


class NovaCpuSetsReader:
    """Reads both sets from time to time.

    :param root: root of the host's file system
    """

    def __init__(self, root: str = '/') -> None:
        self._root = root
        self._sets = NovaCpuSets()
        self._problems: tuple[str, ...] = ()
        self._process: services.Process | None = None
        self._read_ns: int | None = None

    def read(self, monotonic_ns: int) -> tuple[NovaCpuSets, tuple[str, ...]]:
        """Return (:class:`NovaCpuSets`, problems).

        :param monotonic_ns: CLOCK_MONOTONIC
        """
        if self._read_ns is not None and 0 <= monotonic_ns - self._read_ns < _AGE_MAX_NS:
            return self._sets, self._problems
        self._read_ns = monotonic_ns
        process = services.find(self._root, services.NOVA_COMPUTE)
        if process is None and self._process is not None and not self._process.same_root:
            # Its container is being restarted; its pid may be another's.
            return self._sets, self._problems
        # While it is stopped, its last command line is the best guess.
        self._process = process or self._process
        paths = files_of(self._process, services.NOVA_COMPUTE, self._root)
        conf = NovaConf(filter(os.path.lexists, paths), trust_in(self._process, self._root))
        self._sets, self._problems = parse_cpu_sets(conf)
        return self._sets, self._problems


def shared_set(conf: NovaConf) -> tuple[str, str]:
    """Return the option from which Nova takes the shared CPUs, and its group."""
    if conf.get('vcpu_pin_set'):
        return 'vcpu_pin_set', 'DEFAULT'
    return 'cpu_shared_set', 'compute'


def parse_cpu_sets(conf: NovaConf) -> tuple[NovaCpuSets, tuple[str, ...]]:
    """Return (:class:`NovaCpuSets`, problems) from nova-compute's configuration."""
    problems: list[str] = []
    sets: list[frozenset[int] | None] = []
    for name, group in (shared_set(conf), DEDICATED_SET):
        try:
            text = conf.get(name, group)
            sets.append(parse_set(name, text) if text else None)
        except DomainError as error:
            problems.append(
                '%s: [%s] %s: write it as 4-12,^8,15' % (conf.first_file, group, error)
            )
            sets.append(None)
    problems += ['%s: %s' % (finding.message, finding.remedy) for finding in conf.findings]
    shared, dedicated = sets
    return NovaCpuSets(shared, dedicated), tuple(problems)


def parse_set(name: str, text: str) -> frozenset[int]:
    """Return a set of CPUs as Nova reads it (``parse_cpu_spec`` in nova/virt/hardware.py).

    Unlike in libvirt's syntax, items may be empty, ranges can be excluded, and an exclusion
    applies to the items after it as well.

    :raises DomainError: Nova refuses the text as well, or a number is beyond CPUS_MAX
    """
    included, excluded = 0, 0  # bits, because lists may repeat ranges without limit
    for item in filter(None, map(str.strip, text.split(','))):
        numbers, is_excluded = _cpu_range(name, item)
        bits = (1 << numbers.stop) - (1 << numbers.start)
        if is_excluded:
            excluded |= bits
        else:
            included |= bits
    cpus = included & ~excluded
    if not cpus:
        raise DomainError('%s: %a has no CPU' % (name, text[:40]))
    return frozenset(cpu for cpu in range(cpus.bit_length()) if cpus >> cpu & 1)


def _cpu_range(name: str, item: str) -> tuple[range, bool]:
    """Return the numbers of an item of a set ('4-7', '^5'), and whether it excludes them."""
    first, dash, last = item.removeprefix('^').partition('-')
    low = domain_xml.parse_integer(name, first, 0, CPUS_MAX - 1)
    high = domain_xml.parse_integer(name, last, low, CPUS_MAX - 1) if dash else low
    return range(low, high + 1), item.startswith('^')
