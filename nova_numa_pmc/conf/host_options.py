# SPDX-License-Identifier: Apache-2.0
"""Read the options that the libvirt hook shares with the other programs, without oslo.config.

The libvirt hook runs at every guest start and cannot afford to import oslo.config (150 modules
on top of a bare Python's two dozen), with which the other programs read the same file.
:data:`OPTIONS` is the only description of these options; ``conf/opts.py`` converts it for
oslo.config. The standard library's parser reads what oslo.config does of single-valued options, as
all of these are.
"""

from __future__ import annotations

import os

from nova_numa_pmc import model
from nova_numa_pmc.cpulist import parse_cpulist
from nova_numa_pmc.exceptions import CpuListError
from nova_numa_pmc.record import TYPE_CHECKING, Record

if TYPE_CHECKING:
    from typing import Any

PATH = '/etc/nova-numa-pmc/nova-numa-pmc.conf'
#: A configuration file is a few kilobytes; a longer file is refused.
SIZE_MAX_BYTES = 1 << 20

#: If a guest starts with more memory than this on other nodes (after a restore or a migration),
#: and that is the larger part of it, its CPUs follow its memory [bytes]. The agent fetches less:
#: 4 GiB take it some ten seconds.
FOLLOW_MEMORY_OVER_BYTES = 4 << 30
#: Time after which the promise of a guest that was never seen running is dropped [s]. Restores
#: from slow storage, during which QEMU exists but no status file does, take minutes.
START_GRACE_S = 900

#: A group of its own for what precedes the first one.
_NO_GROUP = '[ ]\n'
_DEFAULT_PLACEMENT_OPTIONS = model.PlacementOptions()
_BOOLEANS = {
    'true': True,
    '1': True,
    'on': True,
    'yes': True,
    'false': False,
    '0': False,
    'off': False,
    'no': False,
}


class NodeList(str):
    """An option's value that is a list of nodes in the kernel's format, such as '2,4-5'."""

    __slots__ = ()

    #: The pattern by which oslo.config checks the value; it checks nothing else.
    REGEX = r'^[0-9,-]*$'


_KIND_TEXTS = {
    bool: 'a boolean',
    int: 'a number',
    float: 'a number',
    NodeList: 'a list of nodes like 2,4-5',
}


class Option(Record):
    """One option of the file.

    :param kind: bool, int, float, str for an absolute path, or :class:`NodeList`
    :param minimum, maximum: inclusive bounds of a number, which needs both; None: the option is
        not a number
    """

    group: str
    name: str
    kind: type[bool] | type[int] | type[float] | type[str]
    default: bool | float | str
    minimum: float | None = None
    maximum: float | None = None
    help: str = ''


class HostOptions(Record):
    """The operator's options, checked; the fields are named as the options of ``[hook]``.

    :param placement_options: the group ``[placement]``
    :param state_dir: ``dir`` of the group ``[state]``
    :param problems: problems to log: what could not be used, and what is used instead
    """

    placement_options: model.PlacementOptions
    enabled: bool
    timeout_s: float
    bind: bool
    strict: bool
    state_dir: str
    problems: tuple[str, ...] = ()

    def state_path(self, root: str) -> str:
        """Return the path of the state directory of the host whose file system is at ``root``."""
        return path_under_root(root, self.state_dir)


GROUPS = (
    ('placement', 'What a node may promise.'),
    ('hook', 'What the libvirt hook does when a guest starts.'),
    ('state', 'Where promises and publications are kept.'),
)

OPTIONS = (
    Option(
        'placement',
        'ram_allocation_ratio',
        float,
        _DEFAULT_PLACEMENT_OPTIONS.ram_ratio,
        0.1,
        64.0,
        "Memory that a node may promise, as a multiple of what it has. Set it to Nova's "
        'RAM allocation ratio on this host: with a smaller value, guests that Nova sends '
        'here do not fit on a node and only their CPUs are placed.',
    ),
    Option(
        'placement',
        'reserve_mib',
        int,
        _DEFAULT_PLACEMENT_OPTIONS.reserve_bytes >> 20,
        0,
        1 << 20,
        'Memory of each node that is kept for the host itself. Moves and fetches leave it free as '
        'well [MiB].',
    ),
    Option(
        'placement',
        'guest_memory_nodes',
        NodeList,
        NodeList(),
        None,
        None,
        'Nodes without CPUs whose memory guests may use. By default, guests get memory of such a '
        'node, which may be that of a GPU or of CXL, only if their own numatune names it [a list '
        'like 2,4-5].',
    ),
    Option(
        'hook',
        'enabled',
        bool,
        True,
        None,
        None,
        'Place guests when they start. When false, the hook returns at once.',
    ),
    Option(
        'hook',
        'timeout_s',
        float,
        2.0,
        0.1,
        60.0,
        'Time after which the hook gives up and leaves the guest floating [seconds]. libvirt '
        'waits for the hook.',
    ),
    Option(
        'hook',
        'bind',
        bool,
        False,
        None,
        None,
        "Let the agent bind a guest's memory to its nodes. By default, memory is not bound and "
        "may spill to another node when the guest's own is full; a bound guest is killed by the "
        'OOM killer in that case. The agent does not bind a guest, or unbinds it, when its nodes '
        'become short of memory.',
    ),
    Option(
        'hook',
        'strict',
        bool,
        False,
        None,
        None,
        'Make the start of a guest fail if it cannot be placed. By default, the hook never '
        'stops a guest from starting.',
    ),
    Option(
        'state',
        'dir',
        str,
        '/run/nova-numa-pmc',
        None,
        None,
        'Directory of the promises, of what the agent publishes, and of locks. It must not '
        'survive a reboot.',
    ),
)


