"""KV on a device in one layout, slots in shared memory, and a copier between the two."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.gpu_driver import Driver, Mover, Wrong
from blockyard.copying import CopyJob
from blockyard.extents import Extent, Extents
from blockyard.groups import ALL_GROUPS
from blockyard.lockheld import take_wakes
from blockyard.mover import Page, Pages
from blockyard.native_plane import NativeCopier, NativePlane, Plan
from blockyard.packed import Slot, pack_slots, pack_u32
from blockyard.pinner import pieces_of

JOB_SLOTS = 1024
STALL_SECONDS = 60.0
COUNTERS = (
    "loads loaded_blocks failed_loads stores stored_blocks dropped_stores copied_bytes copy_us"
)

Ids = Sequence[Sequence[int]]  # block ids by KV group


class Layout(NamedTuple):
    """Where blocks lie. pages: with addresses from the begin of the KV. grouped: see Pages."""

    name: str
    pages: list[Page]
    blocks: int
    kv_bytes: int
    grouped: bool = False


def layer_first(
    name: str,
    layers: int,
    page: int,
    total: int,
    gap: int = 0,
    groups: int = 1,
    apart: bool = False,
) -> Layout:
    """The blocks of a layer are neighbours, `gap` bytes apart.

    total: bytes of all pages. groups: KV groups, with as many layers each. apart: a slot has one
    group's block.
    """
    blocks = total // (layers * page)
    stride, each = page + gap, layers // groups
    size = layers * blocks * stride
    pages = [
        Page(n * blocks * stride, stride, page, (n % each if apart else n) * page, n // each, size)
        for n in range(layers)
    ]
    return Layout(name, pages, blocks, size, apart)


def block_first(name: str, layers: int, page: int, total: int, gap: int = 0) -> Layout:
    """The layers of a block are neighbours. Blocks are `gap` bytes apart."""
    blocks, stride = total // (layers * page), layers * page + gap
    size = blocks * stride
    pages = [Page(n * page, stride, page, n * page, 0, size) for n in range(layers)]
    return Layout(name, pages, blocks, size)


class Memory:
    """The memory and the copier of an engine. RuntimeError when a copy or the driver fails.

    count: slots. host: address of slot 0. file: descriptor of the shared memory.
    """

    def __init__(
        self, driver: Driver, plane: NativePlane, layout: Layout, file: int | None = None
    ) -> None:
        """file: the shared memory of another process, which stays the caller's. None makes one."""
        self.driver, self.layout = driver, layout
        self.kv = driver.allocate(layout.kv_bytes)
        moved = [
            page._replace(address=self.kv + page.address, limit=self.kv + page.limit)
            for page in layout.pages
        ]
        self.pages = Pages(moved, layout.blocks, "cuda:0", grouped=layout.grouped)
        self.count = layout.blocks * (self.pages.groups if layout.grouped else 1)
        self.slot = self.pages.share_bytes
        ready = extent_of(self.count, self.slot)
        self.file = shared_memory(ready["file_bytes"]) if file is None else os.dup(file)
        self.extents: Extents = plane.extents(lambda extent: None, Extent.unmap)
        self.extents.add(ready, os.dup(self.file))
        self.host = self.extents.find(0, 0).data
        self.mover = Mover(plane.lib, Plan(plane.lib, self.pages), driver)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        counters = dict.fromkeys(COUNTERS.split(), 0)
        self._copier = NativeCopier(
            self.mover.plan, self.mover, self.extents, counters, self._wake, 1
        )
        self._jobs = self._left = 0
        self._failed = ""
        self._pinned: list[tuple[int, int]] = []

    def pin(self) -> float:
        """Pins the slots in the pieces of the connector. Returns GB/s."""
        began = time.perf_counter()
        for piece in pieces_of(self.extents.find(0, 0)):
            self.mover.pin(*piece)
            self._pinned.append(piece)
        return self.count * self.slot / (time.perf_counter() - began) / 1e9

    def ids(self, seed: int) -> list[list[int]]:
        """All blocks of each group in random order."""
        rng, blocks = random.Random(seed), range(self.layout.blocks)
        return [rng.sample(blocks, len(blocks)) for _ in range(self.pages.groups)]

    def begin(self, store: bool, ids: Ids, fence: int | None = None, first: int = 0) -> None:
        """Begins copies of these blocks, from slot `first` on. fence: the copies come behind it."""
        parts = [(ALL_GROUPS, ids, first)]
        if self.layout.grouped:
            parts = [(g, [one], g * self.layout.blocks) for g, one in enumerate(ids)]
        for group, lists, slot in parts:
            for at in range(0, len(lists[0]), JOB_SLOTS):
                some = [one[at : at + JOB_SLOTS] for one in lists]
                slots = pack_slots([Slot(0, slot + at + n, 0) for n in range(len(some[0]))])
                blocks = pack_u32([block for one in some for block in one])
                self._jobs += 1
                self._left += 1
                groups = self.pages.groups
                self._copier.add(CopyJob(self._jobs, store, slots, blocks, groups, fence, group))

    def finish(self) -> None:
        """Waits for the copies of begin(). RuntimeError when none ends within a minute."""
        if not self._wait(STALL_SECONDS):
            raise RuntimeError(f"a copy does not end within {STALL_SECONDS} s")

    def _wait(self, seconds: float) -> bool:
        """Waits for the copies of begin(). False when none ended for `seconds`."""
        until = time.monotonic() + seconds
        while self._left:
            for number, ok in self._copier.step():
                self._left -= 1
                until = time.monotonic() + seconds
                if not ok:
                    self._failed = self._failed or f"copy {number} failed"
            if self._left and time.monotonic() > until:
                return False
            if self._left:
                self._copier.wait(-1, max(0.0, until - time.monotonic()), None)
                take_wakes(self._wake)
        failed, self._failed = self._failed, ""
        if failed:
            raise RuntimeError(failed)
        return True

    def copy(self, store: bool, ids: Ids) -> float:
        """Copies all slots. Returns GB/s."""
        began = time.perf_counter()
        self.begin(store, ids)
        self.finish()
        return self.count * self.slot / (time.perf_counter() - began) / 1e9

    def check(self, patience: float | None = None) -> None:
        """Stores blocks, loads them elsewhere, and compares every byte of the KV.

        patience: each copy is asked for behind a step of the engine that writes the same blocks,
        and must not end in these seconds, in which the step does not run.
        """
        rng, size = random.Random(self._jobs), self.layout.kv_bytes
        data, noise = random_bytes(rng, size), random_bytes(rng, size)
        sources, targets = self.ids(self._jobs + 1), self.ids(self._jobs + 2)
        for store, ids, content in ((True, sources, data), (False, targets, noise)):
            if patience is None:
                self.driver.write(self.kv, content)
                self.copy(store, ids)
            else:
                self._copy_behind_a_step(store, ids, content, patience)
        want = bytearray(noise)
        for (_, source, n), (_, target, _) in zip(self.runs(sources), self.runs(targets)):
            want[target : target + n] = data[source : source + n]
        self.compare(want)

    def _copy_behind_a_step(self, store: bool, ids: Ids, content: bytes, patience: float) -> None:
        aside = self.driver.allocate(len(content))
        try:
            self.driver.write(aside, content)
            let_run = self.driver.step(self.kv, aside, len(content))
            try:
                fence = self.mover.fence()
                self.begin(store, ids, fence)
                self.mover.drop(fence)
                left = self._left
                self._wait(patience)
                early = left - self._left
            finally:
                let_run()
            self.finish()
            self.driver.call("cuStreamSynchronize", self.driver.stream)
        finally:
            self.driver.free(aside)
        if early:
            raise Wrong(f"{early} of {left} copies ended before the step that they follow")

    def runs(self, ids: Ids) -> Iterator[tuple[int, int, int]]:
        """Offset in the slots, offset in the KV, and bytes of each run of these blocks."""
        for page in self.pages.pages:
            first = page.group * self.layout.blocks if self.layout.grouped else 0
            for n, block in enumerate(ids[page.group]):
                at = (first + n) * self.slot + page.offset
                yield at, page.address - self.kv + block * page.stride, page.bytes

    def compare(self, want: bytes | bytearray) -> None:
        """Compares the KV. Wrong names the first difference."""
        same_bytes("the KV", self.driver.read(self.kv, len(want)), want)

    def slots(self, first: int, count: int) -> bytes:
        """The bytes of some slots."""
        return ctypes.string_at(self.host + first * self.slot, count * self.slot)

    def close(self) -> None:
        """Frees everything. RuntimeError when memory cannot be unpinned."""
        self._copier.close()
        try:
            for address, _ in self._pinned:
                self.mover.unpin(address)
        finally:
            self.mover.close()
            self.extents.close()
            os.close(self._wake)
            os.close(self.file)
            self.driver.free(self.kv)


