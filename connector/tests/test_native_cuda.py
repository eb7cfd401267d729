"""NativeCudaMover and NativeCopier with the fake driver. connector/native/tests has each rule."""

from __future__ import annotations

import collections
import ctypes
import os
import tempfile
import unittest
from typing import Any
from unittest import mock

from blockyard import native
from blockyard.copying import CopyJob
from blockyard.extents import Extent
from blockyard.mover import GeometryError, Pages
from blockyard.native_plane import NativePlane
from blockyard.packed import Slot, pack_slots, pack_u32
from blockyard.pinner import Pinner
from tests import fakedriver, planes
from tests.agentproc import wait_until

PAGE, LAYERS, BLOCKS, SLOTS = 4096, 3, 32, 16
SLOT = LAYERS * PAGE


@planes.needs_c
class Cuda(unittest.TestCase):
    def setUp(self) -> None:
        self.driver, self.stream = fakedriver.install(self)
        driver = self.driver
        self.kv = (ctypes.c_char * (BLOCKS * SLOT)).from_buffer_copy(os.urandom(BLOCKS * SLOT))
        base = ctypes.addressof(self.kv)
        driver.fake_device(ctypes.c_void_p(base), ctypes.c_size_t(BLOCKS * SLOT))
        size = BLOCKS * PAGE
        described = [
            (base + n * size, PAGE, PAGE, n * PAGE, 0, base + (n + 1) * size)
            for n in range(LAYERS)
        ]
        self.pages = Pages(described, BLOCKS, "cuda:0")
        self.plane = NativePlane(native.library())

    def start(self) -> None:
        self.mover: Any = self.plane.mover(self.pages)
        self.extents = self.plane.extents(lambda extent: None, Extent.unmap)
        self.addCleanup(self.extents.close)
        self.file = tempfile.TemporaryFile()
        self.addCleanup(self.file.close)
        self.file.truncate(4096 + SLOTS * SLOT)
        ready = {
            "extent": 0,
            "slots": SLOTS,
            "slot_bytes": SLOT,
            "data_offset": 4096,
            "file_bytes": 4096 + SLOTS * SLOT,
        }
        self.extents.add(ready, os.dup(self.file.fileno()))
        counters: collections.Counter[str] = collections.Counter()
        self.copier = self.plane.copier(self.mover, self.pages, self.extents, counters, -1)
        self.addCleanup(self.copier.close)

    def run_job(self, number: int, store: bool, blocks: list[int]) -> bool:
        slots = pack_slots([Slot(0, n, 0) for n in range(len(blocks))])
        job = CopyJob(number, store, slots, pack_u32(blocks), 1, self.mover.fence())
        self.assertTrue(self.copier.add(job))
        (ended,) = wait_until("the job ends", self.copier.step)
        return ended == (number, True)

    def block(self, number: int) -> bytes:
        return b"".join(
            self.kv.raw[(n * BLOCKS + number) * PAGE :][:PAGE] for n in range(LAYERS)
        )

    def test_pinned_and_unpinned_bytes_arrive(self) -> None:
        self.start()
        extent = self.extents.find(0, 0)
        for number, pinned in ((1, False), (3, True)):
            if pinned:
                self.assertTrue(self.mover.on_map(extent.data, SLOTS * SLOT))
            want = [self.block(n) for n in range(4)]
            self.assertTrue(self.run_job(number, True, [0, 1, 2, 3]))
            targets = [number + 20, number + 7, 31, number + 11]
            self.assertTrue(self.run_job(number + 1, False, targets))
            self.assertTrue([self.block(n) for n in targets] == want)
        with self.assertLogs("blockyard.native_cuda", "WARNING"):
            self.assertFalse(self.mover.on_map(extent.data, SLOTS * SLOT), "pinned twice")
        self.mover.on_unmap(extent.data, SLOTS * SLOT)
        with self.assertRaisesRegex(RuntimeError, "cannot be unpinned"):
            self.mover.on_unmap(extent.data, SLOTS * SLOT)

    def test_loads_run_unpinned_while_the_pinner_waits(self) -> None:
        """The thread that waits for the driver holds neither Python's lock nor the library's."""
        self.start()
        extent = self.extents.find(0, 0)
        pinner = Pinner(self.mover.on_map, self.mover.on_unmap)
        self.addCleanup(self.driver.fake_hold_pins, 0)
        self.driver.fake_hold_pins(1)
        pinner.add(extent)
        pinner.start()
        wait_until("the driver pins", self.driver.fake_held_pins)
        want = [self.block(n) for n in range(4)]
        self.assertTrue(self.run_job(1, True, [0, 1, 2, 3]))
        self.assertTrue(self.run_job(2, False, [20, 7, 31, 11]))
        self.assertTrue([self.block(n) for n in (20, 7, 31, 11)] == want)
        self.assertTrue(self.driver.fake_held_pins())
        self.assertEqual(fakedriver.calls(self.mover), (0, 2 * 4 * LAYERS))
        self.driver.fake_hold_pins(0)
        self.assertTrue(pinner._idle.wait(60))
        self.assertTrue(self.run_job(3, False, [1, 5, 9, 2]))
        self.assertTrue([self.block(n) for n in (1, 5, 9, 2)] == want)
        self.assertEqual(fakedriver.calls(self.mover), (1, 2 * 4 * LAYERS))

    def test_no_fence_while_the_engine_captures(self) -> None:
        self.start()
        self.driver.fake_capture(self.stream, 1)
        with self.assertRaisesRegex(RuntimeError, "capturing"):
            self.mover.fence()
        self.driver.fake_capture(self.stream, 0)

    def test_no_mover_without_a_context_or_a_driver(self) -> None:
        self.driver.fake_context(0)
        with self.assertRaisesRegex(GeometryError, "no context"):
            self.plane.mover(self.pages)
        with (
            mock.patch("blockyard.native_cuda.DRIVER", "/nowhere/libcuda.so.1"),
            self.assertRaisesRegex(GeometryError, "no CUDA driver"),
        ):
            self.plane.mover(self.pages)


if __name__ == "__main__":
    unittest.main()
