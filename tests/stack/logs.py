# SPDX-License-Identifier: Apache-2.0
"""Parse the services' logs and the hosts' journals; without I/O."""

import json
import re

_WEIGHED = re.compile(
    r'NUMA pressure of \((?P<host>[^,]+), [^)]*\): penalty (?P<penalty>[\d.]+)[^:]*: '
    r'(?P<why>.*)'
)
#: Of syslog(3).
ERROR = 3
#: What systemd logs about a service that did not end as requested.
_DIED = re.compile(r'Main process exited|Failed with result|[Ww]atchdog')


def weighings(text):
    """Return what the weigher logged, as a list of {'host', 'penalty', 'why'}.

    :param text: nova-scheduler's log, at debug
    """
    return [
        {**match.groupdict(), 'penalty': float(match['penalty'])}
        for match in _WEIGHED.finditer(text)
    ]


def journal_entries(text, names):
    """Return the entries of a journal, as a list of {'taken_s', 'source', 'severity', 'message'}.

    :param text: output of ``journalctl -o json``
    :param names: {domain: server}, which replace libvirt's names
    """
    entries = []
    for line in text.splitlines():
        entry = json.loads(line)
        message = entry.get('MESSAGE')
        # There, text that is not UTF-8 is a list of bytes.
        message = (
            bytes(message).decode(errors='replace') if isinstance(message, list) else str(message)
        )
        entries.append(
            {
                'taken_s': int(entry['__REALTIME_TIMESTAMP']) / 1e6,
                'source': entry.get('SYSLOG_IDENTIFIER', '?'),
                'severity': int(entry.get('PRIORITY', 6)),
                'message': re.sub(
                    r'\binstance-[0-9a-f]{8}\b',
                    lambda match: names.get(match[0], match[0]),
                    message,
                ),
            }
        )
    return entries


def our_errors(logs, journals, expected=()):
    """Return what went wrong in the package's code: its lines in logs, its errors in journals.

    :param logs: {name: text}
    :param journals: {host: list as from :func:`journal_entries`}
    :param expected: texts; a line that contains one of them was provoked
    """
    lines = [
        f'{name}: {line}'
        for name, text in logs.items()
        for line in text.splitlines()
        if 'numa_pmc' in line and re.search(' (ERROR|CRITICAL) |File "', line)
    ]
    lines += [
        f'{name}: {entry["source"]}: {entry["message"]}'
        for name, entries in journals.items()
        for entry in entries
        if entry['severity'] <= ERROR
        or 'Traceback' in entry['message']
        or _DIED.search(entry['message'])
    ]
    return [line for line in lines if not any(text in line for text in expected)]