def extent_of(slots: int, slot_bytes: int) -> dict[str, int]:
    """The announcement of an extent with these slots, as an agent's."""
    header = -(-8 * slots // mmap.PAGESIZE) * mmap.PAGESIZE
    return {
        "extent": 0,
        "slots": slots,
        "slot_bytes": slot_bytes,
        "data_offset": header,
        "file_bytes": header + slots * slot_bytes,
    }


def shared_memory(size: int) -> int:
    """A descriptor of new shared memory."""
    file = os.memfd_create("blockyard-test-gpu")
    os.ftruncate(file, size)
    return file


def random_bytes(rng: random.Random, size: int) -> bytes:
    """Random bytes. One call of randbytes() makes less than 256 MiB."""
    step = 16 << 20
    return b"".join(rng.randbytes(min(step, size - at)) for at in range(0, size, step))


def same_bytes(what: str, got: bytes, want: bytes | bytearray) -> None:
    """Wrong when the bytes differ."""
    if got == want:
        return
    step = 4096
    at = next(n for n in range(0, len(want), step) if got[n : n + step] != want[n : n + step])
    at += next(n for n in range(step) if got[at + n : at + n + 1] != want[at + n : at + n + 1])
    raise Wrong(f"{what}: wrong from byte {at} of {len(want)} on")
