"""Copies between slots and KV in CUDA memory, on streams of their own.

Tests cover CudaMover with a stand-in for TorchDriver. TorchDriver itself has not run on a GPU yet.
TorchDriver makes a few calls of documented interfaces.

Loads and stores have separate streams, so a load never queues behind a store that waits for the
engine. Both wait for the engine's stream at the time of the copy's fence.

The driver copies unpinned memory inside the call, run by run. A store of unpinned memory would
block the copying thread until the engine's step ends. So such a copy is queued only when its fence
has been reached.
"""

from __future__ import annotations

import bisect
import ctypes
import logging
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .mover import GeometryError, Pages

_log = logging.getLogger(__name__)

_HOST_REGISTER_PORTABLE = 1
# Driver errors caused by a limit of locked memory: out of memory, and operating system.
_LIMIT_ERRORS = (2, 304)


def unpinned_reason(size: int, error: int) -> str:
    """What to tell people about memory that cannot be pinned."""
    hint = "; raise the limit of locked memory (ulimit -l)" if error in _LIMIT_ERRORS else ""
    return (
        f"memory of {size} bytes cannot be pinned (CUDA error {error}), copies will be slow{hint}"
    )


class Driver(Protocol):
    """The device calls that CudaMover needs."""

    def stream(self) -> Any:
        """A new stream."""

    def fence(self) -> Any:
        """An event behind all work that the calling thread has launched."""

    def copy(
        self,
        stream: Any,
        fence: Any,
        to: list[int],
        source: list[int],
        sizes: list[int],
        load: bool,
        pinned: bool = True,
    ) -> Any:
        """Queues copies on a stream, behind fence unless fence is None. Returns an event behind
        the copies. The caller keeps the event until it is reached.

        pinned: all host memory of the copies is pinned. Raises an exception when the copies cannot
        be queued; then no copy is in flight.
        """

    def register(self, address: int, size: int) -> int:
        """Pins host memory. Returns 0 or the driver's error."""

    def unregister(self, address: int) -> int:
        """Unpins host memory. Returns 0 or the driver's error."""


class CudaCopy:
    """A queued copy. The copy has ended when its event is reached."""

    def __init__(self, event: Any) -> None:
        self._event = event

    def done(self) -> bool:
        """See mover.Copy."""
        return bool(self._event.query())


class DeferredCopy:
    """A copy that is queued only when its fence has been reached."""

    def __init__(self, fence: Any, begin: Callable[[], CudaCopy]) -> None:
        self._fence = fence
        self._begin = begin
        self._copy: CudaCopy | None = None

    def done(self) -> bool:
        """See mover.Copy. Queues the copy once the fence has been reached."""
        if self._copy is None:
            if not self._fence.query():
                return False
            self._copy = self._begin()
        return self._copy.done()


