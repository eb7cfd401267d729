"""A worker's KV memory (Pages), and the copies between it and slots (CopyEngine).

CpuMover copies KV in plain memory. NumpyMover falls back on CpuMover.
"""

from __future__ import annotations

import array
import ctypes
import logging
import os
import sys
import time
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

_log = logging.getLogger(__name__)

MAX_BLOCK_BYTES = 256 << 20


class GeometryError(ValueError):
    """Pages that do not fit their memory or their slot, or a block id outside the pool."""


class Page(NamedTuple):
    """One run of bytes of each block. Block b has its `bytes` bytes at address + b * stride.

    offset: the run's begin in the worker's share of a slot. group: index of the KV group whose
    block ids address the run. limit: end address of the memory that has the run.
    """

    address: int
    stride: int
    bytes: int
    offset: int
    group: int
    limit: int


class Pages:
    """The checked KV memory of one worker. Every block lies inside its memory and its share.

    pages: runs that are adjacent in memory and in the slot are joined. blocks: number of blocks in
    each group. groups: number of KV groups. device: "cpu" or "cuda:N". share_offset: begin of the
    worker's share in a slot. share_bytes: length of the share.

    Without grouped, a slot has the block of every group, one behind the other. With grouped, a slot
    has a block of one group. Then each group's pages begin at offset 0, the share is as long as the
    largest group's, and a copy has blocks of one group and empty lists for the others.
    """

    def __init__(
        self,
        pages: Iterable[Sequence[int]],
        blocks: int,
        device: str = "cpu",
        share_offset: int = 0,
        grouped: bool = False,
    ) -> None:
        """pages: Page, or tuples of the same fields. GeometryError names the wrong field."""
        self.blocks = blocks
        self.grouped = grouped
        self.device = device
        self.share_offset = share_offset
        ordered = sorted(
            (Page(*page) for page in pages),
            key=lambda page: (page.group if grouped else 0, page.offset),
        )
        if not ordered or blocks < 1:
            raise GeometryError(f"{len(ordered)} pages of {blocks} blocks, want at least 1 of each")
        self._sizes: dict[int, int] = {}  # bytes of a slot's content: by group, or under 0
        for page in ordered:
            place = page.group if grouped else 0
            self._check(page, self._sizes.get(place, 0))
            self._sizes[place] = self._sizes.get(place, 0) + page.bytes
        self.share_bytes = max(self._sizes.values())
        if share_offset < 0 or share_offset + self.share_bytes > MAX_BLOCK_BYTES:
            raise GeometryError(
                f"share: {share_offset} and {self.share_bytes} bytes are not in "
                f"0..{MAX_BLOCK_BYTES}"
            )
        self.groups = 1 + max(page.group for page in ordered)
        if {page.group for page in ordered} != set(range(self.groups)):
            raise GeometryError(f"group: one of 0..{self.groups - 1} has no page")
        self.pages = _joined(ordered)

    def copied_bytes(self, blocks: Sequence[Sequence[int]]) -> int:
        """Bytes that a copy with these block ids has for each slot."""
        if not self.grouped:
            return self.share_bytes
        return sum(self._sizes[group] for group, ids in enumerate(blocks) if ids)

    def _check(self, page: Page, end: int) -> None:
        """end: where the pages before end in the slot."""
        address, stride, size, offset, group, limit = page
        if address < 1 or size < 1 or group < 0:
            raise GeometryError(f"{page}: address, bytes and group must be 1, 1 and 0 or more")
        if offset != end:
            raise GeometryError(f"{page}: offset, want {end}: no gap, no overlap")
        if self.blocks > 1 and stride < size:
            raise GeometryError(f"{page}: stride {stride}, so that neighbouring blocks overlap")
        if (end := address + (self.blocks - 1) * stride + size) > limit:
            raise GeometryError(f"{page}: block {self.blocks - 1} ends {end - limit} bytes beyond")

    def check_blocks(self, blocks: Sequence[Sequence[int]], count: int) -> None:
        """Raises GeometryError unless each copied group has `count` block ids of the pool."""
        if len(blocks) != self.groups:
            raise GeometryError(f"block ids for {len(blocks)} groups, want {self.groups}")
        if self.grouped and (copied := sum(map(bool, blocks))) != 1:
            raise GeometryError(f"block ids of {copied} groups, want 1: a slot has one group's")
        for group, ids in enumerate(blocks):
            if self.grouped and not ids:
                continue
            if len(ids) != count:
                raise GeometryError(f"group {group}: {len(ids)} block ids for {count} slots")
            if ids and not 0 <= min(ids) <= max(ids) < self.blocks:
                raise GeometryError(
                    f"group {group}: block {max(ids)} or {min(ids)}, the pool has {self.blocks}"
                )

    def runs(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], largest: int = MAX_BLOCK_BYTES
    ) -> tuple[list[int], list[int], list[int]]:
        """The runs of a copy: device addresses, slot addresses and sizes of at most `largest`.

        slots: addresses. blocks: one list of block ids for each group. Groups with an empty list
        are not copied.
        """
        self.check_blocks(blocks, len(slots))
        device: list[int] = []
        host: list[int] = []
        sizes: list[int] = []
        for address, stride, size, offset, group, _ in self.pages:
            if not blocks[group]:
                continue
            offset += self.share_offset
            for start in range(0, size, largest):
                device += [address + start + stride * block for block in blocks[group]]
                host += [slot + offset + start for slot in slots]
                sizes += [min(largest, size - start)] * len(slots)
        return device, host, sizes


