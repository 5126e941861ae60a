# SPDX-License-Identifier: Apache-2.0
"""Log a persistent problem when it begins, and not in every tick."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from nova_numa_pmc import exceptions

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator

#: An intermittent problem is logged again after this time at the earliest [s].
REPEAT_S = 3600.0
_LOGGED_MAX = 1000


class ProblemLog:
    """Logs when a stage begins to fail or succeeds again, and other problems at most once an hour.

    :param clock: monotonic clock [s]
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log = log
        self._clock = clock
        self._failing: dict[str, str] = {}  # stage → type of its exception
        self._logged_s: dict[str, float] = {}  # text → when it was logged

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run the block and suppress its exceptions; log the first of a type, and the recovery."""
        try:
            yield
        except Exception as error:
            type_name = type(error).__name__
            if self._failing.get(name) != type_name:
                self._failing[name] = type_name
                self._log.warning(
                    '%s failed: %s',
                    name,
                    exceptions.describe(error),
                    exc_info=None if exceptions.is_expected(error) else error,
                )
        else:
            if self._failing.pop(name, None):
                self._log.info('%s succeeded again', name)

    @property
    def failing_count(self) -> int:
        """Return the number of stages that currently fail."""
        return len(self._failing)

    def forget(self, *names: str) -> None:
        """Drop stages that will not run again, or that are turned off."""
        for name in names:
            self._failing.pop(name, None)

    def log_problems(self, texts: Iterable[str]) -> None:
        """Log a warning for each problem that was not logged within :data:`REPEAT_S`."""
        now_s = self._clock()
        for text in texts:
            if text in self._logged_s and now_s - self._logged_s[text] < REPEAT_S:
                continue
            if len(self._logged_s) >= _LOGGED_MAX:
                self._logged_s.clear()
            self._logged_s[text] = now_s
            self._log.warning('%s', text)


@functools.lru_cache(maxsize=1000)
def log_once(log: Callable[..., None], message: str, problem: str) -> None:
    """Log a problem, unless it is one of the last thousand different ones.

    :param log: a method of a logger, such as ``LOG.error``
    :param message: a text with ``%s`` for the problem
    """
    log(message, problem)
