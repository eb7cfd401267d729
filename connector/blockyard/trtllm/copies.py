"""One rank's copies: orders of the leader, handed to the WorkerSession, and how they ended.

Used under the worker's lock.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from blockyard.frames import RegisterFields
from blockyard.mover import CopyEngine, Page, Pages, mover_for
from blockyard.settings import Settings
from blockyard.trtllm.geometry import Pool
from blockyard.work import Load, Store, Work
from blockyard.worker import WorkerIdentity, WorkerSession

# Pauses before a load that failed is tried again. What heals, such as an extent that is not
# mapped yet, does so in milliseconds, or in a second when the worker has to connect first.
RETRY_SECONDS = (0.01, 0.05, 0.25, 1.0, 2.0)


def pages_of(pool: Pool, share_offset: int) -> Pages:
    """The pool as the copies see it: its regions one after the other in this rank's share."""
    pages = []
    offset = 0
    for group, base, stride, size in pool.regions:
        limit = base + (pool.blocks - 1) * stride + size
        pages.append(Page(base, stride, size, offset, group, limit))
        offset += size
    return Pages(pages, pool.blocks, pool.device, share_offset)


class _Try:
    """A load job on its way: as the leader ordered it, and how often it was tried."""

    __slots__ = ("load", "request", "tries", "due")

    def __init__(self, load: Load, request: int) -> None:
        self.load = load
        self.request = request
        self.tries = 0
        self.due = 0.0  # when it is to be tried again, 0 while it is being tried