class CudaMover:
    """The copy engine for pages on "cuda:N". Only the engine's thread may construct it."""

    load_bytes = 64 << 20
    store_bytes = 16 << 20
    needs_fence = True
    pins = True

    def __init__(self, pages: Pages, driver: Driver | None = None) -> None:
        self._pages = pages
        self._driver: Driver = TorchDriver(pages.device) if driver is None else driver
        self._loads = self._driver.stream()
        self._stores = self._driver.stream()
        self._share_end = pages.share_offset + pages.share_bytes
        self._lock = threading.Lock()
        self._pinned: dict[int, int] = {}  # end address of each pinned piece, by start address
        self._pieces: list[int] = []  # sorted start addresses
        self._warned = False

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> CudaCopy | DeferredCopy:
        """See CopyEngine."""
        device, host, sizes = self._pages.runs(slots, blocks)
        return self._copy(self._loads, slots, fence, (device, host, sizes, True))

    def store(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> CudaCopy | DeferredCopy:
        """See CopyEngine."""
        device, host, sizes = self._pages.runs(slots, blocks)
        return self._copy(self._stores, slots, fence, (host, device, sizes, False))

    def _copy(
        self,
        stream: Any,
        slots: Sequence[int],
        fence: Any,
        runs: tuple[list[int], list[int], list[int], bool],
    ) -> CudaCopy | DeferredCopy:
        if self._all_pinned(slots):
            return CudaCopy(self._driver.copy(stream, fence, *runs))

        def begin() -> CudaCopy:
            return CudaCopy(self._driver.copy(stream, None, *runs, self._all_pinned(slots)))

        return begin() if fence is None else DeferredCopy(fence, begin)

    def _all_pinned(self, slots: Sequence[int]) -> bool:
        """Whether every slot lies in a pinned piece."""
        with self._lock:
            for slot in slots:
                at = bisect.bisect_right(self._pieces, slot) - 1
                if at < 0 or slot + self._share_end > self._pinned[self._pieces[at]]:
                    return False
        return True

    def fence(self) -> object:
        """See CopyEngine."""
        return self._driver.fence()

    def on_map(self, address: int, size: int) -> bool:
        """See CopyEngine. A piece that cannot be pinned stays unpinned, and its copies are slow."""
        error = self._driver.register(address, size)
        if not error:
            with self._lock:
                self._pinned[address] = address + size
                bisect.insort(self._pieces, address)
        elif not self._warned:
            self._warned = True
            _log.warning("%s", unpinned_reason(size, error))
        return not error

    def on_unmap(self, address: int, size: int) -> None:
        """See CopyEngine."""
        with self._lock:
            if self._pinned.pop(address, None) is None:
                return
            del self._pieces[bisect.bisect_left(self._pieces, address)]
        error = self._driver.unregister(address)
        if error:
            raise RuntimeError(f"memory of {size} bytes cannot be unpinned: CUDA error {error}")


class QueuedCopies:
    """The event behind copies. Keeps the lists of addresses and sizes alive, because the driver
    may read them until the event is reached."""

    def __init__(self, event: Any, lists: list[Any]) -> None:
        self._event = event
        self._lists = lists

    def query(self) -> bool:
        """Whether the copies have ended."""
        return bool(self._event.query())


class TorchDriver:
    """A Driver with torch's streams and events, and the CUDA driver's pinning and copies.

    vLLM's operation that queues many copies replaces the driver's copies where vLLM has it. The
    CUDA runtime is not used: a failed runtime call leaves an error that the engine's next call
    would report.
    """

    def __init__(self, device: str) -> None:
        """Takes the calling thread's context on the device. Every later call uses this context.

        Only the engine's thread may construct it, because other threads have no context.
        GeometryError without a driver or a context.
        """
        import torch

        self._torch = torch
        self._device = torch.device(device)
        try:
            self._cuda = ctypes.CDLL("libcuda.so.1")
        except OSError as err:
            raise GeometryError(f"device: {device}, but no CUDA driver: {err}") from None
        pointer, size = ctypes.c_uint64, ctypes.c_size_t
        host, stream = ctypes.c_void_p, ctypes.c_void_p
        self._cuda.cuMemcpyHtoDAsync_v2.argtypes = (pointer, host, size, stream)
        self._cuda.cuMemcpyDtoHAsync_v2.argtypes = (host, pointer, size, stream)
        self._cuda.cuMemHostRegister_v2.argtypes = (host, size, ctypes.c_uint)
        self._cuda.cuMemHostUnregister.argtypes = (host,)
        self._cuda.cuCtxSetCurrent.argtypes = (host,)
        self._cuda.cuCtxGetCurrent.argtypes = (ctypes.POINTER(host),)
        self._context = host()
        with torch.cuda.device(self._device):
            error = self._cuda.cuCtxGetCurrent(ctypes.byref(self._context))
        if error or not self._context:
            raise GeometryError(f"device: {device} has no context yet (CUDA error {error})")
        self._batch = _batch_operation(torch)

    def _enter(self) -> None:
        """Sets the engine's context in the calling thread."""
        error = self._cuda.cuCtxSetCurrent(self._context)
        if error:
            raise RuntimeError(f"context of {self._device}: CUDA error {error}")

    def stream(self) -> Any:
        """See Driver."""
        return self._torch.cuda.Stream(self._device)

    def fence(self) -> Any:
        """See Driver."""
        event = self._torch.cuda.Event()
        event.record(self._torch.cuda.current_stream(self._device))
        return event

    def copy(
        self,
        stream: Any,
        fence: Any,
        to: list[int],
        source: list[int],
        sizes: list[int],
        load: bool,
        pinned: bool = True,
    ) -> QueuedCopies:
        """See Driver."""
        torch = self._torch
        self._enter()
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            if fence is not None:
                stream.wait_event(fence)
            lists: list[Any] = []
            try:
                if pinned and self._batch is not None:
                    lists = [torch.tensor(n, dtype=torch.int64) for n in (source, to, sizes)]
                    self._batch(*lists)
                else:
                    self._copy_each(stream.cuda_stream, to, source, sizes, load)
                event = torch.cuda.Event()
                event.record(stream)
            except Exception:
                # Some copies may be in flight. A failed job must not access its slots any more.
                stream.synchronize()
                raise
        return QueuedCopies(event, lists)

    def _copy_each(
        self, stream: int, to: list[int], source: list[int], sizes: list[int], load: bool
    ) -> None:
        copy = self._cuda.cuMemcpyHtoDAsync_v2 if load else self._cuda.cuMemcpyDtoHAsync_v2
        for run in zip(to, source, sizes):
            error = copy(*run, stream)
            if error:
                raise RuntimeError(f"copy of {run[2]} bytes: CUDA error {error}")

    def register(self, address: int, size: int) -> int:
        """See Driver."""
        self._enter()
        return int(self._cuda.cuMemHostRegister_v2(address, size, _HOST_REGISTER_PORTABLE))

    def unregister(self, address: int) -> int:
        """See Driver."""
        self._enter()
        return int(self._cuda.cuMemHostUnregister(address))


def _batch_operation(torch: Any) -> Any:
    """vLLM's operation that queues many copies in one call, or None without it.

    Its arguments are sources, destinations and sizes. It uses the current stream.
    """
    if "vllm" not in sys.modules:
        return None
    try:
        from vllm import _custom_ops

        torch.ops._C_cache_ops.swap_blocks_batch  # noqa: B018  (raises without the operation)
        return _custom_ops.swap_blocks_batch
    except (ImportError, AttributeError, RuntimeError):
        return None
