# SPDX-License-Identifier: Apache-2.0
"""Print the figures that parameters.py takes from recorded traces; run by hand where these are.

python -m tests.arena.fits bitbrains DIRECTORY   fragments.parquet, tasks.parquet of
    https://github.com/atlarge-research/opendc (691036d), opendc-experiments-base,
    src/test/resources/workloadTraces/bitbrains-small; needs pyarrow
python -m tests.arena.fits surf FILE             tasks.parquet of SURF's Lisa there,
    src/jmh/resources/workloadTraces/workloadScaling/surf_week; needs pyarrow
python -m tests.arena.fits azure DIRECTORY       v1.train.txt, v1.test.c2591400.txt,
    flav_map.txt, v1.interval_map.txt of https://github.com/huaweicloud/trace_generation_rnn
    (fa856db), resources/: Azure's public trace of 2017 (CC-BY) as sizes, batches, lifetimes
"""

import collections
import pathlib
import sys

import numpy as np

INTERVAL_S = 300
#: Below this, a guest is idle, and its logarithm is noise [cores per vCPU].
IDLE = 0.005


def series(fragments, tasks):
    """Return {guest: its cores per vCPU in each interval} from rows of OpenDC's traces."""
    capacity = {row['id']: row['cpu_capacity'] for row in tasks}
    found = collections.defaultdict(list)
    for row in fragments:
        count = max(1, round(row['duration'] / 1000 / INTERVAL_S))
        found[row['id']] += [row['cpu_usage'] / capacity[row['id']]] * count
    return {guest: np.array(values) for guest, values in found.items()}


def use(guests):
    """Return the spread of use between and within guests, its persistence and daily amplitude."""
    means = np.array([values.mean() for values in guests.values()])
    spreads, keeps, days = [], [], []
    for values in guests.values():
        if values.mean() < IDLE:
            continue
        logs = np.log(np.maximum(values, 0.002))
        spreads.append(logs.std())
        apart = logs - logs.mean()
        if apart.std() > 0:
            keeps.append((apart[6:] * apart[:-6]).mean() / (apart**2).mean())
        day = 86400 // INTERVAL_S
        whole = values[: len(values) // day * day].reshape(-1, day).mean(0).reshape(24, -1).mean(1)
        days.append(np.abs(np.fft.rfft(whole)[1]) / 12 / whole.mean())
    return {
        'guests': len(means),
        'mean cores per vCPU': means.mean(),
        'below 70 %': (means < 0.7).mean(),
        'below 20 %': (means < 0.2).mean(),
        'sigma between (of the logarithm)': np.log(means[means >= IDLE]).std(),
        'sigma within, median': np.median(spreads or [0.0]),
        'correlation after 30 min, median': np.median(keeps or [0.0]),
        'amplitude of the day, median': np.median(days or [0.0]),
    }


def arrivals(counts):
    """Return how unevenly guests arrive: variance over mean of their number per interval."""
    return {'an interval': counts.mean(), 'variance / mean': counts.var() / counts.mean()}


def azure(directory):
    """Return sizes, batches and lifetimes."""
    names = {}
    for line in (directory / 'flav_map.txt').read_text().splitlines():
        size, letter = line.split()
        names[letter] = tuple(map(float, size.split(',')))
    batches = []
    counts = []
    for line in (directory / 'v1.train.txt').read_text().splitlines():
        parts = line.split(' ', 1)[1].strip(',').split('|')
        here = [[one for one in part.strip(',').split(',') if one] for part in parts]
        batches += [one for one in here if one]
        counts.append(sum(map(len, here)))
    flavors = collections.Counter(one for batch in batches for one in batch)
    total = sum(flavors.values())
    sizes = np.array([len(batch) for batch in batches])
    found = {'guests': total, **arrivals(np.array(counts))}
    for letter, count in sorted(flavors.items()):
        found['%g vCPUs, %g GiB' % names[letter]] = count / total
    found['batches of several'] = (sizes > 1).mean()
    found['guests of those, mean'] = sizes[sizes > 1].mean()
    found.update(lifetimes(directory))
    return found


def lifetimes(directory):
    """Return the fractions of guests with lifetimes below bounds; those cut off live longer."""
    bounds = {}
    for line in (directory / 'v1.interval_map.txt').read_text().splitlines():
        seconds, number = map(int, line.split())
        bounds[number] = seconds  # the last of each
    ends = collections.Counter()
    for line in (directory / 'v1.test.c2591400.txt').read_text().splitlines():
        for one in line.split(' ', 1)[1].split(','):
            if one[:1] in ('U', 'C'):
                ends[bounds[int(one[1:])] if one[0] == 'U' else 10**9] += 1
    total = sum(ends.values())
    return {
        f'lifetimes below {hours} h': sum(n for s, n in ends.items() if s <= hours * 3600) / total
        for hours in (1, 4, 24, 72)
    }


def main(kind, path):
    """Print the fits."""
    place = pathlib.Path(path)
    if kind == 'azure':
        found = azure(place)
    else:
        from pyarrow import parquet  # type: ignore[import-not-found,import-untyped,unused-ignore]

        if kind == 'bitbrains':
            rows = (
                parquet.read_table(place / f'{name}.parquet') for name in ('fragments', 'tasks')
            )
            found = use(series(*(table.to_pylist() for table in rows)))
        else:
            came = sorted(row['submission_time'] for row in parquet.read_table(place).to_pylist())
            since = (np.array(came) - came[0]) // (1000 * INTERVAL_S)
            found = arrivals(np.bincount(since.astype(int)))
    for name, value in found.items():
        print(f'{name:36}{value:12.4g}')


if __name__ == '__main__':
    main(*sys.argv[1:])
