"""The loads of requests in a worker: a request's load ends with the last of its jobs.

The engine's thread begins loads and takes the results. The session's thread knows the jobs.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Set
from typing import Final

from .work import Load

NO_LOADS: Final[tuple[Set[str], Set[str]]] = (frozenset(), frozenset())


class _Request:
    """A request with unfinished loads."""

    __slots__ = ("jobs", "failed")

    def __init__(self) -> None:
        self.jobs: set[int] = set()
        self.failed = False


class EndedLoads:
    """Collects the results of jobs, and reports each request once."""

    def __init__(self) -> None:
        self._reports: deque[tuple[str, bool]] = deque()
        self._reported = threading.Event()  # set when _reports gets an item
        self._begun: set[str] = set()  # requests whose result the engine has not taken
        # Only the session's thread uses these.
        self._waiting: dict[int, str] = {}  # request of each unfinished job
        self._requests: dict[str, _Request] = {}

    # Methods for the engine's thread.

    def begin(self, loads: list[Load]) -> None:
        """Records the requests of loads that the session's thread is about to get."""
        self._begun.update([load.rid for load in loads])

    def expects(self, rid: str) -> bool:
        """Whether take() is still to return a result of a request's load."""
        return rid in self._begun

    def wait(self, seconds: float) -> None:
        """Waits until take() has a result, for `seconds` at most. Without a load: not at all."""
        if self._begun and not self._reports:
            self._reported.clear()
            if not self._reports:
                self._reported.wait(seconds)

    def take(self) -> tuple[Set[str], Set[str]]:
        """Requests whose loads have ended since the last call, and the failed ones among them."""
        if not self._reports:
            return NO_LOADS
        finished: set[str] = set()
        failed: set[str] = set()
        while self._reports:
            rid, ok = self._reports.popleft()
            finished.add(rid)
            if not ok:
                failed.add(rid)
        self._begun -= finished
        return finished, failed

    # Methods for the session's thread.

    def expect(self, load: Load) -> None:
        """Adds an unfinished job to its request."""
        self._requests.setdefault(load.rid, _Request()).jobs.add(load.job)
        self._waiting[load.job] = load.rid

    def expect_ended(self, load: Load, ok: bool) -> None:
        """Adds a job that has ended already to its request."""
        self._requests.setdefault(load.rid, _Request()).failed |= not ok

    def end(self, number: int, ok: bool) -> None:
        """Records the end of any job. Reports the request whose last job it was."""
        rid = self._waiting.pop(number, None)
        if rid is not None:
            request = self._requests[rid]
            request.jobs.discard(number)
            request.failed |= not ok
            self.report_if_ended(rid)

    def report_if_ended(self, rid: str) -> None:
        """Reports a request without unfinished jobs. All its jobs must have been added."""
        request = self._requests.get(rid)
        if request is not None and not request.jobs:
            del self._requests[rid]
            self._reports.append((rid, not request.failed))
            self._reported.set()
