"""The worker side of a connector: a thread that copies between the agent's slots and the KV.

A job arrives on two ways: LOAD from the agent, which is faster, and Work from the scheduler, which
names the request. The first one begins the copy. Results go back only through the engine.

The agent finds a session by worker id and rank. Two engines with one worker id would get each
other's LOADs. So a LOAD counts only if the upper half of its job number is the same as in Work.
"""

from __future__ import annotations

import logging
import os
import secrets
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Set
from dataclasses import dataclass

from . import lockheld
from .copying import DEVICE_POLL_SECONDS, CopyJob
from .ended import EndedLoads
from .extents import Extents
from .frames import HelloFields, RegisterFields
from .groups import ALL_GROUPS
from .mover import CopyEngine, Pages
from .near import near
from .packed import SLOT_BYTES
from .pinner import Pinner
from .plane import JobCopier, plane_for
from .readable import pack_runs
from .settings import Settings
from .work import Done, Load, Mapped, Store, Work
from .workerlink import WorkerLink

_log = logging.getLogger(__name__)

# Limit of remembered results, with which the second one of LOAD and Work finds its job ended. The
# agent queues 256 LOADs for a worker, and the socket queues some more. The copier in C knows a job
# for 2048 more jobs, when at most 4096 others are in progress.
_REMEMBERED = 8192
_POPULATE_BYTES = 4 << 20
_CLOSE_SECONDS = 10.0  # limit of close() for copies
_UNPIN_SECONDS = 10.0  # limit of close() for unpinning
# The switch interval of Python where loads begin in Python. A load would wait the default, 5 ms,
# beside a busy engine. A shorter interval lets other threads interrupt the engine's hooks.
_SWITCH_SECONDS = 0.3e-3
_ERROR_SECONDS = 0.05  # pause after an error, so that a repeated error does not slow the engine

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
    """The scheduler's worker id and rank, and the engine's name and version for people."""

    worker_id: int
    dp_rank: int
    engine: str


