"""The workers' reports of ended jobs. A hook settles the loads of a report, and few of its stores.

Many stores may end in one step, and to settle one takes as long as the rest of a hook. The others
wait for the next hooks. Their blocks stay referenced until then.
"""

from __future__ import annotations

from collections import deque

from .jobs import LOAD, Jobs
from .loads import Loads
from .orphans import OrphanedSlots
from .stores import Stores
from .trust import Trust
from .work import Done

_BEHIND = 4


def turn(waiting: int) -> int:
    """How many of the waiting answers or reports a hook takes: one, and more of a long queue."""
    return 1 + waiting // _BEHIND


class Settling:
    """The reports of all workers. Only the engine's thread may use it.

    workers: workers that report each job. reports: of stores, not settled yet: job, workers that
    succeeded, and workers that failed. A job has one report of each worker at most, so the jobs in
    flight bound the queue.
    """

    def __init__(
        self, jobs: Jobs, loads: Loads, stores: Stores, orphans: OrphanedSlots, trust: Trust
    ) -> None:
        self.workers = 1
        self.reports: deque[tuple[int, int, int]] = deque()
        self._jobs = jobs
        self._loads = loads
        self._stores = stores
        self._orphans = orphans
        self._trust = trust

    def take(self, done: Done) -> None:
        """Takes the reports of a step. Loads do not wait: the engine runs their requests next."""
        flying = self._jobs.flying
        for number, (ok, failed) in done.jobs.items():
            job = flying.get(number)
            if job is None:
                continue  # it has ended, or another engine owns it
            if job.kind == LOAD:
                self._tally(number, ok, failed, done.micros.get(number, 0))
            else:
                self.reports.append((number, ok, failed))
        self.settle_some()

    def settle_some(self) -> None:
        """Settles the stores of one hook."""
        if self.reports:
            self._settle(turn(len(self.reports)))

    def settle_all(self) -> None:
        """Settles all reported stores."""
        self._settle(len(self.reports))

    def _settle(self, reports: int) -> None:
        for _ in range(reports):
            self._tally(*self.reports.popleft())

    def _tally(self, number: int, ok: int, failed: int, micros: int = 0) -> None:
        """Counts reports of a job, and settles a job that all workers have ended."""
        job = self._jobs.tally(number, ok, failed, self.workers, micros)
        if job is None:
            return
        connection = job.connection
        if job.kind == LOAD:
            self._loads.ended(job)
            if connection is not None and connection.ended:
                self._orphans.loaded(job)
        else:
            assert connection is not None
            self._trust.judge(not job.failed)
            self._stores.ended(job)
