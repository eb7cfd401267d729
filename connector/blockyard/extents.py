"""The agent's memory as this process sees it: mapped extents and their generation words."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

from .packed import Slot, pack_slots, unpack_slots

__all__ = ["Extent", "ExtentError", "Extents", "Slot", "pack_slots", "unpack_slots"]

# 1 TiB at the largest size, and below the kernel's usual limit of mappings per process.
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
    """Address of a shared mapping of a file's first bytes.

    The standard library's mmap would keep a descriptor open for each of a thousand extents. A
    child that the engine forks has no connection, so it must not have the memory either.
    """
    address = _libc.mmap(None, size, _PROT_READ_WRITE, _MAP_SHARED, fd, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), f"mmap of {size} bytes")
    _libc.madvise(address, size, _MADV_DONTFORK)  # advice: an old kernel may not take it
    return address


class ExtentError(ValueError):
    """An extent that cannot be mapped as announced, or a slot that no mapping has."""


class Extent:
    """One mapped file. address is where it begins, words its generation words.

    populated: how much of it this process has touched, so that copies there meet no page fault.
    file: device and inode, which nobody else has as long as it is mapped.
    """

    def __init__(self, ready: dict[str, Any], fd: int) -> None:
        self.ready = ready
        self.number: int = ready["extent"]
        self.slots: int = ready["slots"]
        self.slot_bytes: int = ready["slot_bytes"]
        self.data_offset: int = ready["data_offset"]
        self.file_bytes: int = ready["file_bytes"]
        stat = os.fstat(fd)
        # Touching a page behind the end of a file kills the process.
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
        # Little-endian in the file, as every platform is that the agent runs on.
        self.words = (ctypes.c_uint64 * self.slots).from_address(self.address)

    def same(self, ready: dict[str, Any], fd: int) -> bool:
        """Whether it is what is announced there already."""
        stat = os.fstat(fd)
        return (
            self.ready == ready
            and self.file == (stat.st_dev, stat.st_ino)
            and stat.st_size >= self.file_bytes
        )

    def populate(self, size: int) -> None:
        """Touches the next size bytes, or up to the end. The agent has put memory there."""
        size = min(size, self.file_bytes - self.populated)
        if _libc.madvise(self.address + self.populated, size, _MADV_POPULATE_WRITE):
            size = self.file_bytes  # an old kernel cannot: the copies will
        self.populated += size

    def unmap(self) -> None:
        """Ends the mapping. Nobody may use its memory any more, words included."""
        address, self.address = self.address, 0
        if address and _libc.munmap(address, self.file_bytes):
            raise OSError(ctypes.get_errno(), f"extent {self.number}: munmap")


class Extents:
    """Every extent of a session, by number. Thread-safe.

    on_map is called with every extent that was mapped; an error of on_map is add()'s. on_unmap is
    called with every extent that no copy uses any more, and calls its unmap(), at once or later.
    """

    def __init__(
        self,
        slot_bytes: int = 0,
        on_map: Callable[[Extent], None] | None = None,
        on_unmap: Callable[[Extent], None] = Extent.unmap,
    ) -> None:
        """slot_bytes is the session's (WELCOME); an extent that differs is refused. 0: any."""
        self.slot_bytes = slot_bytes
        self._on_map = on_map
        self._on_unmap = on_unmap
        self._lock = threading.Lock()
        self._current: dict[int, Extent] = {}
        self._old: list[Extent] = []
        self._session: set[int] = set()  # numbers announced since begin_session()
        self._identity = (0, 0)
        self.changes = 0  # how often what mapped() says has changed
        self.announced = 0  # how many extents were announced ever: tells whether one has come

    def __len__(self) -> int:
        return len(self._current)

    def __contains__(self, number: int) -> bool:
        return number in self._current

    def begin_session(self, slot_bytes: int, identity: tuple[int, int] = (0, 0)) -> None:
        """A new connection: its slots are slot_bytes apart, and it announces its extents anew.
        identity: nonce and session of its WELCOME.

        Extents that the session before it did not announce go with release_old(); those that it
        did stay, because jobs of that session may still be on their way, until retire(). A session
        that ended before it announced any changes nothing.
        """
        with self._lock:
            if self._session:
                self._retire()
            self._session = set()
            self._identity = identity
            self.changes += 1
            self.slot_bytes = slot_bytes

    def mapped(self) -> tuple[tuple[int, int], list[int]]:
        """The identity of the session, and the extents of it that are mapped, in order."""
        with self._lock:
            return self._identity, sorted(self._session)

    def retire(self) -> None:
        """No job of an earlier session comes any more: extents of those go with release_old()."""
        with self._lock:
            self._retire()

    @property
    def stale(self) -> bool:
        """Whether retire() would find any."""
        return len(self._current) > len(self._session)

    def _retire(self) -> None:
        for number in self._current.keys() - self._session:
            self._old.append(self._current.pop(number))

    def add(self, ready: dict[str, Any], fd: int) -> None:
        """Maps the extent of an EXTENT_READY and closes fd, also when it fails.

        What is mapped already, file and geometry alike, stays as it is: an agent that was started
        again announces all of its memory. A number that is known with another geometry gets the
        new mapping; the old one stays until release_old(), because copies may use it. ExtentError
        or OSError when the extent cannot be mapped.
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
            old = self._current.get(extent.number)
            if old is not None:
                self._old.append(old)
            self._current[extent.number] = extent
            self._session.add(extent.number)
            self.changes += 1
            self.announced += 1

    def _keep(self, ready: dict[str, Any], fd: int) -> bool:
        """Whether the extent is mapped already; then it is this session's."""
        number = ready["extent"]
        with self._lock:
            extent = self._current.get(number)
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
            if len(self._current) >= MAX_EXTENTS and number not in self._current:
                raise ExtentError(f"extent {number}: more than {MAX_EXTENTS} extents")
        extent = Extent(ready, fd)
        with self._lock:
            old = self._current.get(number)
            if old is None or old.file == extent.file:
                return extent
            # The agent's memory was thrown away as a whole and begins anew. Jobs that know the
            # old file by this number may still come: none of both may be used for them.
            self._old.append(self._current.pop(number))
            self._session.discard(number)
            self.changes += 1
        extent.unmap()
        raise ExtentError(f"extent {number}: another file than before")

    def populate(self, size: int) -> bool:
        """Touches up to size bytes of this session that were not touched yet. False when there are
        none. What a session has left may have been taken out: touching would allocate it again."""
        for number in self._session:
            extent = self._current[number]
            if extent.populated < extent.file_bytes:
                extent.populate(size)
                return True
        return False

    def release_old(self) -> None:
        """Lets go of the mappings that were replaced. No copy may use them."""
        with self._lock:
            old, self._old = self._old, []
        for extent in old:
            self._on_unmap(extent)

    def find(self, slot_extent: int, slot_index: int) -> Extent:
        """The mapping that has a slot; ExtentError when there is none."""
        extent = self._current.get(slot_extent)
        if extent is None:
            raise ExtentError(f"slot {slot_index} of extent {slot_extent}: not mapped")
        if not 0 <= slot_index < extent.slots:
            raise ExtentError(
                f"slot {slot_index} of extent {slot_extent}: it has {extent.slots} slots"
            )
        return extent

    def address(self, slot_extent: int, slot_index: int) -> int:
        """Address of a slot's first byte, slot_bytes of which are the slot's."""
        extent = self.find(slot_extent, slot_index)
        return extent.data + slot_index * extent.slot_bytes

    def addresses(self, slots: Sequence[Slot], need: int) -> list[int]:
        """address() of every slot. ExtentError when one has less than need bytes."""
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
        """How many leading slots have their generation in their word, so len(slots) if all.

        A slot that is not mapped has no generation.
        """
        current = self._current
        for n, (number, index, generation) in enumerate(slots):
            extent = current.get(number)
            if extent is None or index >= extent.slots or extent.words[index] != generation:
                return n
        return len(slots)

    def close(self) -> None:
        """Lets go of all mappings. No copy may use them."""
        with self._lock:
            gone = [*self._old, *self._current.values()]
            self._old, self._current, self._session = [], {}, set()
        for extent in gone:
            self._on_unmap(extent)
