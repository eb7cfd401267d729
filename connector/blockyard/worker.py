"""The worker's side: a thread that copies between the agent's slots and this worker's KV.

Jobs come on two ways, from the agent (LOAD), which is faster, and from the scheduler through the
engine (Work), which also names the request; whichever is first begins the copy, and the other
finds the job known. Results go back through the engine alone.

A session is found by worker_id and rank, so an engine with another's worker_id gets that one's
LOADs, whose blocks are not its own: a LOAD counts only if its job's number begins as those in Work.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from . import lockheld
from .copying import DEVICE_POLL_SECONDS, Copier, CopyJob
from .extents import Extents
from .frames import HelloFields, RegisterFields
from .mover import CopyEngine, Pages, mover_for
from .packed import SLOT_BYTES
from .pinner import Pinner
from .readable import pack_runs
from .settings import Settings
from .work import Done, Load, Mapped, Work
from .workerlink import WorkerLink

_log = logging.getLogger(__name__)

# Ended jobs that are remembered, so that the later of LOAD and Work finds its job known. The
# agent queues 256 LOADs for a worker and the socket some more; that many can come late.
_REMEMBERED = 4096
_POPULATE_BYTES = 4 << 20
_CLOSE_SECONDS = 10.0  # that close() waits for copies,
_UNPIN_SECONDS = 10.0  # and then for the memory to be unpinned
# How long the interpreter lets a thread compute while others wait: its default, 5 ms, is what the
# copying thread would wait for when a load begins beside an engine that is busy in Python.
_SWITCH_SECONDS = 0.3e-3
_ERROR_SECONDS = 0.05  # so that an error that comes again and again leaves the engine its time

_COUNTERS = (
    "loads",
    "loaded_blocks",
    "failed_loads",
    "stores",
    "stored_blocks",
    "dropped_stores",
    "copied_bytes",
    "copy_us",
    "errors",
)


@dataclass(frozen=True)
class WorkerIdentity:
    """Which scheduler this worker belongs to, and the engine's name and version for people."""

    worker_id: int
    dp_rank: int
    engine: str


class _Request:
    """A request that waits for its loads."""

    __slots__ = ("jobs", "failed")

    def __init__(self) -> None:
        self.jobs: set[int] = set()
        self.failed = False


