"""Checks of geometries, and the places of all copied bytes."""

from __future__ import annotations

import contextlib
import ctypes
import random
import unittest
from unittest import mock

from blockyard import mover, native
from blockyard.mover import CopyEngine, CpuMover, GeometryError, Page, Pages
from blockyard.native_plane import MemoryMover
from tests import planes


class Memory:
    """Plain memory of random bytes, at an address."""

    def __init__(self, size: int, rng: random.Random) -> None:
        self.data = (ctypes.c_char * size).from_buffer_copy(rng.randbytes(size))
        self.address = ctypes.addressof(self.data)
        self.limit = self.address + size

    def read(self, at: int, size: int) -> bytes:
        return self.data.raw[at : at + size]


class Geometry(unittest.TestCase):
    def good(self, **changes: int) -> list[Page]:
        page = Page(address=4096, stride=64, bytes=64, offset=0, group=0, limit=4096 + 640)
        return [page._replace(**changes)]

    def test_a_page_that_fits_its_memory_exactly_is_taken(self) -> None:
        pages = Pages(self.good(), 10)
        self.assertEqual((pages.share_bytes, pages.groups, pages.blocks), (64, 1, 10))

    def test_no_block_may_end_beyond_its_memory(self) -> None:
        with self.assertRaisesRegex(GeometryError, "block 9 ends 1 bytes beyond"):
            Pages(self.good(limit=4096 + 639), 10)
        with self.assertRaisesRegex(GeometryError, "block 10 ends"):
            Pages(self.good(), 11)

    def test_geometry_that_makes_no_sense_is_refused(self) -> None:
        for change in [
            {"stride": 63},
            {"stride": 0},
            {"stride": -64},
            {"bytes": 0},
            {"address": 0},
            {"offset": 1},
            {"group": -1},
            {"group": 1},
        ]:
            with self.subTest(change), self.assertRaises(GeometryError):
                Pages(self.good(**change), 10)
        for pages, blocks in [([], 10), (self.good(), 0)]:
            with self.assertRaises(GeometryError):
                Pages(pages, blocks)
        for offset in (-1, mover.MAX_BLOCK_BYTES):
            with self.assertRaisesRegex(GeometryError, "share"):
                Pages(self.good(), 10, share_offset=offset)

    def test_pages_may_neither_overlap_nor_leave_a_gap_in_the_slot(self) -> None:
        first = self.good()[0]
        for offset in (0, 63, 65):
            with self.subTest(offset), self.assertRaisesRegex(GeometryError, "offset"):
                Pages([first, first._replace(offset=offset)], 10)

    def test_neighbours_in_slot_and_memory_become_one_page(self) -> None:
        limit = 4096 + 1280
        whole = [Page(4096 + 64 * n, 128, 64, 64 * n, 0, limit) for n in range(2)]
        joined = Pages(whole, 10).pages
        self.assertEqual(joined, [Page(4096, 128, 128, 0, 0, limit)])
        apart = [whole[0], whole[1]._replace(group=1)]
        self.assertEqual(len(Pages(apart, 10).pages), 2)

    def test_block_ids_are_checked_for_every_group(self) -> None:
        pages = Pages(self.good(), 10)
        pages.check_blocks([[0, 9]], 2)
        for blocks, count in [([[0, 10]], 2), ([[-1]], 1), ([[0]], 2), ([[0], [0]], 1), ([], 0)]:
            with self.subTest(blocks), self.assertRaises(GeometryError):
                pages.check_blocks(blocks, count)

    def test_a_device_without_copies_is_refused(self) -> None:
        with self.assertRaisesRegex(GeometryError, "xpu"):
            mover.mover_for(Pages(self.good(), 10, device="xpu:0"))
        self.assertIsInstance(mover.mover_for(Pages(self.good(), 10)), CpuMover)


class Layout:
    """A KV cache in one of the usual layouts, and the address of each byte of a block."""

    def __init__(self, kind: str, blocks: int, layers: int, page: int, rng: random.Random) -> None:
        half = page // 2
        self.kv = Memory(blocks * layers * page, rng)
        a, limit = self.kv.address, self.kv.limit
        if kind == "layers outermost":
            pages = [(a + n * blocks * page, page, page) for n in range(layers)]
        elif kind == "blocks outermost":
            pages = [(a + n * page, layers * page, page) for n in range(layers)]
        else:  # K and V outermost in each layer
            pages = [
                (a + (2 * n + kv) * blocks * half, half, half)
                for n in range(layers)
                for kv in range(2)
            ]
        described, offset = [], 0
        for address, stride, size in pages:
            described.append(Page(address, stride, size, offset, 0, limit))
            offset += size
        self.page_list = described
        self.block_bytes = offset

    def read(self, block: int) -> bytes:
        return b"".join(
            self.kv.read(p.address + block * p.stride - self.kv.address, p.bytes)
            for p in self.page_list
        )


