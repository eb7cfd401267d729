"""The library's copies on CUDA, for the plane in C. connector/native/cuda.c has the rules.

torch gives the engine's stream and context. Tests use a fake driver; no copy has run on a GPU yet.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence
from typing import Any

from . import native
from .mover import GeometryError, Pages
from .native import Library
from .native_plane import Plan
from .torch_mover import unpinned_reason

_log = logging.getLogger(__name__)

DRIVER = "libcuda.so.1"


class Fence:
    """An event behind the engine's work. The mover reuses the event after the last use."""

    def __init__(self, mover: NativeCudaMover, handle: int) -> None:
        self.mover = mover
        self.handle = handle

    def __del__(self) -> None:
        self.mover.drop(self.handle)


class NativeCudaMover:
    """The copy engine for pages on "cuda:N", for a NativeCopier. Otherwise as CudaMover.

    Only the engine's thread may construct it. load() and store() do not exist: the library copies.
    """

    load_bytes = 64 << 20
    store_bytes = 16 << 20
    needs_fence = True
    pins = True

    def __init__(self, lib: Library, pages: Pages) -> None:
        """GeometryError without a driver, or without a context of the engine's."""
        import torch

        self.plan = Plan(lib, pages)
        self._lib = lib
        self._torch: Any = torch
        self._device = torch.device(pages.device)
        self._warned = False
        text = ctypes.create_string_buffer(native.TEXT_BYTES)
        with torch.cuda.device(self._device):
            self._handle = lib.by_cuda_new(DRIVER.encode(), self.plan.handle, text)
        if not self._handle:
            raise GeometryError(f"device: {pages.device}: {text.value.decode(errors='replace')}")

    def __del__(self) -> None:
        if getattr(self, "_handle", None):
            self._lib.by_cuda_free(self._handle)

    def load(self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object) -> None:
        """Not used: NativeCopier takes backend()."""
        raise NotImplementedError("the library copies")

    store = load

    def backend(self) -> native.Backend:
        """The library's backend. Valid as long as this object."""
        backend = native.Backend()
        self._lib.by_cuda_backend(ctypes.byref(backend), self._handle)
        return backend

    def fence(self) -> Fence:
        """See CopyEngine. RuntimeError during the capture of a graph, and when the driver fails."""
        stream = self._torch.cuda.current_stream(self._device).cuda_stream
        text = ctypes.create_string_buffer(native.TEXT_BYTES)
        handle = self._lib.by_cuda_fence(self._handle, stream, text)
        if not handle:
            raise RuntimeError(text.value.decode(errors="replace"))
        return Fence(self, handle)

    def keep(self, fence: Fence) -> int:
        """Adds a reference to a fence, for a job. Returns the library's handle."""
        self._lib.by_cuda_keep(self._handle, fence.handle)
        return fence.handle

    def drop(self, handle: int) -> None:
        """Removes a reference of keep() or of a Fence."""
        self._lib.by_cuda_drop(self._handle, handle)

    def on_map(self, address: int, size: int) -> bool:
        """See CopyEngine. A piece that cannot be pinned stays unpinned, and its copies are slow."""
        error = self._lib.by_cuda_pin(self._handle, address, size)
        if error and not self._warned:
            self._warned = True
            _log.warning("%s", unpinned_reason(size, error))
        return not error

    def on_unmap(self, address: int, size: int) -> None:
        """See CopyEngine."""
        error = self._lib.by_cuda_unpin(self._handle, address)
        if error:
            raise RuntimeError(f"memory of {size} bytes cannot be unpinned: CUDA error {error}")
