"""The records between the scheduler and the workers, which the engine's own channels carry.

The records have only ints, strings and packed bytes, because the engine pickles them in every step.
"""

from __future__ import annotations

from typing import NamedTuple

from .groups import ALL_GROUPS


class Load(NamedTuple):
    """Slots to copy into device blocks, for one request.

    slots: packed slots. blocks: packed u32 device block ids. group: the KV group of the slots and
    the blocks. With ALL_GROUPS each KV group has one id for each slot, group after group. One Work
    has all jobs of a request's load. Workers report a load without slots as failed.
    """

    job: int
    rid: str
    slots: bytes
    blocks: bytes
    group: int = ALL_GROUPS


class Store(NamedTuple):
    """Device blocks to copy into granted slots. slots, blocks and group are as in Load."""

    job: int
    slots: bytes
    blocks: bytes
    group: int = ALL_GROUPS


class Work:
    """The copies of one step. False without copies."""

    __slots__ = ("loads", "stores")

    def __init__(self, loads: list[Load] | None = None, stores: list[Store] | None = None) -> None:
        self.loads: list[Load] = [] if loads is None else loads
        self.stores: list[Store] = [] if stores is None else stores

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores)

    def __getstate__(self) -> tuple[list[tuple], list[tuple]]:
        # Plain tuples: the class names of the records would be most of the bytes.
        return [tuple(load) for load in self.loads], [tuple(store) for store in self.stores]

    def __setstate__(self, state: tuple[list[tuple], list[tuple]]) -> None:
        self.loads = [Load._make(load) for load in state[0]]
        self.stores = [Store._make(store) for store in state[1]]

    def __repr__(self) -> str:
        return f"Work(loads={self.loads!r}, stores={self.stores!r})"


class Mapped(NamedTuple):
    """The extents of an agent's session that one worker has mapped.

    worker: a number unique among the workers of an engine. nonce and session: from WELCOME.
    extents: packed u32 pairs, the first extent and the length of each run. pinned: the worker has
    pinned all of them, or its device needs no pinned memory.
    """

    worker: int
    nonce: int
    session: int
    extents: bytes
    pinned: bool = True


#: The Work of a step without copies. It is shared and must not change.
EMPTY_WORK = Work()


class Done:
    """Reports of ended jobs: job -> [workers that succeeded, workers that failed].

    micros: microseconds of copying on the slowest worker, of loads that succeeded.
    """

    __slots__ = ("jobs", "micros")

    def __init__(self, jobs: dict[int, list[int]] | None = None) -> None:
        self.jobs: dict[int, list[int]] = {} if jobs is None else jobs
        self.micros: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self.jobs)

    def add(self, job: int, ok: bool, micros: int = 0) -> None:
        """Adds one worker's report of a job."""
        self.jobs.setdefault(job, [0, 0])[0 if ok else 1] += 1
        if micros:
            self.micros[job] = max(micros, self.micros.get(job, 0))

    def merge(self, other: Done) -> None:
        """Adds the reports in other. other does not change."""
        for job, (ok, failed) in other.jobs.items():
            mine = self.jobs.setdefault(job, [0, 0])
            mine[0] += ok
            mine[1] += failed
        for job, micros in other.micros.items():
            self.micros[job] = max(micros, self.micros.get(job, 0))

    def __repr__(self) -> str:
        return f"Done({self.jobs!r})"
