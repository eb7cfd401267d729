"""Pins mapped extents for a device, in small pieces and on its own thread.

Pinning takes a tenth of a second for each gigabyte, and unpinning takes as long. Copies wait for
neither: they use an extent unpinned until it is pinned.
"""

from __future__ import annotations

import logging
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable

from .extents import Extent

_log = logging.getLogger(__name__)

# The driver and the kernel hold locks while they pin a piece. This size takes 1.6 ms.
PIECE_BYTES = 16 << 20
_REST_SECONDS = 0.2e-3  # pause between pieces, in which other threads get those locks
_POLL_SECONDS = 0.02  # time between two looks at all_pinned while the thread runs


class _Area:
    """An extent with its pieces (address and bytes). left: unpinned pieces, the last one first.

    partial: not all pieces are pinned.
    """

    __slots__ = ("extent", "left", "partial", "pieces", "pinned", "released", "stuck")

    def __init__(self, extent: Extent) -> None:
        self.extent = extent
        self.left = pieces_of(extent)[::-1]
        self.pieces = len(self.left)
        self.partial = self.pieces > 0
        self.pinned: list[tuple[int, int]] = []
        self.released = False
        self.stuck = False  # a piece could not be unpinned


def pieces_of(extent: Extent) -> list[tuple[int, int]]:
    """Address and bytes of the pieces of an extent.

    A piece has whole slots, because a device cannot copy one run of bytes from two pieces. A piece
    has whole pages, because a page can be pinned only once. Slots that share pages make one piece.
    """
    data, slot, slots = extent.data, extent.slot_bytes, extent.slots
    if (data | slot) % mmap.PAGESIZE:
        return [(extent.address, extent.file_bytes)]
    step = max(1, PIECE_BYTES // slot)
    firsts = range(0, slots, step)
    return [(data + first * slot, min(step, slots - first) * slot) for first in firsts]


class Pinner:
    """Calls on_map for the pieces of each extent, and on_unmap before the extent is unmapped.

    The pinner's thread makes both calls. The thread runs only while pieces are left to pin or
    unpin. on_map returns whether the piece is pinned; only pinned pieces are for on_unmap. When
    on_map raises, the extent's other pieces stay unpinned. When on_unmap raises, the extent stays
    mapped: the device still maps these addresses to the old memory, so a new mapping there would be
    read and written wrongly. Any thread may call the methods. Only close() waits.
    """

    def __init__(
        self,
        on_map: Callable[[int, int], bool],
        on_unmap: Callable[[int, int], None],
        pins: bool = True,
    ) -> None:
        """pins: whether on_map pins. False: no memory needs to be pinned."""
        self._on_map = on_map
        self._on_unmap = on_unmap
        self._pins = pins
        self._partial = 0  # extents with a piece that is not pinned
        self._lock = threading.Lock()
        self._areas: dict[int, _Area] = {}  # by address
        self._to_pin: deque[_Area] = deque()
        self._to_free: deque[_Area] = deque()
        self._running = False
        self._stuck = False  # that an extent stays mapped has been logged
        self._idle = threading.Event()
        self._idle.set()

    @property
    def all_pinned(self) -> bool:
        """Whether every extent from add() to release() is pinned, or none needs to be."""
        return not (self._pins and self._partial)

    def pause(self) -> float | None:
        """Seconds until the next look at all_pinned. None: only a call can change it."""
        return _POLL_SECONDS if self._pins and self._running else None

    def add(self, extent: Extent) -> None:
        """Queues an extent for pinning. start() begins the pinning."""
        area = _Area(extent)
        with self._lock:
            self._areas[extent.address] = area
            self._to_pin.append(area)
            self._partial += area.partial

    def release(self, extent: Extent) -> None:
        """Unpins the pieces of an extent, and then unmaps it. No copy may use the extent."""
        with self._lock:
            area = self._areas.pop(extent.address)
            area.released = True
            self._partial -= area.partial
            self._to_free.append(area)
        self.start()

    def start(self) -> None:
        """Starts the thread if an extent is queued and no thread runs."""
        if self._running or not (self._to_pin or self._to_free):
            return
        with self._lock:
            if self._running:
                return
            self._running = True
            self._idle.clear()
        try:
            threading.Thread(target=self._run, name="blockyard-pin", daemon=True).start()
        except RuntimeError as err:  # the process can start no thread now; the next call may
            _log.warning("extents are not pinned yet: %s", err)
            with self._lock:
                self._running = False
                self._idle.set()

    def close(self, timeout: float) -> bool:
        """Ends pinning and waits until the released extents are unmapped.

        False after timeout seconds; the thread then continues.
        """
        with self._lock:
            self._to_pin.clear()
        self.start()
        return self._idle.wait(timeout)

    # The thread.

    def _run(self) -> None:
        while True:
            with self._lock:
                while self._to_pin and not (self._to_pin[0].left and not self._to_pin[0].released):
                    self._to_pin.popleft()
                freed = self._to_free[0] if self._to_free else None
                area = freed or (self._to_pin[0] if self._to_pin else None)
                if area is None:
                    self._running = False
                    self._idle.set()
                    return
            began = time.monotonic()
            if freed is None:
                self._pin(area)
            elif not self._unpin(area):
                self._to_free.popleft()
            if time.monotonic() - began > _REST_SECONDS:
                time.sleep(_REST_SECONDS)

    def _pin(self, area: _Area) -> None:
        """Pins the next piece of an extent."""
        piece = area.left.pop()
        try:
            if not self._on_map(*piece):
                return
        except Exception:
            _log.exception("extent %d stays unpinned: its copies are slow", area.extent.number)
            area.left.clear()
            return
        area.pinned.append(piece)
        if len(area.pinned) == area.pieces:
            with self._lock:
                area.partial = False
                self._partial -= not area.released

    def _unpin(self, area: _Area) -> bool:
        """Unpins one piece of an extent, or unmaps an extent without pinned pieces.

        Returns whether pieces may be left.
        """
        if area.pinned:
            try:
                self._on_unmap(*area.pinned.pop())
            except Exception:
                area.stuck = True
                if not self._stuck:  # log once: other extents fail for the same reason
                    self._stuck = True
                    _log.exception("extent %d stays mapped", area.extent.number)
            return True
        if area.stuck:
            return False
        try:
            area.extent.unmap()
        except OSError:
            _log.exception("extent %d cannot be unmapped", area.extent.number)
        return False
