"""Jobs: copies by all workers, from their start until every worker has reported."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .connection import Connection
    from .request import Request

LOAD = "load"
STORE = "store"


class Job:
    """One copy by all workers, between slots and device blocks.

    slots: packed; a load's slots are pinned, a store's slots are granted. held: device blocks that
    a store references. connection: gave the slots; None for a load that could not begin. taken:
    workers may know the job, so a copy may be in flight. discard: the store must not be committed.
    micros: microseconds of copying on the slowest worker so far, of a load.
    """

    __slots__ = (
        "number",
        "kind",
        "request",
        "generation",
        "slots",
        "held",
        "connection",
        "taken",
        "discard",
        "ok",
        "failed",
        "micros",
    )

    def __init__(
        self,
        number: int,
        kind: str,
        request: Request | None,
        slots: bytes,
        connection: Connection | None,
        held: Sequence[int] = (),
        generation: int = 0,
    ) -> None:
        self.number = number
        self.kind = kind
        self.request = request
        self.generation = generation
        self.slots = slots
        self.held = held
        self.connection = connection
        self.taken = False
        self.discard = False
        self.ok = 0
        self.failed = 0
        self.micros = 0

    @property
    def blocks(self) -> int:
        """How many blocks the job copies."""
        return len(self.slots) // 16


class Jobs:
    """All jobs in flight, by number. A process never uses a number twice."""

    def __init__(self) -> None:
        self.flying: dict[int, Job] = {}
        self._numbers = itertools.count((secrets.randbits(32) << 32) + 1)

    def add(
        self,
        kind: str,
        request: Request | None,
        slots: bytes,
        connection: Connection | None,
        held: Sequence[int] = (),
        generation: int = 0,
    ) -> Job:
        """Begins a job. Its connection counts it until end()."""
        number = next(self._numbers)
        job = Job(number, kind, request, slots, connection, held, generation)
        self.flying[number] = job
        if connection is not None:
            connection.flying += 1
        return job

    def end(self, job: Job) -> None:
        """Removes a job. No copy of the job may be in flight or begin."""
        del self.flying[job.number]
        if job.connection is not None:
            job.connection.flying -= 1

    def tally(
        self, number: int, ok: int, failed: int, workers: int, micros: int = 0
    ) -> Job | None:
        """Counts reports of a job. Returns the job, removed, when all workers have reported.

        None while reports are missing, and for an unknown job: it has ended, or another engine
        owns it.
        """
        job = self.flying.get(number)
        if job is None:
            return None
        job.ok += ok
        job.failed += failed
        job.micros = max(job.micros, micros)
        if job.ok + job.failed < workers:
            return None
        self.end(job)
        return job
