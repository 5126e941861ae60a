# SPDX-License-Identifier: Apache-2.0
"""Read the hosts of a fleet, from files of ``status --json`` or from Prometheus' HTTP API.

Whatever is read is checked here; a host whose figures are malformed is left out and named.
"""

from __future__ import annotations

import functools
import json
import pathlib
import re
import urllib.parse
import urllib.request
from collections import Counter
from http.client import HTTPException
from typing import TYPE_CHECKING

from nova_numa_pmc import json_values
from nova_numa_pmc.core import fleet
from nova_numa_pmc.exceptions import NumaPmcError
from nova_numa_pmc.state import publication

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    #: Returns the series of an instant query, in the form that Prometheus' HTTP API has for them.
    Ask = Callable[[str], Iterable[Any]]

#: A request is given up after this time [s], and an answer is at most as large as this.
TIMEOUT_S, ANSWER_MAX_BYTES = 60.0, 1 << 29
_FILE_MAX_BYTES, _SERIES_MAX = 16 << 20, 1 << 22
_EXPECTED = (
    'expected files HOST.json with the output of "nova-numa-rebalance status --json", or a server '
    'that has the metrics of nova-numa-agent; found'
)
_LABEL_MATCHERS = r'\w+(=|!=|=~|!~)"[^"\\{}]*"'
#: {metric of a node: field of its view}
_NODE_FIELDS = {
    'capacity_cores': 'cores',
    'cpus': 'cpu_count',
    'promisable_bytes': 'capacity_bytes',
    'promised_bytes': 'promised_bytes',
    'guests': 'guests',
    'vcpus': 'vcpus',
    'lasting_demand_cores': 'demand_cores',
    'lasting_bandwidth_bytes_per_second': 'bandwidth_bytes_per_sec',
    'bandwidth_max_bytes_per_second': 'bandwidth_max_bytes_per_sec',
}
#: {metric of a guest: field of :class:`fleet.FleetGuest`}
_GUEST_FIELDS = {
    'size_bytes': 'memory_bytes',
    'vcpus': 'vcpus',
    'lasting_demand_cores': 'demand_cores',
    'bandwidth_bytes_per_second': 'bandwidth_bytes_per_sec',
    'movable': 'movable',
}
_NODE, _GUEST = 'nova_numa_node_', 'nova_numa_guest_'
_TICK, _UNAME = 'nova_numa_agent_last_tick_timestamp_seconds', 'node_uname_info'
_LEAVING_GAIN = 'nova_numa_guest_leaving_gain_cores'
_WHOLE = {'cpu_count', 'capacity_bytes', 'promised_bytes', 'memory_bytes', 'vcpus'}

#: A fleet's hosts by name, and problems.
Fleet = tuple[dict[str, fleet.FleetHost], list[str]]


class FleetError(NumaPmcError):
    """The figures of a fleet cannot be read; the message may quote what was found."""

    def __init__(self, message: str) -> None:
        """Take a message whose unprintable characters could control the terminal."""
        super().__init__(json_values.printable(message))


def read(source: str, match: str = '', open_url: Callable[..., Any] | None = None) -> Fleet:
    """Return ({name: host}, problems).

    :param source: path of a directory, or URL of a server with Prometheus' API
    :param match: label matchers that select hosts, such as 'cluster="a"'; of a server only
    :param open_url: replaces :func:`urllib.request.urlopen`
    :raises FleetError: nothing can be read
    """
    if source.startswith(('http://', 'https://')):
        ask = functools.partial(_ask, source, open_url or urllib.request.urlopen)
        hosts, problems = from_series(ask, match)
    else:
        hosts, problems = _read_directory(pathlib.Path(source))
    if not hosts:
        raise FleetError('%s: %s: %s' % (source, _EXPECTED, '; '.join(problems[:3]) or 'nothing'))
    return hosts, problems


def _read_directory(directory: pathlib.Path) -> Fleet:
    hosts, problems = {}, []
    for path in sorted(directory.glob('*.json')):
        try:
            with open(path, 'rb') as file:
                data = json.loads(file.read(_FILE_MAX_BYTES))
            value = json_values.mapping(data).get('fleet')
            if value is None:
                raise ValueError('the agent of this host has published nothing lately')
            hosts[_host_name(path.stem)] = _checked(json_values.from_json(fleet.FleetHost, value))
        except (ValueError, OSError, RecursionError) as error:
            problems.append('%s: %.200s' % (path, error))
    return hosts, problems