class WorkerSession:
    """The worker side of one engine process.

    The engine's thread calls the methods, and none of them waits for the agent or for a copy but
    wait() and close(). The copies run in a thread of the session's own, which start() starts.
    """

    def __init__(
        self,
        settings: Settings,
        identity: WorkerIdentity,
        mover_factory: Callable[[Pages], CopyEngine] = mover_for,
        early_loads: bool = True,
        on_mapped: Callable[[], None] = lambda: None,
    ) -> None:
        """on_mapped: called by the session's thread when mapped() may have something to say.

        early_loads: LOAD alone begins a copy. False for an engine whose steps overlap: an
        earlier one, which the worker has not run yet, may have to clear the blocks of the load.
        Then the copy begins with the record that comes in the engine's own order."""
        self._settings = settings
        self._identity = identity
        self._mover_factory = mover_factory
        self._early = early_loads
        self._on_mapped = on_mapped
        self._mover: CopyEngine | None = None
        self._thread: threading.Thread | None = None
        self._link: WorkerLink | None = None
        self._pinner: Pinner | None = None
        self._extents: Extents | None = None
        self._number = secrets.randbits(63)  # among the engine's workers
        self._told = 0  # Extents.changes when mapped() was asked last
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._quiet = threading.Event()
        self._quiet.set()
        self._counters = dict.fromkeys(_COUNTERS, 0)
        # Between the two threads; the engine's appends to the first and takes from the others.
        self._inbox: deque[tuple[Work, object | None]] = deque()
        self._done: deque[tuple[int, bool]] = deque()
        self._reports: deque[tuple[str, bool]] = deque()
        # The session thread's own.
        self._jobs: dict[int, CopyJob] = {}  # that have not ended
        self._results: dict[int, bool] = {}  # of those that have
        self._waiting: dict[int, str] = {}  # request of a load job that has not ended
        self._requests: dict[str, _Request] = {}
        self._named: set[int] = set()  # jobs that the engine knows and that have not ended
        self._scheduler: int | None = None  # the upper half of its jobs' numbers

    def start(self, register: RegisterFields, pages: Pages) -> None:
        """Starts the thread, which connects as soon as there is an agent and a session.

        Threads of this process switch every 0.3 ms from then on where they compete for the
        interpreter, so that a load begins soon.

        ValueError when what is registered is not what pages has.
        """
        own = RegisterFields(pages.blocks, pages.share_bytes, pages.share_offset)
        if register != own:
            raise ValueError(f"{register} does not fit the pages, which are {own}")
        mover = self._mover = self._mover_factory(pages)
        pinner = self._pinner = Pinner(mover.on_map, mover.on_unmap)
        extents = self._extents = Extents(on_map=pinner.add, on_unmap=pinner.release)
        hello = HelloFields(
            self._identity.engine, self._identity.worker_id, self._identity.dp_rank
        )
        settings = self._settings
        link = self._link = WorkerLink(
            settings.socket, hello, register, extents, self._counters, settings.stats
        )
        copier = Copier(mover, pages, extents, self._counters)
        # LOAD names the blocks of one group only.
        self._early = self._early and pages.groups == 1 and not mover.needs_fence
        sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
        self._thread = threading.Thread(
            target=self._run,
            args=(link, copier, extents, pages, pinner),
            name="blockyard",
            daemon=True,
        )
        self._thread.start()

    # What the engine's thread calls.

    @property
    def joined(self) -> bool:
        """Whether the agent sends this worker its loads now."""
        return self._link is not None and self._link.joined

    def begin(self, work: Work, fence: object | None = None) -> None:
        """The copies of a step. They come after what the engine has launched until now: fence, or
        else what the mover's fence() says here. Never waits, and reports every job of the step,
        also where the fence fails."""
        if not work:
            return
        if fence is None and self._mover is not None:
            try:
                fence = self._mover.fence()
            except Exception as err:
                fence = err  # then none of these jobs may be copied
        self._inbox.append((work, fence))
        self._quiet.clear()
        self._wake_up()

    def finished_loads(self) -> tuple[set[str], set[str]]:
        """Requests whose loads have ended since the last call, and those of them that failed."""
        finished: set[str] = set()
        failed: set[str] = set()
        while self._reports:
            rid, ok = self._reports.popleft()
            finished.add(rid)
            if not ok:
                failed.add(rid)
        return finished, failed

    def done(self) -> Done | None:
        """Jobs of the engine's that have ended since the last call; None when there are none."""
        if not self._done:
            return None
        done = Done()
        while self._done:
            done.add(*self._done.popleft())
        return done

    def mapped(self) -> Mapped | None:
        """What this worker can read now; None when that is what it said at the last call."""
        extents = self._extents
        if extents is None or extents.changes == self._told:
            return None
        self._told = extents.changes
        (nonce, session), numbers = extents.mapped()
        return Mapped(self._number, nonce, session, pack_runs(numbers))

    def wait(self, timeout: float) -> bool:
        """Waits until no copy is queued or under way; False when that took too long."""
        return self._quiet.wait(timeout)

    def stats(self) -> dict[str, int]:
        """Counters since the start, under the names of STATS."""
        return dict(self._counters)

    def close(self) -> None:
        """Ends the thread and the connection; jobs that have not begun fail. May be called again.

        Copies that a device is making end first. Memory whose unpinning takes too long is unpinned
        after this returns.
        """
        self._closing = True
        self._wake_up()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                _log.error("copies did not end within %s s", _CLOSE_SECONDS)
                return  # it may look at the descriptor yet
        if self._pinner is not None and not self._pinner.close(_UNPIN_SECONDS):
            _log.info("the agent's memory is still being unpinned after %s s", _UNPIN_SECONDS)
        wake, self._wake = self._wake, -1
        if wake >= 0:
            os.close(wake)

    def _wake_up(self) -> None:
        if self._wake < 0:
            return  # closed
        lockheld.wake(self._wake)

    # The session's thread.

    def _run(
        self, link: WorkerLink, copier: Copier, extents: Extents, pages: Pages, pinner: Pinner
    ) -> None:
        while not self._closing:
            try:
                self._turn(link, copier, extents, pages, pinner)
            except Exception:
                # What a request waits for must be reported whatever happens here.
                _log.exception("the worker's thread goes on after an error")
                self._counters["errors"] += 1
                self._settle(copier.drop("an error in the worker's thread"))
                time.sleep(_ERROR_SECONDS)
        self._settle(copier.drop("the worker ends"))
        while copier.busy:
            self._settle(copier.step())
            time.sleep(DEVICE_POLL_SECONDS)
        self._quiet.set()
        link.close()
        extents.close()

    def _turn(
        self, link: WorkerLink, copier: Copier, extents: Extents, pages: Pages, pinner: Pinner
    ) -> None:
        """Takes what has come, copies one piece, and waits if nothing is left to do."""
        announced = extents.announced
        while self._inbox:
            work, fence = self._inbox.popleft()
            self._take(work, fence, copier, pages.groups)
        for body in link.service(time.monotonic()):
            if self._early and body["job"] >> 32 == self._scheduler:
                self._add(body["job"], False, body["slots"], body["blocks"], 1, None, copier)
        if extents.announced == announced:  # all that the agent has announced is mapped
            pinner.start()
        else:
            self._on_mapped()
        self._settle(copier.step())
        link.work(copier.busy, time.monotonic())
        if copier.busy:
            self._quiet.clear()
        else:
            extents.release_old()
            self._quiet.set()
            if self._inbox:  # begin() came between
                self._quiet.clear()
                return
        pause = copier.pause()
        if pause == 0.0:
            return
        due = link.due()
        if due is not None:
            left = max(0.0, due - time.monotonic())
            pause = left if pause is None else min(pause, left)
        if link.joined and not copier.busy and extents.populate(_POPULATE_BYTES):
            pause = 0.0  # there may be more of it
        if extents.announced != announced:
            pause = 0.0  # pinning begins with a turn that finds nothing new
        self._poll(link, pause)

    def _poll(self, link: WorkerLink, timeout: float | None) -> None:
        """Waits for a frame, for begin() or close(), at most for timeout."""
        if timeout is not None and 0 < timeout < 1e-3:
            time.sleep(timeout)  # poll() would make a whole millisecond of it
            timeout = 0
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        if link.fileno() >= 0:
            poll.register(link.fileno(), select.POLLIN)
        for fd, _ in poll.poll(None if timeout is None else timeout * 1000):
            if fd == self._wake:
                lockheld.take_wakes(fd)

    def _take(self, work: Work, fence: object | None, copier: Copier, groups: int) -> None:
        for load in work.loads:
            self._name(load)
        self._named.update(store.job for store in work.stores)
        for job in (*work.loads, *work.stores):
            self._scheduler = job.job >> 32
        for load in work.loads:  # all jobs of a request are named by now, so none ends it early
            self._add(load.job, False, load.slots, load.blocks, groups, fence, copier)
            self._report_if_ended(load.rid)
        for store in work.stores:
            self._add(store.job, True, store.slots, store.blocks, groups, fence, copier)

    def _name(self, load: Load) -> None:
        """Notes which request a job is for. LOAD may have brought it, and it may have ended."""
        request = self._requests.setdefault(load.rid, _Request())
        ok = self._results.get(load.job)
        if ok is None:
            request.jobs.add(load.job)
            self._waiting[load.job] = load.rid
            self._named.add(load.job)
        else:
            request.failed |= not ok
            self._done.append((load.job, ok))

    def _add(
        self,
        number: int,
        is_store: bool,
        slots: bytes,
        blocks: bytes,
        groups: int,
        fence: object | None,
        copier: Copier,
    ) -> None:
        """Queues a job unless it is known; one that cannot be queued fails."""
        if number in self._jobs or number in self._results:
            return
        try:
            if isinstance(fence, Exception):
                raise fence
            job = CopyJob(number, is_store, slots, blocks, groups, fence)
        except Exception as err:
            _log.warning("job %d failed: %s: %s", number, type(err).__name__, err)
            self._counters["failed_loads"] += not is_store
            self._counters["dropped_stores"] += len(slots) // SLOT_BYTES if is_store else 0
            self._finish(number, False)
            return
        self._jobs[number] = job
        copier.add(job)

    def _settle(self, ended: list[tuple[CopyJob, bool]]) -> None:
        for job, ok in ended:
            self._jobs.pop(job.number, None)
            self._finish(job.number, ok)

    def _finish(self, number: int, ok: bool) -> None:
        """Remembers how a job ended and tells the engine, if it knows the job."""
        self._results[number] = ok
        if len(self._results) > _REMEMBERED:
            del self._results[next(iter(self._results))]
        if number in self._named:
            self._named.remove(number)
            self._done.append((number, ok))
        rid = self._waiting.pop(number, None)
        if rid is not None:
            request = self._requests[rid]
            request.jobs.discard(number)
            request.failed |= not ok
            self._report_if_ended(rid)

    def _report_if_ended(self, rid: str) -> None:
        request = self._requests.get(rid)
        if request is not None and not request.jobs:
            del self._requests[rid]
            self._reports.append((rid, not request.failed))
