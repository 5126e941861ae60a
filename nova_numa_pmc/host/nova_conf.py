# SPDX-License-Identifier: Apache-2.0
"""Read the few options of Nova that matter here, as Nova's services would.

They are read by oslo.config itself (with its substitutions and lists, and with later files
overriding earlier ones), with the defaults of Nova's own nova/conf/*.py. The files are not
trusted: only regular files of at most 1 MiB are opened, and a value that cannot be used is a
finding, not an error.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from oslo_config import cfg

from nova_numa_pmc.conf import compute as compute_conf, host_options, scheduler as scheduler_conf
from nova_numa_pmc.core import finding
from nova_numa_pmc.core.finding import Finding
from nova_numa_pmc.host import files, guests, ownership
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
    'scheduler': [cfg.IntOpt('max_placement_results', default=1000)],
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
    'placement': [cfg.BoolOpt('randomize_allocation_candidates', default=False)],
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
    :param root: the host's root directory
    :param accounts: uids of Nova's accounts, besides root
    :param groups: the groups of these accounts
    """

    base: str
    root: str
    accounts: frozenset[int]
    groups: frozenset[int]

    def find_changeable(self, path: str) -> str | None:
        """Return the first component of a path below ``base`` that others can change, or None."""
        root_uid = ownership.root_uid(self.root)
        exposed = ownership.find_changeable(path, self.base, {root_uid})
        if exposed is None or not self.accounts:
            return exposed
        # A guest that has taken over its QEMU has the ids of QEMU, which kolla also gives to Nova.
        uids, gids = guests.ids(self.root)
        owners = {root_uid, *(self.accounts - uids)}
        return ownership.find_changeable(path, self.base, owners, self.groups - gids)


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
            self._add_unreadable(self.files[0], str(error))
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
                '[%s] %s cannot be used: %s' % (group, name, error),
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
        exposed = trust.find_changeable(name) if real_path else None
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
            with open(path, 'rb') as stream:
                stream.read(SIZE_MAX_BYTES).decode('utf-8')
        except FileNotFoundError:
            self._add_unreadable(path, 'no such file')
        except UnicodeDecodeError as error:
            self._add_unreadable(path, str(error))
        except OSError as error:
            self._add_unreadable(path, str(error.strerror))
        else:
            return True
        return False

    def _add_unreadable(self, path: str, why: str) -> None:
        self._add(
            'nova-conf-unreadable',
            '%s: %s' % (path, why),
            'run as root, or name the file with --nova-conf',
            path,
        )

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
    return Trust(base, root, frozenset(accounts), frozenset(groups))


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