def from_series(ask: Ask, match: str = '') -> Fleet:
    """Return ({name: host}, problems), with two queries.

    :param match: label matchers that select hosts, such as 'cluster="a"'
    :raises FleetError: an answer cannot be read
    """
    matchers = [part.strip() for part in match.split(',') if part.strip()]
    if not all(re.fullmatch(_LABEL_MATCHERS, part) for part in matchers):
        raise FleetError('%.100s: not label matchers like cluster="a",rack!="b"' % match)
    labels = ''.join(',' + part for part in matchers)
    found: dict[str, _Instance] = {}
    for query in (
        '{__name__=~"%s(%s)|%s|%s"%s}' % (_NODE, '|'.join(_NODE_FIELDS), _TICK, _UNAME, labels),
        '{__name__=~"%s(%s)"%s} and on (instance) (max by (instance) (%s) >= %g)'
        % (_GUEST, '|'.join(_GUEST_FIELDS), labels, _LEAVING_GAIN, fleet.GAIN_MIN_CORES),
    ):
        for series in ask(query):
            try:
                metric = json_values.mapping(series['metric'])
                instance = json_values.text(metric.get('instance', ''))
                value = series['value'][1]
            except (KeyError, TypeError, ValueError, IndexError):
                raise FleetError('malformed series %.200s' % (series,)) from None
            one = found.setdefault(instance, _Instance(instance))
            try:
                one.add(metric, float(value))
            except (KeyError, TypeError, ValueError):
                one.problem = 'malformed series %.200s' % series
    names = Counter(one.name for one in found.values() if one.has_agent)
    hosts: dict[str, fleet.FleetHost] = {}
    problems = []
    for instance, one in found.items():
        try:
            if one.has_agent:
                if names[one.name] > 1:
                    raise ValueError('another instance has the name %.80r, too' % one.name)
                hosts[_host_name(one.name)] = one.host()
        except ValueError as error:
            problems.append(json_values.printable('%s: %.200s' % (instance, error)))
    return hosts, problems


def _ask(url: str, open_url: Callable[..., Any], query: str) -> list[Any]:
    """Return the series of an instant query."""
    request = url.rstrip('/') + '/api/v1/query?' + urllib.parse.urlencode({'query': query})
    try:
        with open_url(request, timeout=TIMEOUT_S) as answer:
            data = json.loads(answer.read(ANSWER_MAX_BYTES))
        result = json_values.mapping(json_values.mapping(data)['data'])['result']
        return json_values.sequence(result, _SERIES_MAX)
    except (OSError, ValueError, KeyError, RecursionError, HTTPException) as error:
        raise FleetError('%s: not an answer of Prometheus: %.200s' % (url, error)) from None


class _Instance:
    """The series of one instance.

    :ivar name: of the host, as node_exporter reports it, or else from the label ``instance``
    :ivar problem: why its series cannot be used; empty: they can
    """

    def __init__(self, instance: str) -> None:
        self.name = instance.rpartition(':')[0] or instance
        self.problem = ''
        self.has_agent = False
        self.taken_s: float | None = None
        self.nodes: dict[str, dict[str, Any]] = {}
        self.guests: dict[str, dict[str, Any]] = {}

    def add(self, labels: dict[str, Any], value: float) -> None:
        """Add a series.

        :param labels: its labels, of which ``__name__`` is the metric
        """
        metric = json_values.text(labels['__name__'])
        if metric == _UNAME:
            self.name = json_values.text(labels['nodename'])
        elif metric == _TICK:
            self.has_agent = True
            self.taken_s = json_values.number(value)
        elif metric.startswith(_NODE):
            node = self.nodes.setdefault(labels['node'], {'id': int(labels['node'])})
            _set(node, _NODE_FIELDS[metric.removeprefix(_NODE)], value)
        else:
            named = {'uuid': labels['uuid'], 'name': labels['name']}
            guest = self.guests.setdefault(labels['uuid'], named)
            _set(guest, _GUEST_FIELDS[metric.removeprefix(_GUEST)], value)

    def host(self) -> fleet.FleetHost:
        """Return the host.

        :raises ValueError: a figure is missing or wrong
        """
        if self.problem:
            raise ValueError(self.problem)
        nodes = sorted(self.nodes.values(), key=lambda node: node['id'])
        for guest in self.guests.values():
            guest['why_fixed'] = '' if guest.pop('movable', 0) else 'fixed'
        return _checked(
            json_values.from_json(
                fleet.FleetHost,
                {
                    'taken_s': self.taken_s,
                    'view': {'nodes': nodes, 'distances': []},
                    # One that came between two files of metrics may lack some.
                    'guests': [one for one in self.guests.values() if 'memory_bytes' in one],
                },
            )
        )


def _set(record: dict[str, Any], field: str, value: float) -> None:
    record[field] = (
        int(value) if field in _WHOLE and abs(value) < json_values.INTEGER_MAX else value
    )


def _checked(host: fleet.FleetHost) -> fleet.FleetHost:
    """Return a host whose parts fit together, and whose guests have uuids.

    :raises ValueError: they do not
    """
    for guest in host.guests:
        if not re.fullmatch('[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}', guest.uuid):
            raise ValueError('%.40r is not the uuid of a guest' % guest.uuid)
    return host._replace(view=publication.checked_view(host.view))


def _host_name(name: str) -> str:
    if not re.fullmatch(r'[A-Za-z0-9][A-Za-z0-9._-]{0,252}', name):
        raise ValueError('%.40r is not the name of a host' % name)
    return name