def convert(option: Option, text: str) -> Any:
    """Convert the text of an option to its value.

    :raises ValueError: the option cannot have this value; the message gives the reason
    """
    value: Any
    try:
        if option.kind is bool:
            return _BOOLEANS[text.lower()]
        if option.kind is NodeList:
            parse_cpulist(text)
        value = option.kind(text)
    except (KeyError, ValueError, CpuListError):
        raise ValueError('not ' + _KIND_TEXTS[option.kind]) from None
    if option.kind is str and not (text.startswith('/') and text.isprintable()):
        raise ValueError('not an absolute path')
    low, high = option.minimum, option.maximum
    # Written so that NaN, for which every comparison is false, is refused.
    if low is not None and high is not None and not low <= value <= high:
        raise ValueError('not between %s and %s' % (low, high))
    return value


def parse(text: str, source: str = PATH) -> tuple[dict[tuple[str, str], Any], list[str]]:
    """Parse the text of a configuration file.

    :param source: name of the file in problems
    :returns: {(group, name): value} of all options, and problems
    """
    texts: dict[tuple[str, str], str] = {}
    problems: list[str] = []
    # The file that is installed sets nothing, and a parser would take the hook 3 ms to import.
    if any(line and line[0] not in '#;[' for line in text.split('\n')):
        texts, problems = _option_texts(text, source)
    values: dict[tuple[str, str], Any] = {}
    for option in OPTIONS:
        key = option.group, option.name
        values[key] = option.default
        try:
            if key in texts:
                values[key] = convert(option, texts[key])
        except ValueError as error:
            problems.append(
                '%s: [%s] %s = %r is %s; %r is used'
                % (source, *key, texts[key][:80], error, option.default)
            )
    return values, problems


def _option_texts(text: str, source: str) -> tuple[dict[tuple[str, str], str], list[str]]:
    """Return {(group, name): the text of this option} and the problems of unusable lines."""
    import configparser  # not needed for most files, and neither is re
    import re

    # oslo.config's syntax: a name may be repeated, and nothing is substituted.
    parser = configparser.RawConfigParser(
        strict=False, empty_lines_in_values=False, default_section='\n'
    )
    # Both as configparser documents. The header has the bracket that closes it, by which it is
    # known to be one: one that is not closed begins a group of its own, too.
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.SECTCRE = re.compile(r'\[(?P<header>.*)')
    problems: list[str] = []
    try:
        parser.read_string(_NO_GROUP + text)  # what precedes the first group is ignored
    except configparser.ParsingError as error:  # after all other lines have been read
        problems += [
            '%s: line %d is neither [group] nor option = value; ignored' % (source, number - 1)
            for number, _ in error.errors
        ]
    texts = {}
    for group in parser.sections():
        if group.endswith(']') and len(group) > 1:
            for name, value in parser.items(group):
                texts[group[:-1].lower(), name] = _unquoted(value)
        else:
            header = '[' + group
            problems.append('%s: %.80r is no [group]; its options are ignored' % (source, header))
    return texts, problems


def _unquoted(value: str) -> str:
    if len(value) > 1 and value[0] == value[-1] and value[0] in '"\'':
        return value[1:-1]
    return value


def path_under_root(root: str, path: str) -> str:
    """Return where a file of a host is found if the host's file system is at ``root``.

    :param path: absolute path of the file on the host
    """
    return os.path.join(root, path.lstrip('/'))


def read_under_root(root: str) -> HostOptions:
    """Return the options of the host whose file system is at ``root``, as :func:`read` does."""
    return read(path_under_root(root, PATH))


def read(path: str = PATH) -> HostOptions:
    """Read the operator's file.

    Missing and invalid values are replaced by defaults, and invalid ones are reported as problems.
    A missing file is not a problem, as every option has a default.
    """
    text, problems = '', []
    try:
        with open(path, 'rb') as file:
            data = file.read(SIZE_MAX_BYTES + 1)
        if len(data) > SIZE_MAX_BYTES:
            raise ValueError('longer than %d bytes' % SIZE_MAX_BYTES)
        text = data.decode('utf-8')
    except FileNotFoundError:
        pass
    except (OSError, ValueError) as error:
        problems.append('%s: %s; the defaults are used' % (path, error))
    values, value_problems = parse(text, path)
    placement_options = model.PlacementOptions(
        ram_ratio=values['placement', 'ram_allocation_ratio'],
        reserve_bytes=values['placement', 'reserve_mib'] << 20,
        guest_memory_nodes=parse_cpulist(values['placement', 'guest_memory_nodes']),
    )
    return HostOptions(
        placement_options=placement_options,
        state_dir=values['state', 'dir'],
        problems=(*problems, *value_problems),
        **{name: value for (group, name), value in values.items() if group == 'hook'},
    )
