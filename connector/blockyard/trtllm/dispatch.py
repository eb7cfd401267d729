"""Orders to the workers and what becomes of them: the leader's side of the channel.

Used under the leader's lock.
"""

from __future__ import annotations

import itertools
import secrets
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

from blockyard.packed import pack_u32
from blockyard.trtllm.ledger import HeldBlocks
from blockyard.work import Done, Load, Store, Work


class Session(Protocol):
    """What is used of SchedulerSession."""

    def take_work(self) -> Work:
        """Loads and granted stores that workers are to copy."""

    def settle(self, done: Done) -> None:
        """How copies ended."""

    def busy(self) -> bool:
        """Whether grants or completions are due."""


class Dispatch:
    """Turns the session's work into orders, and the workers' answers into its completions.

    step is the number of the newest step of the engine. A store that is ordered now reads blocks
    that steps up to this one write, so a worker waits with it until it has launched that step.
    """

    def __init__(self, session: Session, held: HeldBlocks, workers: int) -> None:
        self.step = 0
        self.counters: Counter[str] = Counter()
        self._session = session
        self._held = held
        self._workers = workers
        self._answers: dict[int, list[int]] = {}  # job -> workers that succeeded, failed
        self._answered: dict[int, set[int]] = {}
        self._stores: set[int] = set()
        self._loads: dict[int, int] = {}  # job -> request
        self._loading: Counter[int] = Counter()  # request -> jobs
        self._awaited: set[int] = set()  # requests whose load is claimed but not yet ordered
        self._finishing: dict[int, set[int]] = {}  # request -> its blocks
        self._empty: list[int] = []
        self._failed: list[int] = []
        self._knowing: dict[int, int] = {}  # rank that knows of a failed load -> its last call
        self._last: list[int] = []  # the last call of all ranks, until it is ordered
        self._agreed = False
        self._unclaimed: list[Load] = []
        self._numbers = itertools.count((secrets.randbits(31) << 32) + 1)
        self._gone = False
        self.abandoned = False

    # Requests.

    def begin_load(self, request: int) -> None:
        """A load of the request will be among the next work."""
        self._awaited.add(request)

    def load_unclaimed(self, request: int, slots: bytes, blocks: Sequence[Sequence[int]]) -> None:
        """Loads slots that no session has pinned any more. The job is not the session's."""
        job = next(self._numbers)
        packed = b"".join(pack_u32(group) for group in blocks)
        self._unclaimed.append(Load(job, str(request), slots, packed))

    def nothing_to_load(self, request: int) -> None:
        """The engine waits for a load of which nothing is left."""
        self._empty.append(request)

    def fail_load(self, request: int) -> None:
        """What the engine was promised cannot be loaded."""
        self._awaited.discard(request)
        self._failed.append(request)
        self.counters["failed_promises"] += 1

    def knows(self, rank: int, call: int) -> None:
        """A rank has been told of a failed load, and lets no call of get_finished() but its first
        `call` ones return before agree() has come to a result."""
        self._knowing[rank] = call

    def agree(self, ranks: Collection[int]) -> None:
        """When all ranks know of a failed load, they get the last call that returns on any of
        them. It returns on all, and the next one raises on all: no rank is left in a collective
        operation that another one never begins."""
        if self._knowing and not self._agreed and self._knowing.keys() >= set(ranks):
            self._agreed = True
            self._last = [max(self._knowing.values())]

    def finish(self, request: int, blocks: set[int]) -> bool:
        """The request has ended. Whether a copy from or to its blocks is under way: then the
        workers are told as soon as there is none."""
        if self.abandoned or not self._copying(request, blocks):
            return False
        self._finishing[request] = blocks
        return True

    def _copying(self, request: int, blocks: set[int]) -> bool:
        return request in self._awaited or bool(self._loading[request]) or self._held.any(blocks)

    def blocks_are_gone(self) -> None:
        """Blocks were taken from a request. Nothing that any store reads now can be trusted:
        what has not ended yet counts as failed, and nothing new is offered before."""
        if len(self._held):
            self._gone = True
            self.counters["distrusted"] += 1

    def abandon(self) -> None:
        """A worker is lost, so that no copy can end on all of them. What is under way stays
        unsettled: its slots are out of use until the processes have ended. Blocks that stores
        read may go, as nothing of these is going to be committed."""
        self.abandoned = True

    @property
    def distrusts(self) -> bool:
        """Whether stores from before blocks_are_gone() are still to end."""
        return self._gone

    # The channel.

    def active(self) -> bool:
        """Whether grants, completions or reports are due."""
        if self.abandoned:
            return bool(self._finishing or self._failed)
        return bool(
            self._answers
            or self._awaited
            or self._unclaimed
            or self._finishing
            or self._empty
            or self._failed
            or self._gone
            or self._session.busy()
        )

    def next_order(self) -> dict[str, Any] | None:
        """The next message to all workers; None when there is nothing to say."""
        failed, self._failed = self._failed, []
        last, self._last = self._last, []
        if self.abandoned:
            saved = list(self._finishing)
            self._finishing.clear()
            told = saved or failed or last
            return self._order(saved=saved, failed=failed, last=last) if told else None
        work = self._session.take_work()
        # A load without slots is the session's word for one that cannot begin.
        for load in work.loads:
            if not load.slots:
                self._settle(load.job, 0, self._workers)
        loads = [self._load_order(load) for load in [*work.loads, *self._unclaimed] if load.slots]
        self._unclaimed = []
        stores = [self._store_order(store) for store in work.stores if self._accept(store)]
        if self._gone and not len(self._held):
            self._gone = False
        saved = [
            request
            for request, blocks in self._finishing.items()
            if not self._copying(request, blocks)
        ]
        for request in saved:
            del self._finishing[request]
        empty, self._empty = self._empty, []
        if not (loads or stores or saved or empty or failed or last):
            return None
        return self._order(
            loads=loads, stores=stores, saved=saved, empty=empty, failed=failed, last=last
        )

    def _order(self, **parts: list[Any]) -> dict[str, Any]:
        """An order with these parts; the others are empty."""
        nothing: dict[str, list[Any]] = dict.fromkeys(
            ("loads", "stores", "saved", "empty", "failed", "last"), []
        )
        return {"step": self.step, **nothing, **parts}

    def _load_order(self, load: Load) -> dict[str, Any]:
        request = int(load.rid)
        self._awaited.discard(request)
        self._loading[request] += 1
        self._loads[load.job] = request
        self._answers[load.job] = [0, 0]
        return {"job": load.job, "request": request, "slots": load.slots, "blocks": load.blocks}

    def _accept(self, store: Store) -> bool:
        """Takes a store on, or settles it as failed when what it would read is not trusted."""
        if self._gone:
            self._settle(store.job, 0, self._workers)
            return False
        self._stores.add(store.job)
        self._answers[store.job] = [0, 0]
        return True

    def _store_order(self, store: Store) -> dict[str, Any]:
        return {"job": store.job, "slots": store.slots, "blocks": store.blocks}

    def ended(self, rank: int, jobs: Iterable[tuple[int, int, int]]) -> None:
        """What one worker says of jobs; the session learns of a job when all have. A load that
        failed is told to all workers at once."""
        for job, ok, failed in jobs:
            if failed and job in self._loads:
                self._failed.append(self._loads[job])
            if self.abandoned:
                continue
            answers = self._answers.get(job)
            answered = self._answered.setdefault(job, set())
            if answers is None or rank in answered:
                self.counters["unknown_jobs"] += 1
                if answers is None:
                    del self._answered[job]
                continue
            answered.add(rank)
            answers[0] += ok
            answers[1] += failed
            if len(answered) < self._workers:
                continue
            del self._answers[job], self._answered[job]
            self._end(job, *answers)

    def _end(self, job: int, ok: int, failed: int) -> None:
        request = self._loads.pop(job, None)
        if request is not None:
            self._loading[request] -= 1
            if not self._loading[request]:
                del self._loading[request]
        if job in self._stores:
            self._stores.discard(job)
            if self._gone:
                ok, failed = 0, ok + failed
        self._settle(job, ok, failed)

    def _settle(self, job: int, ok: int, failed: int) -> None:
        done = Done()
        done.jobs[job] = [ok, failed]
        self._session.settle(done)
