# SPDX-License-Identifier: Apache-2.0
"""Helpers for the verbs that show or record samples."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import TYPE_CHECKING

from nova_numa_pmc.cli.render import tables

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType
    from typing import NoReturn

    from nova_numa_pmc.sample_records import Sample
    from nova_numa_pmc.sampling import Sampler


@contextlib.contextmanager
def until_interrupted() -> Iterator[None]:
    """Leave the block without a traceback on SIGINT or SIGTERM; ``finally`` clauses are run."""

    def interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def open_sampler() -> Sampler:
    """Return a sampler of this host; print a problem with its calibration to stderr."""
    from nova_numa_pmc import sampling
    from nova_numa_pmc.conf import counters as counters_conf  # not needed for a replay
    from nova_numa_pmc.state import calibration

    options, problem = calibration.with_host_calibration(counters_conf.read())
    if problem:
        print('problem: %s' % problem, file=sys.stderr)
    return sampling.Sampler(options)


def select_guests(sample: Sample, names: Collection[str] | None) -> Sample:
    """Return a sample with only the guests in ``names``.

    :param names: names or uuids; None or empty: all guests
    """
    if not names:
        return sample
    return sample._replace(
        guests=tuple(
            guest for guest in sample.guests if guest.name in names or guest.uuid in names
        )
    )


def print_once(
    problems: Collection[str], printed: set[str], print_line: Callable[[str], None]
) -> None:
    """Print each problem that is not in ``printed``, and add it to that set."""
    for problem in problems:
        if problem not in printed:
            printed.add(problem)
            print_line('problem: ' + tables.printable(problem))
