"""Where a worker's KV lies, and how its bytes get from there into slots and back.

Pages describes the memory; a CopyEngine copies. CpuMover is the one for KV in plain memory, and
what NumpyMover falls back on.
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
    """Pages that do not fit their memory or their slot, or a block that the pool has not."""


class Page(NamedTuple):
    """One run of bytes of each block: block b has `bytes` of them at address + b * stride.

    offset: where they lie in the worker's share of a slot. group: index of the KV group whose
    block ids address it. limit: address behind the last byte of the memory that it is part of.
    """

    address: int
    stride: int
    bytes: int
    offset: int
    group: int
    limit: int


class Pages:
    """The KV of one worker, checked: no block has a byte outside of its memory or of the share.

    pages: runs that lie one behind the other in memory and in the slot are one. blocks: in each
    group. groups: their number. device: "cpu" or "cuda:N". share_offset: where the worker's share
    begins in a slot; share_bytes: how long it is, the sum of the pages.
    """

    def __init__(
        self,
        pages: Iterable[Sequence[int]],
        blocks: int,
        device: str = "cpu",
        share_offset: int = 0,
    ) -> None:
        """pages: Page, or tuples of the same fields. GeometryError names what does not fit."""
        self.blocks = blocks
        self.device = device
        self.share_offset = share_offset
        ordered = sorted((Page(*page) for page in pages), key=lambda page: page.offset)
        if not ordered or blocks < 1:
            raise GeometryError(f"{len(ordered)} pages of {blocks} blocks, want at least 1 of each")
        self.share_bytes = 0
        for page in ordered:
            self._check(page)
            self.share_bytes += page.bytes
        if share_offset < 0 or share_offset + self.share_bytes > MAX_BLOCK_BYTES:
            raise GeometryError(
                f"share: {share_offset} and {self.share_bytes} bytes are not in "
                f"0..{MAX_BLOCK_BYTES}"
            )
        self.groups = 1 + max(page.group for page in ordered)
        if {page.group for page in ordered} != set(range(self.groups)):
            raise GeometryError(f"group: one of 0..{self.groups - 1} has no page")
        self.pages = _joined(ordered)

    def _check(self, page: Page) -> None:
        address, stride, size, offset, group, limit = page
        if address < 1 or size < 1 or group < 0:
            raise GeometryError(f"{page}: address, bytes and group must be 1, 1 and 0 or more")
        if offset != self.share_bytes:
            raise GeometryError(f"{page}: offset, want {self.share_bytes}: no gap, no overlap")
        if self.blocks > 1 and stride < size:
            raise GeometryError(f"{page}: stride {stride}, so that neighbouring blocks overlap")
        if (end := address + (self.blocks - 1) * stride + size) > limit:
            raise GeometryError(f"{page}: block {self.blocks - 1} ends {end - limit} bytes beyond")

    def check_blocks(self, blocks: Sequence[Sequence[int]], count: int) -> None:
        """GeometryError unless there are `count` ids for each group, all of the pool."""
        if len(blocks) != self.groups:
            raise GeometryError(f"block ids for {len(blocks)} groups, want {self.groups}")
        for group, ids in enumerate(blocks):
            if len(ids) != count:
                raise GeometryError(f"group {group}: {len(ids)} block ids for {count} slots")
            if ids and not 0 <= min(ids) <= max(ids) < self.blocks:
                raise GeometryError(
                    f"group {group}: block {max(ids)} or {min(ids)}, the pool has {self.blocks}"
                )

    def runs(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], largest: int = MAX_BLOCK_BYTES
    ) -> tuple[list[int], list[int], list[int]]:
        """What a copy between slots (their addresses) and blocks (ids for each group) consists
        of: device addresses, slot addresses and sizes of its runs, none above `largest`."""
        self.check_blocks(blocks, len(slots))
        device: list[int] = []
        host: list[int] = []
        sizes: list[int] = []
        for address, stride, size, offset, group, _ in self.pages:
            offset += self.share_offset
            for start in range(0, size, largest):
                device += [address + start + stride * block for block in blocks[group]]
                host += [slot + offset + start for slot in slots]
                sizes += [min(largest, size - start)] * len(slots)
        return device, host, sizes


def _joined(pages: list[Page]) -> list[Page]:
    """The pages, with neighbours in slot and memory made one."""
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
    """A copy that a device makes by itself."""

    def done(self) -> bool:
        """Whether it has ended; an exception when it failed."""


class CopyEngine(Protocol):
    """What a WorkerSession copies with. One thread copies, the engine's calls fence(), and a third
    one on_map() and on_unmap().

    load_bytes, store_bytes: how much a call should copy at most (a block is the least); between
    calls the session looks for loads that are more urgent. needs_fence: the engine may have
    launched work that has yet to touch the blocks of a load, so that no load may begin without
    the fence of the step that names it.
    """

    load_bytes: int
    store_bytes: int
    needs_fence: bool

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> Copy | None:
        """Copies slots, given by their addresses, into device blocks, given by one list of ids
        for each group, after what fence stands for. None when the bytes are there on return."""

    def store(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> Copy | None:
        """Copies device blocks into slots. Otherwise as load()."""

    def fence(self) -> object | None:
        """Called by the engine's thread: everything that it has launched until now. None when
        what was launched has ended."""

    def on_map(self, address: int, size: int) -> None:
        """Pins a piece of an extent: whole slots, of which copies may be under way."""

    def on_unmap(self, address: int, size: int) -> None:
        """Ends what on_map() of the piece began. No copy uses the piece any more. An exception
        when the device does not let go of it: then it must stay mapped."""


def mover_for(pages: Pages) -> CopyEngine:
    """The copy engine for the device that the pages are on. GeometryError when there is none."""
    if pages.device == "cpu":
        if sys.modules.get("numpy") is None:  # the engine does without it, and so does this
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
# Keeps the interpreter's lock, as no other way of calling it does.
_memmove = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)(
    ctypes.cast(_libc.memmove, ctypes.c_void_p).value
)

_MAX_VECTOR = 1024  # pieces that the kernel takes in one call
_PIECE = 2 << 20  # larger runs are cut, so that no piece keeps the lock for long
_TURN = 1.25e-3  # seconds that a load copies before others get the lock: below 2 ms with a piece
_PAUSE = 50e-6  # long enough for a thread that waits for the lock to wake up and take it


class CpuMover:
    """Copies between slots and KV in plain memory, in the calling thread.

    A thread that lets go of the interpreter's lock for every page gets it back only after up to
    5 ms each time while another thread computes in Python. So a load, for which a request waits,
    keeps the lock and copies at the speed of memcpy, with a pause from time to time. A store, for
    which nobody waits, has the kernel copy many pages in one call without the lock: at a third of
    the speed, but the engine does not notice. bench/mover.py measures both.
    """

    load_bytes = 64 << 20
    store_bytes = 2 << 20
    needs_fence = False

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
        """What a CPU was told to compute, it has computed."""

    def on_map(self, address: int, size: int) -> None:
        """Plain memory needs no pinning."""

    def on_unmap(self, address: int, size: int) -> None:
        """Nor its end."""

    def _copy_vector(self, to: list[int], source: list[int], sizes: list[int]) -> bool:
        """One call of the kernel's. False, from then on, where a sandbox forbids it."""
        count = len(sizes)
        local, remote = _vector(to, sizes), _vector(source, sizes)
        moved = _process_vm_readv(
            self._pid, local.buffer_info()[0], count, remote.buffer_info()[0], count, 0
        )
        if moved != sum(sizes):
            _log.info("process_vm_readv: %d bytes, errno %d: not used", moved, ctypes.get_errno())
            self._vectored = False
        return self._vectored


def _vector(addresses: list[int], sizes: list[int]) -> array.array[int]:
    """The kernel's list of pieces: address and size of each."""
    vector = array.array("Q", bytes(16 * len(sizes)))
    vector[0::2] = array.array("Q", addresses)
    vector[1::2] = array.array("Q", sizes)
    return vector
