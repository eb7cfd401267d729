"""Copies of connector/native on a real GPU: `make test-gpu`.

    python -m bench.gpu [--json FILE]

Uses the CUDA driver alone, without torch. Checks every byte of stores and loads in both layouts,
pinned and unpinned, and prints the bandwidth for each page size beside one plain pinned copy of the
same bytes. The exit status is 1 when a byte is wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import sys
import time
from typing import Any

from blockyard import native
from blockyard.extents import Extent, Extents
from blockyard.mover import Page, Pages
from blockyard.native_plane import NativeCopier, NativePlane, Plan

LAYERS = 32
TOTAL = 256 << 20  # bytes of one copy
PAGES = (4 << 10, 16 << 10, 64 << 10, 256 << 10)
ROUNDS = 5


class Driver:
    """The calls of the CUDA driver that this program makes itself."""

    def __init__(self) -> None:
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        context, device = ctypes.c_void_p(), ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)
        name = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", name, 100, device)
        self.name = name.value.decode()

    def call(self, name: str, *args: Any) -> None:
        error = getattr(self.cuda, name)(*args)
        if error:
            raise RuntimeError(f"{name}: CUDA error {error}")

    def allocate(self, size: int) -> int:
        at = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def write(self, to: int, data: bytes) -> None:
        self.call("cuMemcpyHtoD_v2", ctypes.c_uint64(to), data, ctypes.c_size_t(len(data)))

    def read(self, at: int, size: int) -> bytes:
        out = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", out, ctypes.c_uint64(at), ctypes.c_size_t(size))
        return out.raw


class Cuda:
    """A mover for NativeCopier without torch: jobs have no fence."""

    def __init__(self, lib: native.Library, plan: Plan) -> None:
        text = ctypes.create_string_buffer(native.TEXT_BYTES)
        self.lib, self.plan = lib, plan
        self.handle = lib.by_cuda_new(b"libcuda.so.1", plan.handle, text)
        if not self.handle:
            raise RuntimeError(text.value.decode())

    def backend(self) -> native.Backend:
        backend = native.Backend()
        self.lib.by_cuda_backend(ctypes.byref(backend), self.handle)
        return backend


class Bench:
    """One layout and page size. kv, host: addresses of as many bytes."""

    def __init__(self, driver: Driver, plane: NativePlane, page: int, block_first: bool) -> None:
        self.driver, self.lib = driver, plane.lib
        self.block = LAYERS * page
        self.count = TOTAL // self.block
        self.kv = driver.allocate(TOTAL)
        pages = []
        for n in range(LAYERS):
            at = self.kv + n * page if block_first else self.kv + n * self.count * page
            stride = self.block if block_first else page
            pages.append(Page(at, stride, page, n * page, 0, self.kv + TOTAL))
        self.pages = Pages(pages, self.count, "cuda:0")
        self.file = os.memfd_create("blockyard-test-gpu")
        self.extents: Extents = plane.extents(lambda extent: None, Extent.unmap)
        header = -(-8 * self.count // 4096) * 4096
        os.ftruncate(self.file, header + TOTAL)
        ready = {
            "extent": 0,
            "slots": self.count,
            "slot_bytes": self.block,
            "data_offset": header,
            "file_bytes": header + TOTAL,
        }
        self.extents.add(ready, self.file)
        self.host = self.extents.find(0, 0).data
        self.mover: Any = Cuda(self.lib, Plan(self.lib, self.pages))
        self.counters = dict.fromkeys(
            "loads loaded_blocks failed_loads stores stored_blocks dropped_stores"
            " copied_bytes copy_us".split(),
            0,
        )
        self.copier = NativeCopier(
            self.mover.plan, self.mover, self.extents, self.counters, -1, 1
        )
        self.jobs = 0

    def pin(self) -> float:
        """Pins the slots in pieces. Returns GB/s."""
        began, piece = time.perf_counter(), 16 << 20
        for at in range(0, TOTAL, piece):
            error = self.lib.by_cuda_pin(self.mover.handle, self.host + at, piece)
            if error:
                raise RuntimeError(f"pinning: CUDA error {error}")
        return TOTAL / (time.perf_counter() - began) / 1e9

    def copy(self, store: bool, ids: list[int]) -> float:
        """Copies all slots. Returns GB/s."""
        from blockyard.copying import CopyJob
        from blockyard.packed import Slot, pack_slots, pack_u32

        began, left = time.perf_counter(), 0
        for at in range(0, self.count, 1024):
            part = ids[at : at + 1024]
            self.jobs += 1
            left += 1
            slots = pack_slots([Slot(0, at + n, 0) for n in range(len(part))])
            self.copier.add(CopyJob(self.jobs, store, slots, pack_u32(part), 1))
        while left:
            for number, ok in self.copier.step():
                left -= 1
                if not ok:
                    raise RuntimeError(f"job {number} failed")
        return TOTAL / (time.perf_counter() - began) / 1e9

    def check(self) -> None:
        """Stores blocks, clears the device, loads them elsewhere, and compares every byte."""
        rng = random.Random(1)
        data = rng.randbytes(TOTAL)
        ids, targets = list(range(self.count)), list(range(self.count))
        rng.shuffle(ids)
        rng.shuffle(targets)
        self.driver.write(self.kv, data)
        self.copy(True, ids)
        self.driver.write(self.kv, bytes(TOTAL))
        self.copy(False, targets)
        got = self.driver.read(self.kv, TOTAL)
        for page in self.pages.pages:
            for block, target in zip(ids, targets):
                at, to = (page.address - self.kv + n * page.stride for n in (block, target))
                if got[to : to + page.bytes] != data[at : at + page.bytes]:
                    raise AssertionError(f"block {block}: wrong bytes in block {target}")

    def close(self) -> None:
        self.copier.close()
        for at in range(0, TOTAL, 16 << 20):
            self.lib.by_cuda_unpin(self.mover.handle, self.host + at)
        self.lib.by_cuda_free(self.mover.handle)
        self.extents.close()
        self.driver.call("cuMemFree_v2", ctypes.c_uint64(self.kv))


def plain(driver: Driver) -> tuple[float, float]:
    """GB/s of one pinned copy, store and load."""
    at, kv = ctypes.c_void_p(), driver.allocate(TOTAL)
    driver.call("cuMemAllocHost_v2", ctypes.byref(at), ctypes.c_size_t(TOTAL))
    found = []
    for name, to, source in (
        ("cuMemcpyDtoH_v2", at, ctypes.c_uint64(kv)),
        ("cuMemcpyHtoD_v2", ctypes.c_uint64(kv), at),
    ):
        best = 0.0
        for _ in range(ROUNDS):
            began = time.perf_counter()
            driver.call(name, to, source, ctypes.c_size_t(TOTAL))
            best = max(best, TOTAL / (time.perf_counter() - began) / 1e9)
        found.append(best)
    driver.call("cuMemFreeHost", at)
    driver.call("cuMemFree_v2", ctypes.c_uint64(kv))
    return found[0], found[1]


def main() -> int:
    """Prints the table. Writes the same figures as JSON where asked to."""
    parser = argparse.ArgumentParser(prog="test-gpu", description=__doc__.split("\n")[0])
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    driver, plane = Driver(), NativePlane(native.library())
    store, load = plain(driver)
    print(f"{driver.name}; one pinned copy of {TOTAL >> 20} MiB: {store:.1f} and {load:.1f} GB/s")
    print("page KiB  layout        store GB/s  load GB/s  unpinned load  pin GB/s  bytes")
    rows = []
    for page in PAGES:
        for block_first in (False, True):
            bench = Bench(driver, plane, page, block_first)
            ids = list(range(bench.count))
            random.Random(2).shuffle(ids)
            bench.check()
            unpinned = bench.copy(False, ids)
            pin = bench.pin()
            bench.check()
            stores = max(bench.copy(True, ids) for _ in range(ROUNDS))
            loads = max(bench.copy(False, ids) for _ in range(ROUNDS))
            bench.close()
            layout = "block first" if block_first else "layer first"
            print(
                f"{page >> 10:>8}  {layout:<12} {stores:>11.1f} {loads:>10.1f} {unpinned:>14.1f}"
                f" {pin:>9.1f}  equal",
                flush=True,
            )
            rows.append([page, layout, stores, loads, unpinned, pin])
    if options.json:
        with open(options.json, "w", encoding="ascii") as out:
            json.dump({"gpu": driver.name, "plain": [store, load], "rows": rows}, out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
