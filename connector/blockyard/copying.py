"""Copy jobs of a worker: their order, their pieces and their generation checks.

One thread uses a Copier. Loads go before stores, even before the rest of a store in progress.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence

from .extents import Extents
from .groups import ALL_GROUPS
from .mover import Copy, CopyEngine, Pages
from .packed import SLOT_BYTES, Slot, unpack_slots, unpack_u32

_log = logging.getLogger(__name__)

# Limit of concurrent device copies: enough to keep a device busy.
MAX_FLYING = 16
# How long a job waits for an extent to be announced. The scheduler may learn of a slot before this
# worker has joined the session or has received EXTENT_READY.
EXTENT_SECONDS = 2.0
DEVICE_POLL_SECONDS = 0.25e-3


class CopyJob:
    """One job: slots[i] and block blocks[group][i], for every group that the job copies.

    group: the only KV group to copy, or ALL_GROUPS. slots and blocks exist after unpack(). count:
    number of slots. fence is the mover's. at: slots before this index are copied or in flight.
    flying: the job's copies in flight on a device. problem: why the job failed, or empty. waited:
    the job has waited for an extent. ValueError when the packed lists differ in length.
    """

    __slots__ = (
        "number",
        "is_store",
        "group",
        "groups",
        "packed_slots",
        "packed_blocks",
        "count",
        "slots",
        "blocks",
        "fence",
        "at",
        "flying",
        "problem",
        "waited",
        "began",
    )

    def __init__(
        self,
        number: int,
        is_store: bool,
        slots: bytes,
        blocks: bytes,
        groups: int,
        fence: object | None = None,
        group: int = ALL_GROUPS,
    ) -> None:
        self.number = number
        self.is_store = is_store
        self.group = group
        self.groups = groups
        self.packed_slots = slots
        self.packed_blocks = blocks
        self.count, rest = divmod(len(slots), SLOT_BYTES)
        lists = groups if group == ALL_GROUPS else 1
        if rest or not self.count or len(blocks) != 4 * lists * self.count or group >= groups:
            raise ValueError(
                f"job {number}: {len(blocks)} bytes of block ids for {len(slots)} bytes of slots, "
                f"group {group} of {groups}"
            )
        self.slots: list[Slot] = []
        self.blocks: list[list[int]] = []
        self.fence = fence
        self.at = 0
        self.flying = 0
        self.problem = ""
        self.waited = False
        self.began = 0.0  # time of the first piece

    def unpack(self) -> None:
        """Sets slots and blocks."""
        self.slots = unpack_slots(self.packed_slots)
        ids = unpack_u32(self.packed_blocks)
        if self.group == ALL_GROUPS:
            self.blocks = [ids[at : at + self.count] for at in range(0, len(ids), self.count)]
        else:
            self.blocks = one_group(ids, self.group, self.groups)


def one_group(ids: list[int], group: int, groups: int) -> list[list[int]]:
    """Block ids by group, of a copy of one group."""
    return [ids if number == group else [] for number in range(groups)]


def count_job(
    counters: dict[str, int], number: int, is_store: bool, blocks: int, problem: str
) -> None:
    """Counts an ended job, and logs its problem. An empty problem is a success."""
    if problem:
        kind = "store" if is_store else "load"
        _log.warning("%s job %d failed: %s", kind, number, problem)
    if is_store:
        counters["stores"] += 1
        counters["dropped_stores" if problem else "stored_blocks"] += blocks
    elif problem:
        counters["failed_loads"] += 1
    else:
        counters["loads"] += 1
        counters["loaded_blocks"] += blocks


class Copier:
    """Runs jobs piece by piece.

    The copier adds to counters, under the names of STATS. copy_us is the time with at least one
    copy in progress, in this thread or on a device. micros: see plane.JobCopier.
    """

    def __init__(
        self, mover: CopyEngine, pages: Pages, extents: Extents, counters: dict[str, int]
    ) -> None:
        self._mover = mover
        self._pages = pages
        self._extents = extents
        self._counters = counters
        self._loads: deque[CopyJob] = deque()
        self._stores: deque[CopyJob] = deque()
        self._flying: list[tuple[Copy, CopyJob]] = []
        self._counted = 0.0  # copy_us has the device's time up to this moment
        self._held: list[tuple[float, CopyJob]] = []  # deadlines and jobs that lack an extent
        self._announced = 0  # Extents.announced at the last check of _held
        self._ended: list[tuple[int, bool]] = []
        self.micros: dict[int, int] = {}
        block = pages.share_bytes
        self._load_blocks = max(1, mover.load_bytes // block)
        self._store_blocks = max(1, mover.store_bytes // block)

    @property
    def busy(self) -> bool:
        """Whether a job has not ended."""
        return bool(self._loads or self._stores or self._flying or self._held)

    def pause(self) -> float | None:
        """Seconds until step() has work, unless a job or an extent arrives. None: no limit."""
        if (self._loads or self._stores) and len(self._flying) < MAX_FLYING:
            return 0.0
        if self._flying:
            return DEVICE_POLL_SECONDS
        if self._held:
            return max(0.0, self._held[0][0] - time.monotonic())
        return None

    def add(self, job: CopyJob) -> bool:
        """Queues a job. The result is true: each job is added once."""
        job.unpack()
        self._queue(job)
        return True

    def close(self) -> None:
        """Nothing is left to free."""

    def _queue(self, job: CopyJob) -> None:
        (self._stores if job.is_store else self._loads).append(job)

    def drop(self, problem: str) -> list[tuple[int, bool]]:
        """Fails all queued and held jobs. Returns those without a copy in flight."""
        queued = [*self._loads, *self._stores, *(job for _, job in self._held)]
        self._loads.clear()
        self._stores.clear()
        self._held.clear()
        for job in queued:
            job.problem = job.problem or problem
            if not job.flying:
                self._end(job)
        return self._take_ended()

    def step(self) -> list[tuple[int, bool]]:
        """Copies one piece of the most urgent job.

        Returns the number of each ended job, and whether the job succeeded.
        """
        self._poll_device()
        self._queue_ready()
        queue = self._loads or self._stores
        if queue and len(self._flying) < MAX_FLYING:
            job = queue[0]
            if self._hold(job):
                queue.popleft()
                return self._take_ended()
            started = time.perf_counter()
            try:
                self._copy_piece(job)
            except Exception as err:
                job.problem = f"{type(err).__name__}: {err}"
            if not self._flying:
                self._counters["copy_us"] += int((time.perf_counter() - started) * 1e6)
            if job.problem or job.at == len(job.slots):
                queue.popleft()
                if not job.flying:
                    self._end(job)
        return self._take_ended()

    def _hold(self, job: CopyJob) -> bool:
        """Holds a new job that lacks an extent. Returns whether the job is held."""
        if job.at or job.waited or all(slot.extent in self._extents for slot in job.slots):
            return False
        job.waited = True
        self._announced = self._extents.announced
        self._held.append((time.monotonic() + EXTENT_SECONDS, job))
        return True

    def _queue_ready(self) -> None:
        """Queues held jobs whose extents have arrived or whose deadline has passed."""
        if not self._held:
            return
        if self._announced != self._extents.announced:
            self._announced = self._extents.announced
            held, self._held = self._held, []
            for until, job in held:
                if all(slot.extent in self._extents for slot in job.slots):
                    self._queue(job)
                else:
                    self._held.append((until, job))
        now = time.monotonic()
        while self._held and self._held[0][0] <= now:
            self._queue(self._held.pop(0)[1])

    def _copy_piece(self, job: CopyJob) -> None:
        if not job.at:
            job.began = time.perf_counter()
            self._check_generations(job, "before")
            if job.problem:
                return
        end = job.at + (self._store_blocks if job.is_store else self._load_blocks)
        end = min(end, len(job.slots))
        need = self._pages.share_offset + self._pages.share_bytes
        slots = self._extents.addresses(job.slots[job.at : end], need)
        blocks: Sequence[Sequence[int]] = [ids[job.at : end] for ids in job.blocks]
        if not self._flying:
            self._counted = time.perf_counter()
        if job.is_store:
            copy = self._mover.store(slots, blocks, job.fence)
        else:
            copy = self._mover.load(slots, blocks, job.fence)
        job.at = end
        self._counters["copied_bytes"] += len(slots) * self._pages.copied_bytes(blocks)
        if copy is not None:
            job.flying += 1
            self._flying.append((copy, job))

    def _check_generations(self, job: CopyJob, when: str) -> None:
        right = self._extents.generations_match(job.slots)
        if right < len(job.slots) and not job.problem:
            job.problem = f"{job.slots[right]} has another generation {when} the copy, or no extent"

    def _poll_device(self) -> None:
        if not self._flying:
            return
        spent = int((time.perf_counter() - self._counted) * 1e6)
        self._counters["copy_us"] += spent
        self._counted += spent / 1e6
        still = []
        for copy, job in self._flying:
            try:
                done = copy.done()
            except Exception as err:
                job.problem = job.problem or f"{type(err).__name__}: {err}"
                done = True
            if not done:
                still.append((copy, job))
                continue
            job.flying -= 1
            if not job.flying and (job.problem or job.at == len(job.slots)):
                self._end(job)
        self._flying = still

    def _end(self, job: CopyJob) -> None:
        if not job.is_store:
            self._check_generations(job, "after")
            if job.began:
                self.micros[job.number] = int((time.perf_counter() - job.began) * 1e6)
        count_job(self._counters, job.number, job.is_store, job.count, job.problem)
        self._ended.append((job.number, not job.problem))

    def _take_ended(self) -> list[tuple[int, bool]]:
        ended, self._ended = self._ended, []
        return ended
