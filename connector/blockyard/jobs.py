"""Jobs: copies that workers make, from the moment that one may begin until all have reported."""

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

    slots are packed: pinned ones of a load, granted ones of a store. held are the device blocks
    on which a store holds references. connection is the one on which the slots were given, None
    for a load that could not begin. taken: workers may know of it, so that a copy may be in flight.
    discard: what a store copies is not wanted any more.
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

    @property
    def blocks(self) -> int:
        """How many blocks it copies."""
        return len(self.slots) // 16


class Jobs:
    """All jobs in flight, by number. Numbers are unique in the life of the process."""

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
        """Begins a job. It counts on its connection until it ends."""
        number = next(self._numbers)
        job = Job(number, kind, request, slots, connection, held, generation)
        self.flying[number] = job
        if connection is not None:
            connection.flying += 1
        return job

    def end(self, job: Job) -> None:
        """Forgets a job: no copy of it is in flight and none will be."""
        del self.flying[job.number]
        if job.connection is not None:
            job.connection.flying -= 1

    def tally(self, number: int, ok: int, failed: int, workers: int) -> Job | None:
        """Counts reports of a job; the job, ended, when they are those of all workers.

        None for a job that is not known: it has ended, or is another engine's.
        """
        job = self.flying.get(number)
        if job is None:
            return None
        job.ok += ok
        job.failed += failed
        if job.ok + job.failed < workers:
            return None
        self.end(job)
        return job
