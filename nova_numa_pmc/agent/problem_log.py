# SPDX-License-Identifier: Apache-2.0
"""Log a persistent problem when it begins, not in every tick."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from nova_numa_pmc.exceptions import NumaPmcError

if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Iterable, Iterator

#: A problem that comes and goes is logged again after this time at the earliest [s].
REPEAT_S = 3600.0
_KEPT_MAX = 1000


class ProblemLog:
    """Logs when a stage begins to fail and when it works again; other problems hourly at most.

    :param clock: returns seconds that never go back
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        self._log, self._clock = log, clock
        self._failing: dict[str, str] = {}  # stage → kind of its problem
        self._logged_s: dict[str, float] = {}  # text → when

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Run the block; suppress its exceptions, logging the first of a kind and the recovery."""
        try:
            yield
        except Exception as error:
            known = isinstance(error, (NumaPmcError, OSError))
            kind = type(error).__name__
            if self._failing.get(name) != kind:
                self._failing[name] = kind
                self._log.warning(
                    '%s fails: %s',
                    name,
                    error if known else '%s: %s' % (kind, error),
                    exc_info=None if known else error,
                )
        else:
            if self._failing.pop(name, None):
                self._log.info('%s works again', name)

    @property
    def failing(self) -> int:
        """Return the number of stages that are failing."""
        return len(self._failing)

    def forget(self, name: str) -> None:
        """Drop a stage that will not come again."""
        self._failing.pop(name, None)

    def problems(self, texts: Iterable[str]) -> None:
        """Warn of each problem, unless it was logged within :data:`REPEAT_S`."""
        now_s = self._clock()
        for text in texts:
            if text in self._logged_s and now_s - self._logged_s[text] < REPEAT_S:
                continue
            if len(self._logged_s) >= _KEPT_MAX:
                self._logged_s.clear()
            self._logged_s[text] = now_s
            self._log.warning('%s', text)