def _joined(pages: list[Page]) -> list[Page]:
    """The pages, with runs joined that are adjacent in slot and memory."""
    out = [pages[0]]
    for page in pages[1:]:
        last = out[-1]
        if (
            page.address == last.address + last.bytes
            and (page.stride, page.group) == (last.stride, last.group)
            and last.bytes + page.bytes <= last.stride
        ):
            out[-1] = last._replace(
                bytes=last.bytes + page.bytes, limit=min(last.limit, page.limit)
            )
        else:
            out.append(page)
    return out


class Copy(Protocol):
    """A copy in flight on a device."""

    def done(self) -> bool:
        """Whether the copy has ended. Raises an exception when the copy failed."""


class CopyEngine(Protocol):
    """Copies for a WorkerSession. The session's thread calls load() and store(), the engine's
    thread fence(), and the pinner's thread on_map() and on_unmap().

    load_bytes, store_bytes: limit for one call, at least one block. Between calls the session
    checks for more urgent loads. needs_fence: a load must wait for the fence of the step that
    names the load, because launched work of the engine may still access its blocks. pins: whether
    on_map() pins, which makes copies faster. False: memory needs no pinning.
    """

    load_bytes: int
    store_bytes: int
    needs_fence: bool
    pins: bool

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> Copy | None:
        """Copies slots (addresses) into device blocks (see Pages.runs).

        The copy begins after the fence. None: the copy has ended on return.
        """

    def store(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> Copy | None:
        """Copies device blocks into slots. Otherwise as load()."""

    def fence(self) -> object | None:
        """A fence behind all work that the engine's thread has launched. None: that work has
        ended. Only the engine's thread may call it."""

    def on_map(self, address: int, size: int) -> bool:
        """Pins a piece of an extent, which has whole slots. Copies may use the piece meanwhile.

        False: the piece is not pinned, and is not for on_unmap().
        """

    def on_unmap(self, address: int, size: int) -> None:
        """Unpins a piece that no copy uses. After an exception the piece must stay mapped."""


def mover_for(pages: Pages) -> CopyEngine:
    """The copy engine for the device of the pages. GeometryError for an unknown device."""
    if pages.device == "cpu":
        if sys.modules.get("numpy") is None:  # import numpy only if the engine has done so
            return CpuMover(pages)
        from .numpy_mover import NumpyMover

        return NumpyMover(pages)
    if pages.device.startswith("cuda"):
        from .torch_mover import CudaMover

        return CudaMover(pages)
    raise GeometryError(f"device: no copies for {pages.device!r}, want cpu or cuda:N")


_libc = ctypes.CDLL(None, use_errno=True)
_process_vm_readv = _libc.process_vm_readv
_process_vm_readv.restype = ctypes.c_ssize_t
_process_vm_readv.argtypes = (
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_void_p,
    ctypes.c_ulong,
    ctypes.c_ulong,
)
# PYFUNCTYPE keeps the interpreter lock during the call.
_memmove = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(_libc.memmove, ctypes.c_void_p).value
)

_MAX_VECTOR = 1024  # pieces that the kernel takes in one call
_PIECE = 2 << 20  # larger runs are split, so that no piece keeps the lock for long
_TURN = 1.25e-3  # seconds of copying before a pause; with one more piece below 2 ms
_PAUSE = 50e-6  # a thread that waits for the lock wakes up and takes it in this time


class CpuMover:
    """Copies between slots and KV in plain memory, in the calling thread.

    A thread that releases the interpreter lock may wait 5 ms to get it back while another thread
    computes in Python. A request waits for a load. So a load keeps the lock, copies at the speed of
    memcpy, and pauses now and then. No request waits for a store. So a store has the kernel copy
    many pages in one call without the lock, at a third of the speed. bench/mover.py measures both.
    """

    load_bytes = 64 << 20
    store_bytes = 2 << 20
    needs_fence = False
    pins = False

    def __init__(self, pages: Pages) -> None:
        self._pages = pages
        self._pid = os.getpid()
        self._vectored = True

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        """See CopyEngine."""
        runs = zip(*self._pages.runs(slots, blocks, _PIECE))
        clock = time.perf_counter
        until = clock() + _TURN
        for to, source, size in runs:
            if clock() >= until:
                time.sleep(_PAUSE)
                until = clock() + _TURN
            _memmove(to, source, size)

    def store(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None = None
    ) -> None:
        """See CopyEngine."""
        source, to, sizes = self._pages.runs(slots, blocks, _PIECE)
        for at in range(0, len(sizes), _MAX_VECTOR):
            part = slice(at, at + _MAX_VECTOR)
            if not (self._vectored and self._copy_vector(to[part], source[part], sizes[part])):
                for piece in zip(to[part], source[part], sizes[part]):
                    _memmove(*piece)

    def fence(self) -> None:
        """None: work on a CPU has ended when its call returns."""

    def on_map(self, address: int, size: int) -> bool:
        """False: plain memory needs no pinning."""
        return False

    def on_unmap(self, address: int, size: int) -> None:
        """Plain memory needs no unpinning."""

    def _copy_vector(self, to: list[int], source: list[int], sizes: list[int]) -> bool:
        """Copies with one process_vm_readv. False, now and later, where a sandbox forbids it."""
        count = len(sizes)
        local, remote = _vector(to, sizes), _vector(source, sizes)
        moved = _process_vm_readv(
            self._pid, local.buffer_info()[0], count, remote.buffer_info()[0], count, 0
        )
        if moved != sum(sizes):
            _log.info(
                "process_vm_readv returned %d, errno %d: stores use memmove",
                moved,
                ctypes.get_errno(),
            )
            self._vectored = False
        return self._vectored


def _vector(addresses: list[int], sizes: list[int]) -> array.array[int]:
    """The pieces as the kernel's iovec array: address and size of each piece."""
    vector = array.array("Q", bytes(16 * len(sizes)))
    vector[0::2] = array.array("Q", addresses)
    vector[1::2] = array.array("Q", sizes)
    return vector
