# SPDX-License-Identifier: Apache-2.0
"""Parsers for the services' logs and the hosts' journals. Pure."""

import json
import re

_WEIGHED = re.compile(
    r'NUMA pressure of \((?P<host>[^,]+), [^)]*\): penalty (?P<penalty>\S+): '
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
    """Return the entries of a journal, as a list of {'taken_s', 'who', 'severity', 'what'}.

    :param text: output of ``journalctl -o json``
    :param names: {domain: server}, which replace libvirt's names
    """
    entries = []
    for line in text.splitlines():
        entry = json.loads(line)
        what = entry.get('MESSAGE')
        # There, text that is not UTF-8 is a list of bytes.
        what = bytes(what).decode(errors='replace') if isinstance(what, list) else str(what)
        entries.append(
            {
                'taken_s': int(entry['__REALTIME_TIMESTAMP']) / 1e6,
                'who': entry.get('SYSLOG_IDENTIFIER', '?'),
                'severity': int(entry.get('PRIORITY', 6)),
                'what': re.sub(
                    r'\binstance-[0-9a-f]{8}\b', lambda match: names.get(match[0], match[0]), what
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
        f'{name}: {entry["who"]}: {entry["what"]}'
        for name, entries in journals.items()
        for entry in entries
        if entry['severity'] <= ERROR
        or 'Traceback' in entry['what']
        or _DIED.search(entry['what'])
    ]
    return [line for line in lines if not any(text in line for text in expected)]
