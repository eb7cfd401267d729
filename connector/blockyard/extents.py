"""The agent's memory in this process: mapped extents and their generation words."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .packed import Slot, pack_slots, unpack_slots

__all__ = ["Extent", "ExtentError", "Extents", "Slot", "pack_slots", "unpack_slots"]

# 1 TiB at the largest extent size, and below the kernel's usual limit of mappings per process.
MAX_EXTENTS = 16384


_PROT_READ_WRITE = 3
_MAP_SHARED = 1
_MADV_DONTFORK = 10
_MADV_POPULATE_WRITE = 23
_MAP_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _map(fd: int, size: int) -> int:
    """Maps a file's first `size` bytes as shared memory. Returns the address.

    The standard library's mmap keeps a descriptor open for each mapping. A child process that the
    engine forks has no connection, so the child must not have the memory either.
    """
    address = _libc.mmap(None, size, _PROT_READ_WRITE, _MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {size} bytes")
    _libc.madvise(address, size, _MADV_DONTFORK)  # advice only: an old kernel may refuse
    return address


class ExtentError(ValueError):
    """An extent that cannot be mapped as announced, or a slot without a mapping."""


class Extent:
    """One mapped file. address: its first byte. words: its generation words.

    populated: bytes that this process has touched; copies there cause no page fault. file: device
    and inode, unique while the file is mapped.
    """

    def __init__(self, ready: dict[str, Any], fd: int) -> None:
        self.ready = ready
        self.number: int = ready["extent"]
        self.slots: int = ready["slots"]
        self.slot_bytes: int = ready["slot_bytes"]
        self.data_offset: int = ready["data_offset"]
        self.file_bytes: int = ready["file_bytes"]
        stat = os.fstat(fd)
        # Access to a page beyond the end of the file kills the process.
        if stat.st_size < self.file_bytes:
            raise ExtentError(
                f"extent {self.number} file_bytes: {self.file_bytes}, but the file has "
                f"{stat.st_size}"
            )
        self.file = (stat.st_dev, stat.st_ino)
        self.populated = 0
        need = self.data_offset + self.slots * self.slot_bytes
        if need > self.file_bytes or 8 * self.slots > self.data_offset:
            raise ExtentError(
                f"extent {self.number}: {self.slots} slots of {self.slot_bytes} bytes from "
                f"{self.data_offset} on do not fit {self.file_bytes} bytes"
            )
        self.address = _map(fd, self.file_bytes)
        self.data = self.address + self.data_offset  # address of slot 0
        # The file is little-endian, like every platform of the agent.
        self.words = (ctypes.c_uint64 * self.slots).from_address(self.address)

    def same(self, ready: dict[str, Any], fd: int) -> bool:
        """Whether this mapping has the announced file and geometry."""
        stat = os.fstat(fd)
        return (
            self.ready == ready
            and self.file == (stat.st_dev, stat.st_ino)
            and stat.st_size >= self.file_bytes
        )

    def populate(self, size: int) -> None:
        """Touches the next size bytes, or up to the end. The agent has allocated this memory."""
        size = min(size, self.file_bytes - self.populated)
        if _libc.madvise(self.address + self.populated, size, _MADV_POPULATE_WRITE):
            size = self.file_bytes  # an old kernel refuses: the copies take the page faults
        self.populated += size

    def unmap(self) -> None:
        """Unmaps the extent. Its memory and words must not be used any more."""
        address, self.address = self.address, 0
        if address and _libc.munmap(address, self.file_bytes):
            raise OSError(ctypes.get_errno(), f"extent {self.number}: munmap")


class Extents:
    """Every extent of a session, by number. Thread-safe.

    add() calls on_map with every new mapping and raises the errors of on_map. release_old() and
    close() call on_unmap with every extent to unmap. on_unmap calls Extent.unmap(), at once or
    later.
    """

    def __init__(
        self,
        slot_bytes: int = 0,
        on_map: Callable[[Extent], None] | None = None,
        on_unmap: Callable[[Extent], None] = Extent.unmap,
        table: dict[int, Extent] | None = None,
    ) -> None:
        """slot_bytes: from WELCOME; extents with other slots are refused. 0 allows any size.

        table: an empty dict for the extents by number, which only this object changes.
        """
        self.slot_bytes = slot_bytes
        self._on_map = on_map
        self._on_unmap = on_unmap
        self._lock = threading.Lock()
        self.table: dict[int, Extent] = {} if table is None else table
        self._old: list[Extent] = []
        self._session: set[int] = set()  # numbers announced since begin_session()
        self._identity = (0, 0)
        self.changes = 0  # changes of the answer of mapped()
        self.announced = 0  # extents announced since the start

    def __len__(self) -> int:
        return len(self.table)

    def __contains__(self, number: int) -> bool:
        return number in self.table

    def begin_session(self, slot_bytes: int, identity: tuple[int, int] = (0, 0)) -> None:
        """Begins a session, in which the agent announces its extents anew.

        slot_bytes and identity (nonce and session) are from WELCOME. Extents of the last session
        stay mapped until retire(), because its jobs may still arrive. Extents of older sessions go
        with the next release_old(). A session without any announced extent changes nothing.
        """
        with self._lock:
            if self._session:
                self._retire()
            self._session = set()
            self._identity = identity
            self.changes += 1
            self.slot_bytes = slot_bytes

    def mapped(self) -> tuple[tuple[int, int], list[int]]:
        """The session's identity and the sorted numbers of its mapped extents."""
        with self._lock:
            return self._identity, sorted(self._session)

    def retire(self) -> None:
        """Gives the extents of earlier sessions to release_old(): their jobs cannot arrive now."""
        with self._lock:
            self._retire()

    @property
    def stale(self) -> bool:
        """Whether extents of earlier sessions are mapped."""
        return len(self.table) > len(self._session)

    def _retire(self) -> None:
        for number in self.table.keys() - self._session:
            self._old.append(self.table.pop(number))

    def add(self, ready: dict[str, Any], fd: int) -> None:
        """Maps the extent of an EXTENT_READY. Closes fd, even on failure.

        A mapping of the same file and geometry is kept: a restarted agent announces all its memory
        again. A known number with another geometry gets a new mapping. The old mapping stays until
        release_old(), because copies may use it. ExtentError or OSError when mapping fails.
        """
        try:
            if self._keep(ready, fd):
                return
            extent = self._map(ready, fd)
        finally:
            os.close(fd)
        try:
            if self._on_map is not None:
                self._on_map(extent)
        except BaseException:
            extent.unmap()
            raise
        with self._lock:
            old = self.table.get(extent.number)
            if old is not None:
                self._old.append(old)
            self.table[extent.number] = extent
            self._session.add(extent.number)
            self.changes += 1
            self.announced += 1

    def _keep(self, ready: dict[str, Any], fd: int) -> bool:
        """Adds an extent that is mapped already to the session. False: the extent is new."""
        number = ready["extent"]
        with self._lock:
            extent = self.table.get(number)
            if extent is None or self.slot_bytes not in (0, extent.slot_bytes):
                return False
            if not extent.same(ready, fd):
                return False
            self._session.add(number)
            self.changes += 1
            self.announced += 1
            return True

    def _map(self, ready: dict[str, Any], fd: int) -> Extent:
        number = ready["extent"]
        if self.slot_bytes and ready["slot_bytes"] != self.slot_bytes:
            raise ExtentError(
                f"extent {number} slot_bytes: {ready['slot_bytes']}, but the session's is "
                f"{self.slot_bytes}"
            )
        with self._lock:
            if len(self.table) >= MAX_EXTENTS and number not in self.table:
                raise ExtentError(f"extent {number}: more than {MAX_EXTENTS} extents")
        extent = Extent(ready, fd)
        with self._lock:
            old = self.table.get(number)
            if old is None or old.file == extent.file:
                return extent
            # The agent has replaced all its memory. A job may still name a slot of the old file by
            # this number, so neither the old nor the new mapping may serve it.
            self._old.append(self.table.pop(number))
            self._session.discard(number)
            self.changes += 1
        extent.unmap()
        raise ExtentError(f"extent {number}: another file than before")

    def populate(self, size: int) -> bool:
        """Touches up to `size` untouched bytes of this session's extents. False when none is left.

        Extents of earlier sessions are not touched: the agent may have freed them, and a touch
        would allocate them again.
        """
        for number in self._session:
            extent = self.table[number]
            if extent.populated < extent.file_bytes:
                extent.populate(size)
                return True
        return False

    def release_old(self) -> None:
        """Unmaps the replaced and retired extents. No copy may use them."""
        with self._lock:
            old, self._old = self._old, []
        for extent in old:
            self._on_unmap(extent)

    def find(self, slot_extent: int, slot_index: int) -> Extent:
        """The mapping of a slot. ExtentError without one."""
        extent = self.table.get(slot_extent)
        if extent is None:
            raise ExtentError(f"slot {slot_index} of extent {slot_extent}: not mapped")
        if not 0 <= slot_index < extent.slots:
            raise ExtentError(
                f"slot {slot_index} of extent {slot_extent}: it has {extent.slots} slots"
            )
        return extent

    def address(self, slot_extent: int, slot_index: int) -> int:
        """Address of a slot's first byte. The slot has slot_bytes bytes."""
        extent = self.find(slot_extent, slot_index)
        return extent.data + slot_index * extent.slot_bytes

    def addresses(self, slots: Sequence[Slot], need: int) -> list[int]:
        """address() of every slot. ExtentError when a slot has less than `need` bytes."""
        out = []
        for number, index, _ in slots:
            extent = self.find(number, index)
            if need > extent.slot_bytes:
                raise ExtentError(
                    f"slot {index} of extent {number}: {extent.slot_bytes} bytes, want {need}"
                )
            out.append(extent.data + index * extent.slot_bytes)
        return out

    def generations_match(self, slots: Sequence[Slot]) -> int:
        """How many leading slots match their generation words; len(slots) when all match.

        A slot without a mapping does not match.
        """
        current = self.table
        for n, (number, index, generation) in enumerate(slots):
            extent = current.get(number)
            if extent is None or index >= extent.slots or extent.words[index] != generation:
                return n
        return len(slots)

    def close(self) -> None:
        """Unmaps all extents. No copy may use them."""
        with self._lock:
            gone = [*self._old, *self.table.values()]
            self.table.clear()
            self._old, self._session = [], set()
        for extent in gone:
            self._on_unmap(extent)
