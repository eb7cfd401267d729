"""One rank's copies: passes the leader's orders to a WorkerSession, and collects the results.

The caller must hold the worker's lock.
"""

from __future__ import annotations

import itertools
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from blockyard.frames import RegisterFields
from blockyard.mover import Page, Pages
from blockyard.settings import Settings
from blockyard.trtllm.geometry import Pool
from blockyard.work import Load, Store, Work
from blockyard.worker import WorkerIdentity, WorkerSession

# Pauses before the tries of a failed load. A missing extent is mapped in milliseconds, or in a
# second if the worker must connect first.
RETRY_SECONDS = (0.01, 0.05, 0.25, 1.0, 2.0)


def pages_of(pool: Pool, share_offset: int) -> Pages:
    """The pool's regions as pages, in order within this rank's share."""
    pages = []
    offset = 0
    for group, base, stride, size in pool.regions:
        limit = base + (pool.blocks - 1) * stride + size
        pages.append(Page(base, stride, size, offset, group, limit))
        offset += size
    return Pages(pages, pool.blocks, pool.device, share_offset)


class _LoadJob:
    """A load job in flight. load: the leader's order. tries: failed tries.

    due: monotonic time of the next try, 0 during a try.
    """

    __slots__ = ("load", "request", "tries", "due")

    def __init__(self, load: Load, request: int) -> None:
        self.load = load
        self.request = request
        self.tries = 0
        self.due = 0.0


