"""The leader's orders to the workers, and the workers' answers.

The caller must hold the leader's lock.
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
    """The methods of SchedulerSession that Dispatch uses."""

    def take_work(self) -> Work:
        """The loads and granted stores for the workers."""

    def settle(self, done: Done) -> None:
        """Takes the results of copies."""

    def busy(self) -> bool:
        """Whether grants or results are due."""


class Dispatch:
    """Makes orders from the session's work, and settles the session's jobs from answers.

    step: number of the engine's newest step. A store reads blocks that steps up to this one write.
    So a worker begins the store only after it has launched that step.
    """

    def __init__(self, session: Session, held: HeldBlocks, workers: int) -> None:
        self.step = 0
        self.counters: Counter[str] = Counter()
        self._session = session
        self._held = held
        self._workers = workers
        self._answers: dict[int, list[int]] = {}  # job -> succeeded and failed workers
        self._answered: dict[int, set[int]] = {}
        self._stores: set[int] = set()
        self._loads: dict[int, int] = {}  # job -> request
        self._loading: Counter[int] = Counter()  # request -> jobs
        self._awaited: set[int] = set()  # requests whose load is claimed but not yet ordered
        self._finishing: dict[int, set[int]] = {}  # request -> its blocks
        self._empty: list[int] = []
        self._failed: list[int] = []
        self._knowing: dict[int, int] = {}  # rank told of a failed load -> its last call
        self._last: list[int] = []  # the last call of all ranks, until the next order
        self._agreed = False
        self._unclaimed: list[Load] = []
        self._numbers = itertools.count((secrets.randbits(31) << 32) + 1)
        self._gone = False
        self.abandoned = False

    # Requests.

    def begin_load(self, request: int) -> None:
        """Announces that the session's next work has a load of the request."""
        self._awaited.add(request)

    def load_unclaimed(self, request: int, slots: bytes, blocks: Sequence[Sequence[int]]) -> None:
        """Loads slots whose session has ended. The session does not know the job."""
        job = next(self._numbers)
        packed = b"".join(pack_u32(group) for group in blocks)
        self._unclaimed.append(Load(job, str(request), slots, packed))

    def nothing_to_load(self, request: int) -> None:
        """Ends a load without any block left, for which the engine waits."""
        self._empty.append(request)

    def fail_load(self, request: int) -> None:
        """Fails a load that hit() has promised to the engine."""
        self._awaited.discard(request)
        self._failed.append(request)
        self.counters["failed_promises"] += 1

    def knows(self, rank: int, call: int) -> None:
        """Records that a rank knows of a failed load.

        Only the rank's first `call` calls of get_finished() return before agree() has a result.
        """
        self._knowing[rank] = call

    def agree(self, ranks: Collection[int]) -> None:
        """Orders one last call for all ranks, once all ranks know of a failed load.

        The last call is the highest one that returns on any rank. It returns on all ranks, and the
        next call raises on all ranks. So no rank waits in a collective operation that another rank
        never begins.
        """
        if self._knowing and not self._agreed and self._knowing.keys() >= set(ranks):
            self._agreed = True
            self._last = [max(self._knowing.values())]

    def finish(self, request: int, blocks: set[int]) -> bool:
        """Ends a request. True while a copy uses its blocks; the last copy notifies the workers."""
        if self.abandoned or not self._copying(request, blocks):
            return False
        self._finishing[request] = blocks
        return True

    def _copying(self, request: int, blocks: set[int]) -> bool:
        return request in self._awaited or bool(self._loading[request]) or self._held.any(blocks)

    def blocks_are_gone(self) -> None:
        """Fails all stores in flight, because the engine has taken blocks from a request.

        No store is offered until they have ended.
        """
        if len(self._held):
            self._gone = True
            self.counters["distrusted"] += 1

    def abandon(self) -> None:
        """Ends all work after the loss of a worker, because no copy can end on all workers.

        Copies in flight stay unsettled: their slots stay reserved until the processes have ended.
        The blocks of stores may be reused, because no store is committed.
        """
        self.abandoned = True

    @property
    def distrusts(self) -> bool:
        """Whether stores from before blocks_are_gone() are in flight."""
        return self._gone

    # The channel.

    def active(self) -> bool:
        """Whether grants, results or reports are due."""
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
        """The next order to all workers, or None."""
        failed, self._failed = self._failed, []
        last, self._last = self._last, []
        if self.abandoned:
            saved = list(self._finishing)
            self._finishing.clear()
            told = saved or failed or last
            return self._order(saved=saved, failed=failed, last=last) if told else None
        work = self._session.take_work()
        # A load without slots cannot begin; see work.Load.
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
        """An order with these parts. The other parts are empty."""
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
        """Accepts a store, or settles the store as failed after blocks_are_gone()."""
        if self._gone:
            self._settle(store.job, 0, self._workers)
            return False
        self._stores.add(store.job)
        self._answers[store.job] = [0, 0]
        return True

    def _store_order(self, store: Store) -> dict[str, Any]:
        return {"job": store.job, "slots": store.slots, "blocks": store.blocks}

    def ended(self, rank: int, jobs: Iterable[tuple[int, int, int]]) -> None:
        """Takes one worker's reports of jobs. A job is settled when all workers have reported.

        All workers are told of a failed load at once.
        """
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
