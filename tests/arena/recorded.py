# SPDX-License-Identifier: Apache-2.0
"""Guests of a recorded trace: a CSV file of this project's format, or one of Azure's traces."""

import contextlib
import csv
import functools
import math
import pathlib
import sqlite3

import numpy as np

from tests.arena import parameters as p

#: Columns of the project's own format, named by its first line in any order; the last is optional.
OWN = 'arrive_s', 'leave_s', 'vcpus', 'memory_mib', 'cores_per_vcpu'
#: Of vmtable.csv, which has no such line: https://github.com/Azure/AzurePublicDataset, V1 and V2.
AZURE = (
    'vmid subscriptionid deploymentid vmcreated vmdeleted maxcpu avgcpu p95maxcpu vmcategory '
    'vmcorecount vmmemory'
).split()
#: Azure's times are those of whole intervals.
INTERVAL_S = 300
#: Columns of the two tables of Azure's packing trace of 2020, AzureTracesForPacking2020.md of the
#: same repository. Times are in days, sizes are parts of machines that are not described.
REQUESTS, TYPES = ('vmTypeId', 'starttime', 'endtime'), ('vmTypeId', 'core', 'memory')
SQLITE_MAGIC = b'SQLite format 3\0'
DAY_S = 86400


class BadTraceError(ValueError):
    """A problem with a file: what is wrong, where, and what to do."""


class Recorded:
    """Guests as arrays, in the file's order.

    :ivar arrive_s, leave_s: time since the first guest; infinite if it stays
    :ivar vcpus, memory_mib: its size
    :ivar cores_per_vcpu: what it used on average, or NaN if that is not known
    """

    def __init__(self, rows):
        """Store (arrive_s, leave_s, vcpus, memory_mib, cores_per_vcpu) of each guest."""
        columns = np.array(rows, float).T
        self.arrive_s, self.leave_s, vcpus, mib, self.cores_per_vcpu = columns
        first_s = self.arrive_s.min()
        self.arrive_s, self.leave_s = self.arrive_s - first_s, self.leave_s - first_s
        self.vcpus, self.memory_mib = vcpus.astype(np.int64), mib.astype(np.int64)


@functools.lru_cache(maxsize=1)
def read(path):
    """Return the guests of a file.

    :raises BadTraceError: the file, or a line of it, cannot be read
    """
    found, names = [], None
    try:
        with open(path, 'rb') as binary:
            if binary.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC:
                return Recorded(_packing_trace(path))
        with open(path, encoding='utf-8', newline='') as file:
            lines = csv.reader(file)
            for cells in lines:
                if names is None:
                    names, is_title = _names(path, [cell.strip() for cell in cells])
                    if is_title:
                        continue
                if cells:
                    found.append(_guest(f'{path}:{lines.line_num}', names, cells))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        told = getattr(error, 'strerror', None) or error
        raise BadTraceError(f'{path}: {told}: it has to be a CSV file of guests') from error
    except sqlite3.Error as error:
        raise BadTraceError(f"{path}: {error}: it has to be Azure's packing trace") from error
    if not found:
        raise BadTraceError(f'{path}: no guests in it: give it a line for each')
    return Recorded(found)


def _names(path, first):
    """Return (names of the columns, whether the first line has them)."""
    if set(OWN[:4]) <= set(first):
        return first, True
    if len(first) == len(AZURE):
        return AZURE, False
    raise BadTraceError(
        f"{path}:1: neither named columns nor the {len(AZURE)} of Azure's vmtable.csv: "
        f'begin it with the line {",".join(OWN)}'
    )


def _guest(where, names, cells):
    """Return the guest that a line describes."""
    if len(cells) != len(names):
        raise BadTraceError(
            f'{where}: {len(cells)} values for {len(names)} columns: add or remove some'
        )
    row = dict(zip(names, map(str.strip, cells)))
    if names is AZURE:
        arrive_s, leave_s = _number(where, row, 'vmcreated'), _number(where, row, 'vmdeleted')
        guest = (
            arrive_s,
            max(leave_s, arrive_s + INTERVAL_S),
            # Sizes are in classes: >24 is taken as 24.
            _number(where, row, 'vmcorecount'),
            1024 * _number(where, row, 'vmmemory'),
            _number(where, row, 'avgcpu') / 100,
        )
    else:
        guest = (
            _number(where, row, 'arrive_s'),
            _number(where, row, 'leave_s') if row['leave_s'] else math.inf,
            _number(where, row, 'vcpus'),
            _number(where, row, 'memory_mib'),
            _number(where, row, 'cores_per_vcpu') if row.get('cores_per_vcpu') else math.nan,
        )
    arrive_s, leave_s, vcpus, mib, used = guest
    for wrong, remedy in (
        (leave_s <= arrive_s, 'a guest has to leave after it arrives: correct leave_s'),
        (vcpus < 1 or vcpus % 1, 'a guest has whole vCPUs, one at least: correct vcpus'),
        (mib < 1, 'a guest has memory, in MiB: correct memory_mib'),
        (used > 1, 'a vCPU uses one core at most: give cores_per_vcpu as 0 to 1'),
    ):
        if wrong:
            raise BadTraceError(f'{where}: {remedy}')
    return guest


def _packing_trace(path):
    """Return the guests of Azure's packing trace.

    A type is given its part of our equal hosts, by the machine of which it takes most. Guests that
    were there before arrive at second 0; those that stay have no end. What they used is not known.
    """
    ((nodes, cores, node_mib, _),) = p.EQUAL
    threads, memory_mib = nodes * cores * p.THREADS_PER_CORE, nodes * node_mib
    with contextlib.closing(
        sqlite3.connect(f'{pathlib.Path(path).resolve().as_uri()}?mode=ro', uri=True)
    ) as base:
        requests, types = (_table(path, base, columns) for columns in (REQUESTS, TYPES))
        sizes = {
            kind: (max(1, round(threads * core)), max(1, round(memory_mib * memory)))
            for kind, core, memory in base.execute(
                f'SELECT vmTypeId, MAX(core), memory FROM "{types}" GROUP BY vmTypeId'
            )
        }
        found = [
            (
                DAY_S * max(0.0, began),
                math.inf if ended is None else DAY_S * ended,
                *sizes[kind],
                math.nan,
            )
            for kind, began, ended in base.execute(
                f'SELECT vmTypeId, starttime, endtime FROM "{requests}" ORDER BY starttime'
            )
            if kind in sizes and (ended is None or ended > max(0.0, began))
        ]
    if not found:
        raise BadTraceError(f'{path}: no guests in its table {requests}')
    return found


def _table(path, base, columns):
    """Return the name of the table that has these columns."""
    names = base.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    for (name,) in names:
        cursor = base.execute(f'SELECT * FROM "{name}" LIMIT 0')
        if set(columns) <= {column for column, *_ in cursor.description}:
            return name
    raise BadTraceError(f'{path}: no table with the columns {", ".join(columns)}')


def _number(where, row, name):
    """Return a value that must be a number, at least 0."""
    try:
        found = float(row[name].lstrip('>'))
    except ValueError:
        found = math.nan
    if not 0 <= found < math.inf:
        raise BadTraceError(f'{where}: {name} is {row[name]!r}: it has to be a number, 0 or more')
    return found