KINDS = ("layers outermost", "blocks outermost", "K and V outermost")


class CopyCase(unittest.TestCase):
    def setUp(self) -> None:
        self.rng = random.Random(3)

    def mover(self, pages: Pages) -> CopyEngine:
        """The copy engine for plain memory of the plane."""
        return MemoryMover(native.library(), pages) if planes.in_c else CpuMover(pages)

    def round_trip(self, kind: str, blocks: int, layers: int, page: int, share: int) -> None:
        layout = Layout(kind, blocks, layers, page, self.rng)
        slot_bytes = share + layout.block_bytes + 16
        count = self.rng.randrange(1, min(blocks, 40) + 1)
        slots = Memory(slot_bytes * count, self.rng)
        engine = self.mover(Pages(layout.page_list, blocks, share_offset=share))
        ids = self.rng.sample(range(blocks), count)
        at = [slots.address + n * slot_bytes for n in range(count)]
        before = [slots.read(n * slot_bytes, slot_bytes) for n in range(count)]
        engine.store(at, [ids], None)
        for n, block in enumerate(ids):
            got = slots.read(n * slot_bytes, slot_bytes)
            self.assertEqual(got[share : share + layout.block_bytes], layout.read(block))
            self.assertEqual(got[:share], before[n][:share], "bytes of another share")
            self.assertEqual(got[-16:], before[n][-16:], "bytes behind the share")
        others = {b: layout.read(b) for b in range(blocks)}
        targets = self.rng.sample(range(blocks), count)
        wanted = [layout.read(block) for block in ids]
        engine.load(at, [targets], None)
        for block, want in zip(targets, wanted):
            self.assertEqual(layout.read(block), want)
        for block in others.keys() - set(targets):
            self.assertEqual(layout.read(block), others[block], "a block that was not named")


@planes.both
class Copies(CopyCase):
    def test_random_geometries_come_back_and_touch_nothing_else(self) -> None:
        for _ in range(60):
            self.round_trip(
                self.rng.choice(KINDS),
                blocks=self.rng.randrange(1, 60),
                layers=self.rng.randrange(1, 5),
                page=2 * self.rng.choice([1, 16, 333, 2048]),
                share=self.rng.choice([0, 1, 4096]),
            )

    def test_groups_have_block_ids_of_their_own(self) -> None:
        kv = Memory(2 * 10 * 64, self.rng)
        base, limit = kv.address, kv.limit
        pages = Pages([(base, 64, 64, 0, 0, limit), (base + 640, 64, 64, 64, 1, limit)], 10)
        slot = Memory(128, self.rng)
        self.mover(pages).store([slot.address], [[3], [7]], None)
        self.assertEqual(slot.read(0, 64), kv.read(3 * 64, 64))
        self.assertEqual(slot.read(64, 64), kv.read(640 + 7 * 64, 64))

    def test_a_block_outside_the_pool_copies_nothing(self) -> None:
        layout = Layout(KINDS[0], 4, 2, 64, self.rng)
        slots = Memory(2 * layout.block_bytes, self.rng)
        before = layout.kv.data.raw, slots.data.raw
        engine = self.mover(Pages(layout.page_list, 4))
        at = [slots.address, slots.address + layout.block_bytes]
        for copy in (engine.load, engine.store):
            with contextlib.suppress(GeometryError):
                copy(at, [[1, 4]], None)
                self.fail("block 4 of 4 was copied")
        self.assertEqual((layout.kv.data.raw, slots.data.raw), before)


class SystemCalls(CopyCase):
    def test_more_pieces_than_the_kernel_takes_at_once(self) -> None:
        with mock.patch.object(mover, "_MAX_VECTOR", 7):
            for kind in KINDS:
                self.round_trip(kind, blocks=50, layers=4, page=64, share=8)

    def test_pages_larger_than_a_piece(self) -> None:
        with mock.patch.object(mover, "_PIECE", 100), mock.patch.object(mover, "_TURN", 1000):
            for kind in KINDS:
                self.round_trip(kind, blocks=20, layers=3, page=512, share=8)

    def test_a_sandbox_that_forbids_the_system_call(self) -> None:
        with mock.patch.object(mover, "_process_vm_readv", return_value=-1):
            self.round_trip(KINDS[0], blocks=50, layers=4, page=64, share=8)

    def test_the_system_call_is_used_for_stores_where_it_can_be(self) -> None:
        layout = Layout(KINDS[0], 4, 2, 64, self.rng)
        slots = Memory(layout.block_bytes, self.rng)
        real = mover._process_vm_readv
        with mock.patch.object(mover, "_process_vm_readv", side_effect=real) as call:
            CpuMover(Pages(layout.page_list, 4)).store([slots.address], [[2]])
        if call.call_count == 1:
            self.assertEqual(slots.read(0, layout.block_bytes), layout.read(2))

if __name__ == "__main__":
    unittest.main()
