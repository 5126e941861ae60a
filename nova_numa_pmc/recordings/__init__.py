# SPDX-License-Identifier: Apache-2.0
"""Read samples from a file: output of ``record``, ``top --json`` or ``perf stat -x, -I``."""

from __future__ import annotations

import itertools
import json
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import RecordingError
from nova_numa_pmc.recordings import perf_stat
from nova_numa_pmc.sample_records import from_data

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from nova_numa_pmc.sample_records import Sample

#: 10,000 guests take 8 MB.
_LINE_MAX_BYTES = 32 << 20


def read(
    path: str, on_damage: Callable[[str], object], cpu: str | None = None
) -> Iterator[Sample]:
    """Yield the samples of a file, which may be a pipe.

    :param on_damage: function that is called with a line of text for each line that is no sample,
        such as the last one if the recorder was killed
    :param cpu: CPU on which perf counted ('westmere-dp', 'GenuineIntel-6-2C-2'), which determines
        the meaning of raw events
    :raises RecordingError: the file contains no sample
    """
    with open(path, encoding='utf-8', errors='replace') as file:
        whole: Iterator[str] = (
            line for line in iter(lambda: file.readline(_LINE_MAX_BYTES), '') if line.strip()
        )
        first = next(whole, '')
        lines = itertools.chain([first], whole)
        samples = (
            _from_json(path, lines, on_damage)
            if first.lstrip().startswith('{')
            else perf_stat.read(path, lines, on_damage, cpu)
        )
        any_sample = False
        for sample in samples:
            any_sample = True
            yield sample
    if not any_sample:
        raise RecordingError(
            '%s: contains no sample: nova-numa-rebalance record --out FILE and perf stat -x, -I '
            'write such files' % path
        )


def _from_json(
    path: str, lines: Iterable[str], on_damage: Callable[[str], object]
) -> Iterator[Sample]:
    for number, line in enumerate(lines, 1):
        try:
            yield from_data(json.loads(line))
        except (ValueError, RecursionError) as error:
            on_damage('%s: sample %d is left out: %.80s' % (path, number, error))