class WorkerSession:
    """The worker side of one engine process.

    The engine's thread calls the methods. Only wait(), await_load() and close() wait for copies.
    start() starts the session's thread, which makes the copies.

    news: another number than before means that finished_loads(), done(), mapped() or copied() may
    have another answer. Only the session's thread changes it.
    """

    def __init__(
        self,
        settings: Settings,
        identity: WorkerIdentity,
        mover_factory: Callable[[Pages], CopyEngine] | None = None,
        early_loads: bool = True,
        on_mapped: Callable[[], None] = lambda: None,
    ) -> None:
        """mover_factory: makes the copy engine; None takes that of the data plane.
        on_mapped: the session's thread calls it when mapped() may have new extents.
        early_loads: LOAD begins a copy before its Work. False for an engine with overlapping
        steps: an earlier step that has not run may clear the blocks of the load. Then Work begins
        the copy.
        """
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
        self._number = secrets.randbits(63)  # unique among the engine's workers
        # Extents.changes and Pinner.all_pinned: at the last report, and when the thread last looked
        self._told = self._seen = (0, True)
        self._closing = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._quiet = threading.Event()
        self._quiet.set()
        self._counters = dict.fromkeys(_COUNTERS, 0)
        self.news = 0
        # Queues between the two threads. The engine's thread appends to _inbox only.
        self._inbox: deque[tuple[Work, object | None]] = deque()
        self._done: deque[tuple[int, bool, int]] = deque()  # job, success, microseconds
        self._ended = EndedLoads()
        # Only the session's thread uses these.
        self._jobs: set[int] = set()  # unfinished jobs
        self._results: dict[int, tuple[bool, int]] = {}  # success and microseconds of ended jobs
        self._named: set[int] = set()  # unfinished jobs that the engine knows
        self._scheduler: int | None = None  # upper half of the scheduler's job numbers

    def start(self, register: RegisterFields, pages: Pages) -> None:
        """Starts the thread, which connects as soon as an agent and a session exist.

        Sets the interpreter's switch interval to at most 0.3 ms where loads begin in Python.
        ValueError when register does not match pages.
        """
        own = RegisterFields(pages.blocks, pages.share_bytes, pages.share_offset)
        if register != own:
            raise ValueError(f"{register} does not match the pages: {own}")
        plane = plane_for(self._settings)
        mover = self._mover = (self._mover_factory or plane.mover)(pages)
        pinner = self._pinner = Pinner(mover.on_map, mover.on_unmap, mover.pins)
        extents = self._extents = plane.extents(on_map=pinner.add, on_unmap=pinner.release)
        hello = HelloFields(
            self._identity.engine, self._identity.worker_id, self._identity.dp_rank
        )
        settings = self._settings
        link = self._link = WorkerLink(
            settings.socket, hello, register, extents, self._counters, settings.stats
        )
        # LOAD names the blocks of one group only.
        one_group = pages.groups == 1 or pages.grouped
        self._early = self._early and one_group and not mover.needs_fence
        with near(pages.device):
            copier = plane.copier(mover, pages, extents, self._counters, self._wake)
            self._thread = threading.Thread(
                target=self._run,
                args=(link, copier, extents, pages, pinner),
                name="blockyard",
                daemon=True,
            )
            if not (self._early and copier.unlocked):
                sys.setswitchinterval(min(sys.getswitchinterval(), _SWITCH_SECONDS))
            self._thread.start()

    # Methods for the engine's thread.

    @property
    def joined(self) -> bool:
        """Whether the agent sends LOADs to this worker now."""
        return self._link is not None and self._link.joined

    def fence(self) -> object | None:
        """A fence behind the work that the engine has launched, for begin(). See CopyEngine."""
        return self._mover.fence() if self._mover is not None else None

    def begin(self, work: Work, fence: object | None = None) -> None:
        """Queues the copies of a step, behind the work that the engine has launched until now.

        fence: replaces the mover's own fence. Never waits. Every job of the step is reported, even
        when the fence fails.
        """
        if not work:
            return
        if fence is None:
            try:
                fence = self.fence()
            except Exception as err:
                fence = err  # no job of this step may be copied
        self._ended.begin(work.loads)
        self._inbox.append((work, fence))
        self._quiet.clear()
        self._wake_up()

    def await_load(self, seconds: float) -> None:
        """Waits until finished_loads() has a result, for `seconds` at most. Without a load: not at
        all."""
        self._ended.wait(seconds)

    def expects(self, rid: str) -> bool:
        """Whether the result of a request's load is still to come in finished_loads()."""
        return self._ended.expects(rid)

    def finished_loads(self) -> tuple[Set[str], Set[str]]:
        """Requests whose loads have ended since the last call, and the failed ones among them."""
        return self._ended.take()

    def done(self) -> Done | None:
        """The engine's jobs that have ended since the last call. None without any."""
        if not self._done:
            return None
        done = Done()
        while self._done:
            done.add(*self._done.popleft())
        return done

    def mapped(self) -> Mapped | None:
        """The extents that this worker has mapped. None without a change since the last call."""
        extents, pinner = self._extents, self._pinner
        if extents is None or pinner is None or self._told == (extents.changes, pinner.all_pinned):
            return None
        changes = extents.changes
        (nonce, session), numbers = extents.mapped()
        pinned = pinner.all_pinned  # read after the numbers, so that it holds for each of them
        self._told = changes, pinned
        return Mapped(self._number, nonce, session, pack_runs(numbers), pinned)

    def wait(self, timeout: float) -> bool:
        """Waits until no copy of a Work is queued or in flight. False after timeout seconds.

        A load that began with its LOAD, before its Work, may still be in flight.
        """
        return self._quiet.wait(timeout)

    def stats(self) -> dict[str, int]:
        """Counters since the start, under the names of STATS."""
        return dict(self._counters)

    def copied(self) -> tuple[int, int, int]:
        """Blocks loaded, blocks stored, and microseconds of copying since the start."""
        count = self._counters
        return count["loaded_blocks"], count["stored_blocks"], count["copy_us"]

    def close(self) -> None:
        """Ends the thread and the connection. Queued jobs fail. May be called again.

        Copies in flight on a device end first. Unpinning may continue after the return.
        """
        self._closing = True
        self._wake_up()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)
            if self._thread.is_alive():
                _log.error("copies did not end within %s s", _CLOSE_SECONDS)
                return  # the thread may still use the descriptor
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
        self, link: WorkerLink, copier: JobCopier, extents: Extents, pages: Pages, pinner: Pinner
    ) -> None:
        while not self._closing:
            try:
                self._turn(link, copier, extents, pages, pinner)
            except Exception:
                # Every job must be reported, even after a bug, because a request may wait for it.
                _log.exception("the worker's thread continues after an error")
                self._counters["errors"] += 1
                self._settle(copier.drop("an error in the worker's thread"), copier.micros)
                time.sleep(_ERROR_SECONDS)
        try:
            self._settle(copier.drop("the worker ends"), copier.micros)
            while copier.busy:
                self._settle(copier.step(), copier.micros)
                time.sleep(DEVICE_POLL_SECONDS)
            self._quiet.set()
            link.close()
        finally:
            copier.close()  # its threads write to the descriptor that WorkerSession.close() closes
            extents.close()

    def _turn(
        self, link: WorkerLink, copier: JobCopier, extents: Extents, pages: Pages, pinner: Pinner
    ) -> None:
        """Takes new jobs and frames, copies one piece, and waits when no work is left."""
        announced = extents.announced
        while self._inbox:
            work, fence = self._inbox.popleft()
            self._take(work, fence, copier, pages)
        for body in link.service(time.monotonic()):
            if self._early and body["job"] >> 32 == self._scheduler:
                group = body["group"] if pages.grouped else ALL_GROUPS
                load = Load(body["job"], "", body["slots"], body["blocks"], group)
                self._add(load, False, pages, None, copier)
        self._note_extents(extents, pinner)
        if extents.announced == announced:  # all announced extents are mapped
            pinner.start()
        else:
            self._on_mapped()
        self._settle(copier.step(), copier.micros)
        link.work(copier.busy, time.monotonic())
        if copier.busy:
            self._quiet.clear()
        else:
            extents.release_old()
            self._quiet.set()
            if self._inbox:  # begin() was called just now
                self._quiet.clear()
                return
        pause = copier.pause()
        if pause == 0.0:
            return
        due = link.due()
        left = None if due is None else max(0.0, due - time.monotonic())
        pause = min((p for p in (pause, left, pinner.pause()) if p is not None), default=None)
        if link.joined and not copier.busy and extents.populate(_POPULATE_BYTES):
            pause = 0.0  # more untouched memory may be left
        if extents.announced != announced:
            pause = 0.0  # pinning begins in a turn without a new extent
        self._note_extents(extents, pinner)
        copier.wait(link.fileno(), pause, self._scheduler if self._early else None)
        lockheld.take_wakes(self._wake)

    def _note_extents(self, extents: Extents, pinner: Pinner) -> None:
        seen = extents.changes, pinner.all_pinned
        if seen != self._seen:
            self._seen = seen
            self.news += 1

    def _take(self, work: Work, fence: object | None, copier: JobCopier, pages: Pages) -> None:
        for load in work.loads:
            self._name(load)
        self._named.update(store.job for store in work.stores)
        for job in (*work.loads, *work.stores):
            self._scheduler = job.job >> 32
        for load in work.loads:  # _name() came first, so no single job ends its request early
            self._add(load, False, pages, fence, copier)
            self._ended.report_if_ended(load.rid)
        for store in work.stores:
            self._add(store, True, pages, fence, copier)
        self.news += 1  # a job may have ended before the engine named it

    def _name(self, load: Load) -> None:
        """Records a job's request. An earlier LOAD may have begun or ended the job."""
        result = self._results.get(load.job)
        if result is None:
            self._ended.expect(load)
            self._named.add(load.job)
        else:
            self._ended.expect_ended(load, result[0])
            self._done.append((load.job, *result))

    def _add(
        self,
        asked: Load | Store,
        is_store: bool,
        pages: Pages,
        fence: object | None,
        copier: JobCopier,
    ) -> None:
        """Queues a job unless the job is known. An invalid job fails."""
        number, slots = asked.job, asked.slots
        if number in self._jobs or number in self._results:
            return
        try:
            if isinstance(fence, Exception):
                raise fence
            if pages.grouped == (asked.group == ALL_GROUPS):
                raise ValueError(f"group {asked.group}, slots of one group are {pages.grouped}")
            blocks, group = asked.blocks, asked.group
            copier.add(CopyJob(number, is_store, slots, blocks, pages.groups, fence, group))
            self._jobs.add(number)  # or else the job is in progress, and its end comes anyway
        except Exception as err:
            _log.warning("job %d failed: %s: %s", number, type(err).__name__, err)
            self._counters["failed_loads"] += not is_store
            self._counters["dropped_stores"] += len(slots) // SLOT_BYTES if is_store else 0
            self._finish(number, False)

    def _settle(self, ended: list[tuple[int, bool]], micros: dict[int, int]) -> None:
        for number, ok in ended:
            self._jobs.discard(number)
            took = micros.pop(number, 0)
            self._finish(number, ok, took if ok else 0)

    def _finish(self, number: int, ok: bool, micros: int = 0) -> None:
        """Records the result of a job, and reports the result if the engine knows the job."""
        self._results[number] = ok, micros
        if len(self._results) > _REMEMBERED:
            del self._results[next(iter(self._results))]
        if number in self._named:
            self._named.remove(number)
            self._done.append((number, ok, micros))
        self._ended.end(number, ok)
        self.news += 1
