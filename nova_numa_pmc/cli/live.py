# SPDX-License-Identifier: Apache-2.0
"""Show samples at intervals; helpers for the commands that show or record samples."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

from nova_numa_pmc.cli import output
from nova_numa_pmc.conf import host_options
from nova_numa_pmc.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from types import FrameType
    from typing import NoReturn

    from nova_numa_pmc.cli.render import tables
    from nova_numa_pmc.sample_records import Sample
    from nova_numa_pmc.sampling import Sampler


class Frame(Record):
    """The display of one interval.

    :param problems: what could not be measured
    :param to_data, to_lines, to_parts: return it as plain data, as lines of text without the
        problems, and as the tables and lines to draw on a terminal
    """

    problems: Collection[str]
    to_data: Callable[[], dict[str, Any]]
    to_lines: Callable[[], list[str]]
    to_parts: Callable[[], list[tables.Table | str]]


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


def open_sampler(root: str = '/') -> Sampler:
    """Return a sampler of this host."""
    from nova_numa_pmc import sampling
    from nova_numa_pmc.conf import counters as counters_conf

    path = host_options.path_under_root(root, host_options.PATH)
    return sampling.Sampler(counters_conf.read(path), root)


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


def print_new_problems(
    problems: Collection[str], printed: set[str], print_line: Callable[[str], None]
) -> None:
    """Print each problem that is not in ``printed``, and add it to that set."""
    for line in output.problem_lines(problem for problem in problems if problem not in printed):
        print_line(line)
    printed.update(problems)


def print_each(frames: Iterator[Frame], as_json: bool) -> None:
    """Print frames until there are no more, or until the operator ends the command.

    :param as_json: whether each is printed as JSON, on a line of its own
    """
    printed_problems: set[str] = set()
    with until_interrupted():
        for frame in frames:
            if as_json:
                print(json.dumps(frame.to_data()), flush=True)
            else:
                print_new_problems(
                    frame.problems, printed_problems, lambda line: print(line, file=sys.stderr)
                )
                print('\n'.join(frame.to_lines()) + '\n', flush=True)


def redraw(
    frames: Callable[[Callable[[float], None]], Iterator[Frame]],
    interval_s: float,
    on_key: Callable[[str], None] = lambda _key: None,
) -> None:
    """Redraw the terminal with each frame until the operator ends the command.

    The last frame is drawn again after each key, and stays when there are no more.

    :param frames: yields the frames, and waits for the given number of seconds [s] by calling its
        argument
    :param on_key: is called with each key other than q
    """
    from nova_numa_pmc.cli.render import screen  # rich takes long to import

    frame: Frame | None = None
    with until_interrupted(), screen.keys() as read_key, screen.open_screen(sys.stdout) as draw:

        def wait(duration_s: float) -> None:
            end_s = time.monotonic() + duration_s
            while key := read_key(max(0.0, end_s - time.monotonic())):
                if key == 'q':
                    raise KeyboardInterrupt
                on_key(key)
                if frame is not None:
                    draw(frame.to_parts())

        draw(['measuring for %g s …  (q ends)' % interval_s])
        for frame in frames(wait):
            draw(frame.to_parts())
        while True:
            wait(3600)
