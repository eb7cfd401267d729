"""Whether loads can be trusted: withholds hits while copies fail on some worker."""

from __future__ import annotations

import logging
import time

_log = logging.getLogger("blockyard.lookups")

# How long hits are withheld after failed copies, at first and at most; see judge().
_FIRST_DOUBT_SECONDS = 1.0
_LAST_DOUBT_SECONDS = 64.0

_now = time.monotonic


class Trust:
    """The results of the last copies. Only the engine's thread may use it."""

    def __init__(self) -> None:
        self._failures = 0  # copies that failed in a row
        self._doubt = 0.0  # seconds for which hits are withheld; 0 when loads are trusted
        self._doubt_until = 0.0

    def judge(self, good: bool, sure: bool = False) -> None:
        """Records whether a copy succeeded on all workers. Withholds hits while loads fail.

        A worker outside the session fails every load, and a failed load may fail its request. One
        failed copy may only mean that its slots were evicted. After two failures in a row, or one
        with sure=True, hits are withheld until a copy has succeeded on all workers. A store tests
        this without risk. Without stores, a single load tests it, at growing intervals.
        """
        if good:
            self._failures = 0
            self._doubt = 0.0
            return
        self._failures += 1
        if not self._doubt and (sure or self._failures > 1):
            self._doubt = _FIRST_DOUBT_SECONDS
            self._doubt_until = _now() + self._doubt
            _log.warning("not all workers can load: no hits until a copy succeeds on all workers")

    def try_load(self) -> None:
        """Records the begin of a load. While hits are withheld, other loads wait for its result."""
        if self._doubt and _now() >= self._doubt_until:
            self._doubt = min(2 * self._doubt, _LAST_DOUBT_SECONDS)
            self._doubt_until = _now() + self._doubt

    def doubts(self) -> bool:
        """Whether hits are withheld now."""
        return self._doubt > 0.0 and _now() < self._doubt_until