class Copies:
    """The copies of one rank.

    failed: the leader has told that a load of some rank failed. last_call: the last call of
    get_finished() that returns then, None before the ranks have agreed on it. orphaned: there is
    no leader any more. reason: for people.
    """

    def __init__(
        self, settings: Settings, pool: Pool, rank: int, on_mapped: Callable[[], None]
    ) -> None:
        """on_mapped: called by another thread when mapped() may have something to say."""
        self.pool = pool
        self._on_mapped = on_mapped
        self.rank = rank
        self.reason = ""
        self.failed = False
        self.last_call: int | None = None
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._session: WorkerSession | None = None
        self._mover: CopyEngine | None = None
        self._launched = 0
        self._fence: object | None = None
        self._waiting: list[tuple[int, list[Store]]] = []  # stores, with the step they need
        self._stores: set[int] = set()
        self._tries: dict[int, _Try] = {}  # by the job number of the try
        self._jobs_of: Counter[int] = Counter()  # request -> load jobs that have not ended
        self._loaded: set[int] = set()
        self._saved: set[int] = set()
        self._broken: set[int] = set()
        self._ended: dict[int, tuple[int, int]] = {}
        self.orphaned = False
        # Job numbers of later tries: the leader's are never used twice.
        self._numbers = itertools.count((secrets.randbits(31) << 32) + 1)

    def start(self, welcome: dict[str, Any]) -> None:
        """Connects to the agent, in the place that the leader's welcome gives."""
        offset = welcome["offset"]
        pages = pages_of(self.pool, offset)
        mover = mover_for(pages)
        identity = WorkerIdentity(welcome["worker_id"], welcome["dp_rank"], welcome["engine"])
        session = WorkerSession(
            self._settings, identity, lambda _: mover, on_mapped=self._on_mapped
        )
        session.start(RegisterFields(self.pool.blocks, self.pool.form.share_bytes, offset), pages)
        self._mover, self._session = mover, session

    # The engine's thread.

    def launched(self, step: int) -> bool:
        """The engine has launched everything up to this step, on the current stream. Whether
        stores were begun that had waited for that."""
        self._launched = step
        self._fence = self._mover.fence() if self._mover is not None else None
        ready = [stores for need, stores in self._waiting if need <= step]
        if ready:
            self._waiting = [(need, stores) for need, stores in self._waiting if need > step]
        for stores in ready:
            self._begin(Work(stores=stores))
        return bool(ready)

    def loaded(self, requests: set[int]) -> set[int]:
        """Those of the requests whose load has ended well. Each is told once."""
        found = self._loaded & requests
        self._loaded -= found
        return found

    def saved(self, requests: set[int]) -> set[int]:
        """Those of the requests of which no copy is under way on any rank. Told once."""
        if self.orphaned and not self._stores:
            return set(requests)  # nobody will order another copy
        found = self._saved & requests
        self._saved -= found
        return found

    def given_up(self, requests: set[int]) -> bool:
        """Whether one of the requests cannot be loaded any more, because there is no leader."""
        return self.orphaned and not requests <= self._loaded

    # The channel's thread.

    def take(self, order: dict[str, Any]) -> None:
        """Begins what the leader orders, and notes what it says."""
        for item in order["loads"]:
            request = item["request"]
            load = Load(item["job"], str(request), item["slots"], item["blocks"])
            self._tries[load.job] = _Try(load, request)
            self._jobs_of[request] += 1
        loads = [self._tries[item["job"]].load for item in order["loads"]]
        if loads:
            self._begin(Work(loads=loads))
        stores = [Store(s["job"], s["slots"], s["blocks"]) for s in order["stores"]]
        if stores:
            self._take_stores(stores, order["step"])
        self._loaded.update(order["empty"])
        self._saved.update(order["saved"])
        if order["failed"]:
            self.failed = True
            requests = sorted(order["failed"])
            self.reason = self.reason or f"another rank could not load requests {requests}"
        for call in order["last"]:
            self.last_call = call

    def _take_stores(self, stores: list[Store], need: int) -> None:
        if self.pool.form.replicated and self.rank:
            # Rank 0 stores the bytes that all ranks have.
            self._ended.update((store.job, (1, 0)) for store in stores)
            return
        self._stores.update(store.job for store in stores)
        if need <= self._launched:
            self._begin(Work(stores=stores))
        else:
            self._waiting.append((need, stores))

    def _begin(self, work: Work) -> None:
        assert self._session is not None
        self._session.begin(work, self._fence)

    def turn(self) -> dict[int, tuple[int, int]]:
        """Looks at what has ended: job -> (1, 0) or (0, 1), for the leader. Tries again what is
        due."""
        session = self._session
        if session is None:
            return {}
        session.finished_loads()  # by request; here they are counted by job
        done = session.done()
        if done is not None:
            for job, (ok, failed) in done.jobs.items():
                self._end(job, ok > 0 and not failed)
        self._try_again()
        ended, self._ended = self._ended, {}
        return ended

    def mapped(self) -> dict[str, Any] | None:
        """What this rank can read now, for the leader; None when it was told that already."""
        report = None if self._session is None else self._session.mapped()
        if report is None:
            return None
        return {"nonce": report.nonce, "session": report.session, "extents": report.extents}

    def _end(self, job: int, ok: bool) -> None:
        attempt = self._tries.pop(job, None)
        if attempt is None:
            self._stores.discard(job)
            self._ended[job] = (1, 0) if ok else (0, 1)
            return
        if not ok and attempt.load.slots and attempt.tries < len(RETRY_SECONDS):
            attempt.due = time.monotonic() + RETRY_SECONDS[attempt.tries]
            attempt.tries += 1
            self.counters["retried_loads"] += 1
            self._tries[next(self._numbers)] = attempt
            return
        self._ended[attempt.load.job] = (1, 0) if ok else (0, 1)
        if not ok:
            self._broken.add(attempt.request)
            self.reason = f"request {attempt.request}: a copy failed {attempt.tries + 1} times"
        self._jobs_of[attempt.request] -= 1
        if not self._jobs_of[attempt.request]:
            del self._jobs_of[attempt.request]
            if attempt.request not in self._broken:
                self._loaded.add(attempt.request)

    def _try_again(self) -> None:
        now = time.monotonic()
        due = [(job, t) for job, t in self._tries.items() if t.due and t.due <= now]
        for job, attempt in due:
            attempt.due = 0.0
            self._begin(Work(loads=[attempt.load._replace(job=job)]))

    def orphan(self, reason: str) -> None:
        """There is no leader any more: nothing that is not loaded by now will be."""
        self.orphaned = True
        self.reason = reason
        self._waiting.clear()
        self._stores.clear()

    def active(self) -> bool:
        """Whether a copy is under way or to be tried again."""
        return bool(self._tries or self._stores or self._ended)

    def stats(self) -> dict[str, int]:
        """Counters."""
        session = self._session.stats() if self._session is not None else {}
        return {**session, **self.counters}

    def close(self) -> None:
        """Ends the connection to the agent."""
        if self._session is not None:
            self._session.close()
