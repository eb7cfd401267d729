"""The data plane in C: the library's table of extents, copier and wait, for a WorkerSession.

The library's threads copy. They neither take nor need Python's lock. A mover that is written in
Python, as in tests, works as well: the library calls the mover.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import copying, native
from .copying import MAX_FLYING, CopyJob, count_job
from .extents import MAX_EXTENTS, Extent, Extents
from .groups import ALL_GROUPS
from .mover import Copy, CopyEngine, CpuMover, Pages, mover_for
from .native import Library

_log = logging.getLogger(__name__)

_MOST_THREADS = 4  # more threads add little to the bandwidth of memory
_ENDS = 64


def _threads() -> int:
    """Threads that copy in plain memory, one for each core that the process may use."""
    return min(_MOST_THREADS, len(os.sched_getaffinity(0)))


class _Table(dict[int, Extent]):
    """Extents by number, with a copy of the table in the library.

    Only Extents changes the table, under its lock.
    """

    def __init__(self, lib: Library) -> None:
        super().__init__()
        self.lib = lib
        self.handle = lib.by_extents_new()
        if not self.handle:
            raise MemoryError("table of extents")

    def __setitem__(self, number: int, extent: Extent) -> None:
        data = (extent.address, extent.data, extent.slots, extent.slot_bytes)
        if self.lib.by_extents_set(self.handle, number, *data):
            raise ValueError(f"extent {number}: more than {MAX_EXTENTS} extents")
        super().__setitem__(number, extent)

    def pop(self, number: int, *default: Any) -> Any:
        self.lib.by_extents_drop(self.handle, number)
        return super().pop(number, *default)

    def clear(self) -> None:
        for number in self:
            self.lib.by_extents_drop(self.handle, number)
        super().clear()

    def __del__(self) -> None:
        if self.handle:
            self.lib.by_extents_free(self.handle)


class Plan:
    """Pages in the library. handle: struct by_plan."""

    def __init__(self, lib: Library, pages: Pages) -> None:
        self.lib = lib
        self.pages = pages
        described = (native.Page * len(pages.pages))()
        for to, page in zip(described, pages.pages):
            to.address, to.stride, to.bytes = page.address, page.stride, page.bytes
            to.offset, to.group = pages.share_offset + page.offset, page.group
        self.handle = lib.by_plan_new(described, len(described), pages.groups, pages.blocks)
        if not self.handle:
            raise MemoryError("plan")

    def __del__(self) -> None:
        self.lib.by_plan_free(self.handle)

    def piece(
        self, kind: int, slots: Sequence[int], blocks: Sequence[Sequence[int]]
    ) -> native.Piece:
        """A piece of all groups, or of one group. GeometryError as Pages.check_blocks()."""
        self.pages.check_blocks(blocks, len(slots))
        count = len(slots)
        group = native.ALL_GROUPS
        if self.pages.grouped:
            group = next(number for number, ids in enumerate(blocks) if ids)
        ids = [block for group in blocks for block in group]
        return native.Piece(
            kind,
            group,
            count,
            count,
            (ctypes.c_uint64 * count)(*slots),
            (ctypes.c_uint32 * len(ids))(*ids),
        )


class MemoryMover(CpuMover):
    """CpuMover with the library's copies. Each call copies in the calling thread."""

    load_bytes = store_bytes = 1 << 20

    def __init__(self, lib: Library, pages: Pages) -> None:
        super().__init__(pages)
        self.plan = Plan(lib, pages)

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        """See CopyEngine."""
        piece = self.plan.piece(native.LOAD, slots, blocks)
        self.plan.lib.by_plan_copy(self.plan.handle, ctypes.byref(piece))

    def store(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        """See CopyEngine."""
        piece = self.plan.piece(native.STORE, slots, blocks)
        self.plan.lib.by_plan_copy(self.plan.handle, ctypes.byref(piece))

    def backend(self) -> native.Backend:
        """The library's own backend, which needs no call of Python."""
        backend = native.Backend()
        self.plan.lib.by_memory_backend(ctypes.byref(backend), self.plan.handle)
        return backend


class _Calls:
    """A backend that calls a mover written in Python."""

    def __init__(self, mover: CopyEngine, pages: Pages, fences: dict[int, object]) -> None:
        self._mover = mover
        self._groups = pages.groups
        self._grouped = pages.grouped
        self._fences = fences
        self._copies: dict[int, Copy] = {}
        self._next = 1
        self._kept = native.BEGIN(self._begin), native.POLL(self._poll)

    def backend(self) -> native.Backend:
        """The backend. Valid as long as this object."""
        mover = self._mover
        return native.Backend(
            None, *self._kept, native.DROP(), mover.load_bytes, mover.store_bytes, MAX_FLYING
        )

    def _begin(self, _: int, at: Any, copy_at: Any, text: int) -> int:
        piece = at[0]
        slots = piece.slots[: piece.count]
        lists = self._groups if piece.group == native.ALL_GROUPS else 1
        blocks = [
            piece.blocks[n * piece.stride : n * piece.stride + piece.count] for n in range(lists)
        ]
        if self._grouped:
            blocks = copying.one_group(blocks[0], piece.group, self._groups)
        copy_in = self._mover.store if piece.kind == native.STORE else self._mover.load
        try:
            copy = copy_in(slots, blocks, self._fences.get(piece.fence))
        except Exception as err:
            return _failed(err, text)
        if copy is None:
            return 0
        copy_at[0] = self._next
        self._copies[self._next] = copy
        self._next += 1
        return 1

    def _poll(self, _: int, number: int, text: int) -> int:
        try:
            if not self._copies[number].done():
                return 1
        except Exception as err:
            del self._copies[number]
            return _failed(err, text)
        del self._copies[number]
        return 0


def _failed(err: Exception, text: int) -> int:
    """Writes an error for the library. Returns the result that means a failure."""
    said = f"{type(err).__name__}: {err}".encode()[: native.TEXT_BYTES - 1] + b"\0"
    ctypes.memmove(text, said, len(said))
    return -errno.EIO


class NativeCopier:
    """The library's copier, with the methods of copying.Copier.

    unlocked: see plane.JobCopier. threads: 0 makes step() copy one piece in the calling thread,
    for tests.
    """

    def __init__(
        self,
        plan: Plan,
        mover: CopyEngine,
        extents: Extents,
        counters: dict[str, int],
        wake: int,
        threads: int,
    ) -> None:
        self._lib = plan.lib
        self._plan = plan
        self._extents = extents
        self._counters = counters
        self._wake = wake
        self._fences: dict[int, object] = {}  # by job
        self._jobs: dict[int, CopyJob] = {}  # jobs of this copier that came with add()
        self._ended: list[tuple[int, bool]] = []
        self.micros: dict[int, int] = {}
        self._announced = extents.announced
        self._counted = native.Counts()
        self._ends = (native.End * _ENDS)()
        self._stepped = not threads
        self._pump = native.Pump(socket=-1, wake=wake)
        source = getattr(mover, "backend", None)
        self._source: Any = (
            _Calls(mover, plan.pages, self._fences) if source is None else mover
        )
        self.unlocked = source is not None
        self._keeps = getattr(mover, "keep", None)
        backend = self._source.backend()
        table = extents.table
        assert isinstance(table, _Table), "extents of another plane"
        self._handle = self._lib.by_copier_new(
            plan.handle, table.handle, ctypes.byref(backend), wake
        )
        if not self._handle:
            raise MemoryError("copier")
        self._pump.copier = self._handle
        if threads and self._lib.by_copier_start(self._handle, threads, b"blockyard-copy"):
            raise RuntimeError("the copier's threads cannot start")
        self._begun = ctypes.c_uint64()
        self._loader = None
        if threads:  # without the thread, LOADs begin in wait()
            self._loader = self._lib.by_loader_new(self._handle, wake, b"blockyard-load")

    @property
    def busy(self) -> bool:
        """See copying.Copier."""
        return bool(self._ended or self._lib.by_copier_busy(self._handle))

    def pause(self) -> float | None:
        """None: the copier's threads write to wake."""
        return 0.0 if self._ended else None

    def add(self, job: CopyJob) -> bool:
        """Queues a job. False: the job has been added before, by a LOAD."""
        fence = 0
        if job.fence is not None:
            fence = self._keeps(job.fence) if self._keeps is not None else job.number
        ask = native.Job(
            job.number,
            native.STORE if job.is_store else native.LOAD,
            native.ALL_GROUPS if job.group == ALL_GROUPS else job.group,
            len(job.packed_slots) // copying.SLOT_BYTES,
            len(job.packed_blocks) // 4,
            job.packed_slots,
            job.packed_blocks,
            fence,
            int(copying.EXTENT_SECONDS * 1e9),
        )
        self._fences[job.number] = job.fence
        self._jobs[job.number] = job
        refused = -self._lib.by_copier_add(self._handle, ctypes.byref(ask))
        if not refused:
            return True
        del self._jobs[job.number], self._fences[job.number]
        if fence and self._keeps is not None:
            self._source.drop(fence)
        if refused == errno.EEXIST:
            return False
        job.problem = f"the copier refuses the job: {os.strerror(refused)}"
        self._end(job.number, job.is_store, job.count, False, job.problem)
        return True

    def step(self) -> list[tuple[int, bool]]:
        """The jobs that have ended since the last call."""
        if self._announced != self._extents.announced:
            self._announced = self._extents.announced
            self._lib.by_copier_remapped(self._handle)
        if self._stepped:
            self._lib.by_copier_step(self._handle)
        return self._take()

    def drop(self, problem: str) -> list[tuple[int, bool]]:
        """See copying.Copier."""
        self._lib.by_copier_drop(self._handle, problem.encode())
        return self._take()

    def wait(self, fd: int, timeout: float | None, session: int | None) -> None:
        """See plane.JobCopier. LOADs begin until the return, without Python's lock."""
        pump = self._pump
        pump.socket = fd
        pump.early, pump.session = session is not None, session or 0
        pump.patience_ns = int(copying.EXTENT_SECONDS * 1e9)
        limit = -1 if timeout is None else int(timeout * 1e9)
        if self._loader is not None:
            self._lib.by_loader_go(self._loader, ctypes.byref(pump))
            pump.socket = -1
        try:
            self._lib.by_pump(ctypes.byref(pump), limit)
        finally:
            if self._loader is not None:
                self._lib.by_loader_hold(self._loader, ctypes.byref(self._begun))

    def close(self) -> None:
        """See plane.JobCopier."""
        loader, self._loader = self._loader, None
        if loader:
            self._lib.by_loader_free(loader)
        handle, self._handle = self._handle, None
        if handle:
            self._lib.by_copier_free(handle)

    def _take(self) -> list[tuple[int, bool]]:
        count = self._lib.by_copier_take(self._handle, self._ends, _ENDS)
        while count:
            for end in self._ends[:count]:
                self._jobs.pop(end.number, None)
                self._fences.pop(end.number, None)
                is_store = end.kind == native.STORE
                if end.began_ns and not is_store:
                    self.micros[end.number] = (time.monotonic_ns() - end.began_ns) // 1000
                text = end.text.decode(errors="replace")  # a long one may be cut in a character
                self._end(end.number, is_store, end.blocks, bool(end.ok), text)
            count = self._lib.by_copier_take(self._handle, self._ends, _ENDS)
        self._count_bytes()
        ended, self._ended = self._ended, []
        return ended

    def _end(self, number: int, is_store: bool, blocks: int, ok: bool, problem: str) -> None:
        count_job(self._counters, number, is_store, blocks, problem)
        self._ended.append((number, ok))

    def _count_bytes(self) -> None:
        counts, before = native.Counts(), self._counted
        self._lib.by_copier_counts(self._handle, ctypes.byref(counts))
        self._counters["copied_bytes"] += counts.copied_bytes - before.copied_bytes
        # Whole microseconds of both sums, so that no part is lost.
        self._counters["copy_us"] += counts.copy_ns // 1000 - before.copy_ns // 1000
        self._counted = counts


class NativePlane:
    """The plane in C. threads: threads that copy in plain memory."""

    def __init__(self, lib: Library, threads: int = 0) -> None:
        """threads: 0 means one for each core, and at most four."""
        self.lib = lib
        self.threads = threads or _threads()

    def extents(
        self, on_map: Callable[[Extent], None], on_unmap: Callable[[Extent], None]
    ) -> Extents:
        """See plane.Plane."""
        return Extents(on_map=on_map, on_unmap=on_unmap, table=_Table(self.lib))

    def mover(self, pages: Pages) -> CopyEngine:
        """See plane.Plane."""
        if pages.device == "cpu":
            return MemoryMover(self.lib, pages)
        if pages.device.startswith("cuda"):
            from .native_cuda import NativeCudaMover

            return NativeCudaMover(self.lib, pages)
        return mover_for(pages)

    def copier(
        self,
        mover: CopyEngine,
        pages: Pages,
        extents: Extents,
        counters: dict[str, int],
        wake: int,
    ) -> NativeCopier:
        """See plane.Plane."""
        plan = getattr(mover, "plan", None) or Plan(self.lib, pages)
        threads = self.threads if isinstance(mover, MemoryMover) else 1
        return NativeCopier(plan, mover, extents, counters, wake, threads)