class Copies:
    """The copies of one rank.

    failed: the leader has reported a failed load of some rank. last_call: the last call of
    get_finished() that returns after a failed load, None before the ranks have agreed. orphaned:
    the leader is lost. reason: the reason of a failure, for people.
    """

    def __init__(
        self, settings: Settings, pool: Pool, rank: int, on_mapped: Callable[[], None]
    ) -> None:
        """on_mapped: called by another thread when mapped() may have new extents."""
        self.pool = pool
        self._on_mapped = on_mapped
        self.rank = rank
        self.reason = ""
        self.failed = False
        self.last_call: int | None = None
        self.counters: Counter[str] = Counter()
        self._settings = settings
        self._session: WorkerSession | None = None
        self._launched = 0
        self._fence: object | None = None
        self._waiting: list[tuple[int, list[Store]]] = []  # stores, with the step they need
        self._stores: set[int] = set()
        self._loads: dict[int, _LoadJob] = {}  # by the job number of the current try
        self._jobs_of: Counter[int] = Counter()  # request -> load jobs that have not ended
        self._loaded: set[int] = set()
        self._saved: set[int] = set()
        self._failed_requests: set[int] = set()
        self._ended: dict[int, tuple[int, int]] = {}
        self.orphaned = False
        # Job numbers of later tries. A session never gets a job number twice.
        self._numbers = itertools.count((secrets.randbits(31) << 32) + 1)

    def start(self, welcome: dict[str, Any]) -> None:
        """Connects to the agent. welcome: the leader's answer with worker id, rank and offset."""
        offset = welcome["offset"]
        pages = pages_of(self.pool, offset)
        identity = WorkerIdentity(welcome["worker_id"], welcome["dp_rank"], welcome["engine"])
        session = WorkerSession(
            self._settings, identity, on_mapped=self._on_mapped
        )
        session.start(RegisterFields(self.pool.blocks, self.pool.layout.share_bytes, offset), pages)
        self._session = session

    # The engine's thread.

    def launched(self, step: int) -> bool:
        """Records that the engine has launched all steps up to this one, on the current stream.

        Begins the stores that waited for these steps. False when none did.
        """
        self._launched = step
        self._fence = self._session.fence() if self._session is not None else None
        ready = [stores for need, stores in self._waiting if need <= step]
        if ready:
            self._waiting = [(need, stores) for need, stores in self._waiting if need > step]
        for stores in ready:
            self._begin(Work(stores=stores))
        return bool(ready)

    def loaded(self, requests: set[int]) -> set[int]:
        """The requests whose load has succeeded. Each is returned once."""
        found = self._loaded & requests
        self._loaded -= found
        return found

    def saved(self, requests: set[int]) -> set[int]:
        """The requests without a copy in flight on any rank. Each is returned once."""
        if self.orphaned and not self._stores:
            return set(requests)  # no leader orders another copy
        found = self._saved & requests
        self._saved -= found
        return found

    def lost_loads(self, requests: set[int]) -> bool:
        """Whether the leader is lost and one of the requests is not loaded."""
        return self.orphaned and not requests <= self._loaded

    # The channel's thread.

    def take(self, order: dict[str, Any]) -> None:
        """Begins the copies of an order, and records its other parts."""
        for item in order["loads"]:
            request = item["request"]
            load = Load(item["job"], str(request), item["slots"], item["blocks"])
            self._loads[load.job] = _LoadJob(load, request)
            self._jobs_of[request] += 1
        loads = [self._loads[item["job"]].load for item in order["loads"]]
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
        if self.pool.layout.replicated and self.rank:
            # All ranks have the same bytes, and rank 0 stores them.
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

    def poll(self) -> dict[int, tuple[int, int]]:
        """The jobs that have ended, for the leader: job -> (1, 0) for success, else (0, 1).

        Also repeats the failed loads that are due.
        """
        session = self._session
        if session is None:
            return {}
        session.finished_loads()  # discards the results by request: done() has them by job
        done = session.done()
        if done is not None:
            for job, (ok, failed) in done.jobs.items():
                self._end(job, ok > 0 and not failed)
        self._try_again()
        ended, self._ended = self._ended, {}
        return ended

    def mapped(self) -> dict[str, Any] | None:
        """A report of the mapped extents for the leader, which may be the last one again.

        None without a change of the extents or of their pins.
        """
        report = None if self._session is None else self._session.mapped()
        if report is None:
            return None
        return {"nonce": report.nonce, "session": report.session, "extents": report.extents}

    def _end(self, job: int, ok: bool) -> None:
        pending = self._loads.pop(job, None)
        if pending is None:
            self._stores.discard(job)
            self._ended[job] = (1, 0) if ok else (0, 1)
            return
        if not ok and pending.load.slots and pending.tries < len(RETRY_SECONDS):
            pending.due = time.monotonic() + RETRY_SECONDS[pending.tries]
            pending.tries += 1
            self.counters["retried_loads"] += 1
            self._loads[next(self._numbers)] = pending
            return
        self._ended[pending.load.job] = (1, 0) if ok else (0, 1)
        if not ok:
            self._failed_requests.add(pending.request)
            self.reason = f"request {pending.request}: a copy failed {pending.tries + 1} times"
        self._jobs_of[pending.request] -= 1
        if not self._jobs_of[pending.request]:
            del self._jobs_of[pending.request]
            if pending.request not in self._failed_requests:
                self._loaded.add(pending.request)

    def _try_again(self) -> None:
        now = time.monotonic()
        due = [(job, load) for job, load in self._loads.items() if 0 < load.due <= now]
        for job, pending in due:
            pending.due = 0.0
            self._begin(Work(loads=[pending.load._replace(job=job)]))

    def orphan(self, reason: str) -> None:
        """Records the loss of the leader. No load begins or is repeated from now on."""
        self.orphaned = True
        self.reason = reason
        self._waiting.clear()
        self._stores.clear()

    def active(self) -> bool:
        """Whether a copy is in flight, or a failed load is due again."""
        return bool(self._loads or self._stores or self._ended)

    def stats(self) -> dict[str, int]:
        """Counters of the session and of the repeated loads."""
        session = self._session.stats() if self._session is not None else {}
        return {**session, **self.counters}

    def close(self) -> None:
        """Ends the connection to the agent."""
        if self._session is not None:
            self._session.close()
