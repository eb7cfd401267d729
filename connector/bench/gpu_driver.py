"""The CUDA driver without torch, for bench.gpu: memory of the device, and a stream of an engine."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from blockyard import native
from blockyard.native_plane import Plan

NON_BLOCKING = 1
STEP_SECONDS = 60.0  # limit of a step that nobody lets run

_Function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class NoGpu(Exception):
    """The machine has no driver, or no device."""


class Wrong(RuntimeError):
    """A copy was wrong."""


class Driver:
    """The calls of the driver that bench.gpu makes itself. RuntimeError when a call fails.

    name: of the device. stream: the engine's stream.
    """

    def __init__(self, path: str) -> None:
        """path: the driver's library. NoGpu without a driver or device."""
        self.path = path
        try:
            self._cuda = ctypes.CDLL(path)
        except OSError as err:
            raise NoGpu(f"no CUDA driver ({err})") from None
        error = self._cuda.cuInit(0)
        if error:
            raise NoGpu(f"no GPU (cuInit: CUDA error {error})")
        context, device, stream = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()
        self.call("cuStreamCreate", ctypes.byref(stream), NON_BLOCKING)
        self.stream = stream
        self._step: Any = None

    def call(self, name: str, *args: Any) -> None:
        """Calls the driver by a function's name."""
        error = getattr(self._cuda, name)(*args)
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def allocate(self, size: int) -> int:
        """Memory of the device."""
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def free(self, at: int) -> None:
        """Frees memory of allocate()."""
        self.call("cuMemFree_v2", ctypes.c_uint64(at))

    def write(self, to: int, data: bytes) -> None:
        """Writes memory of the device. On return every stream sees the bytes."""
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(to), data, ctypes.c_size_t(len(data)))
        # The call returns when the driver has read the source, which may be before the copy.
        self.call("cuCtxSynchronize")

    def read(self, at: int, size: int) -> bytes:
        """Reads memory of the device."""
        out = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(at), ctypes.c_size_t(size))
        return out.raw

    def step(self, to: int, source: int, size: int) -> Callable[[], None]:
        """Launches a step of the engine, which copies on the device. The result lets the step run.

        write() and read() need a step that has run.
        """
        gate = threading.Event()

        def wait(_: int) -> None:
            gate.wait(STEP_SECONDS)

        self._step = _Function(wait)  # the driver calls it later
        self.call("cuLaunchHostFunc", self.stream, self._step, None)
        addresses = ctypes.c_uint64(to), ctypes.c_uint64(source)
        self.call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(size), self.stream)
        return gate.set


class Mover:
    """The library's copies on CUDA, for a NativeCopier."""

    def __init__(self, lib: native.Library, plan: Plan, driver: Driver) -> None:
        text = ctypes.create_string_buffer(native.TEXT_BYTES)
        self._lib, self.plan, self._stream = lib, plan, driver.stream
        self._handle = lib.by_cuda_new(driver.path.encode(), plan.handle, text)
        if not self._handle:
            raise RuntimeError(text.value.decode())

    def backend(self) -> native.Backend:
        """The library's backend."""
        backend = native.Backend()
        self._lib.by_cuda_backend(ctypes.byref(backend), self._handle)
        return backend

    def fence(self) -> int:
        """A fence behind the engine's steps. drop() ends it."""
        text = ctypes.create_string_buffer(native.TEXT_BYTES)
        fence: int = self._lib.by_cuda_fence(self._handle, self._stream.value, text)
        if not fence:
            raise RuntimeError(text.value.decode())
        return fence

    def keep(self, fence: int) -> int:
        """Adds a reference to a fence, for a job."""
        self._lib.by_cuda_keep(self._handle, fence)
        return fence

    def drop(self, fence: int) -> None:
        """Removes a reference."""
        self._lib.by_cuda_drop(self._handle, fence)

    def pin(self, address: int, size: int) -> None:
        """Pins host memory."""
        error = self._lib.by_cuda_pin(self._handle, address, size)
        if error:
            raise RuntimeError(f"{size} bytes cannot be pinned: CUDA error {error}")

    def unpin(self, address: int) -> None:
        """Ends pin()."""
        error = self._lib.by_cuda_unpin(self._handle, address)
        if error:
            raise RuntimeError(f"memory cannot be unpinned: CUDA error {error}")

    def close(self) -> None:
        """Frees the streams and events."""
        self._lib.by_cuda_free(self._handle)
