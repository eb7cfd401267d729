"""NumpyMover writes the same bytes as CpuMover, with each of its methods."""

from __future__ import annotations

import importlib.util
import random
import unittest
from unittest import mock

from blockyard import mover
from blockyard.mover import CpuMover, GeometryError, Pages

from .test_mover import KINDS, Layout, Memory

HAVE_NUMPY = importlib.util.find_spec("numpy") is not None
if HAVE_NUMPY:
    from blockyard import numpy_mover
    from blockyard.numpy_mover import NumpyMover

PAGE = 2048


@unittest.skipUnless(HAVE_NUMPY, "copies by numpy, which is not here; make test-vllm has it")
class Loads(unittest.TestCase):
    def setUp(self) -> None:
        self.rng = random.Random(5)

    def targets(self, blocks: int, count: int) -> list[int]:
        """Device blocks in runs of random lengths, in random order."""
        ids: list[int] = []
        while len(ids) < count:
            first = self.rng.randrange(blocks)
            run = range(first, min(blocks, first + self.rng.choice([1, 2, 5, 30])))
            ids += [block for block in run if block not in ids]
        ids = ids[:count]
        if self.rng.random() < 0.5:
            self.rng.shuffle(ids)
        return ids

    def load(self, kind: str, page: int, share: int, behind: int) -> None:
        blocks, layers = 80, 3
        layout = Layout(kind, blocks, layers, page, self.rng)
        count = self.rng.randrange(1, 60)
        slot_bytes = share + layout.block_bytes + behind
        slots = Memory(slot_bytes * 100, self.rng)
        places = self.rng.sample(range(100), count)
        targets = self.targets(blocks, count)
        wanted = {block: layout.read(block) for block in range(blocks)}
        for place, block in zip(places, targets):
            at = place * slot_bytes + share
            wanted[block] = slots.read(at, layout.block_bytes)
        engine = NumpyMover(Pages(layout.page_list, blocks, share_offset=share))
        engine.load([slots.address + place * slot_bytes for place in places], [targets])
        for block, want in wanted.items():
            self.assertEqual(layout.read(block), want, f"block {block} of {targets}")

    def test_every_byte_comes_to_its_place_and_no_other_changes(self) -> None:
        for _ in range(150):
            self.load(
                self.rng.choice(KINDS),
                page=self.rng.choice([2, 666, PAGE, 3 * PAGE]),
                share=self.rng.choice([0, 1, 4096]),
                behind=self.rng.choice([0, 16, 1024]),
            )

    def test_runs_in_layers_of_their_own_need_no_memmove(self) -> None:
        for kind in KINDS:
            layout = Layout(kind, 20, 4, PAGE, self.rng)
            slots = Memory(10 * layout.block_bytes, self.rng)
            at = [slots.address + n * layout.block_bytes for n in range(10)]
            self.rng.shuffle(at)
            with mock.patch.object(mover, "_memmove", side_effect=AssertionError):
                NumpyMover(Pages(layout.page_list, 20)).load(at, [list(range(5, 15))])
            for n, address in enumerate(at):
                got = slots.read(address - slots.address, layout.block_bytes)
                self.assertEqual(layout.read(5 + n), got)

    def test_single_blocks_are_memmoved(self) -> None:
        layout = Layout(KINDS[0], 20, 4, PAGE, self.rng)
        slots = Memory(2 * layout.block_bytes, self.rng)
        at = [slots.address, slots.address + layout.block_bytes]
        with mock.patch.object(numpy_mover, "_gather_page", side_effect=AssertionError):
            NumpyMover(Pages(layout.page_list, 20)).load(at, [[3, 9]])
        self.assertEqual(layout.read(9), slots.read(layout.block_bytes, layout.block_bytes))

    def test_groups_have_block_ids_of_their_own(self) -> None:
        kv = Memory(2 * 10 * PAGE, self.rng)
        base, limit = kv.address, kv.limit
        pages = Pages(
            [(base, PAGE, PAGE, 0, 0, limit), (base + 10 * PAGE, PAGE, PAGE, PAGE, 1, limit)], 10
        )
        slot = Memory(2 * PAGE, self.rng)
        NumpyMover(pages).load([slot.address], [[3], [7]])
        self.assertEqual(kv.read(3 * PAGE, PAGE), slot.read(0, PAGE))
        self.assertEqual(kv.read(17 * PAGE, PAGE), slot.read(PAGE, PAGE))

    def test_a_block_outside_the_pool_copies_nothing(self) -> None:
        layout = Layout(KINDS[0], 8, 2, PAGE, self.rng)
        slots = Memory(8 * layout.block_bytes, self.rng)
        before = layout.kv.data.raw
        at = [slots.address + n * layout.block_bytes for n in range(8)]
        with self.assertRaises(GeometryError):
            NumpyMover(Pages(layout.page_list, 8)).load(at, [list(range(1, 9))])
        self.assertEqual(layout.kv.data.raw, before)

    def test_it_is_the_mover_where_the_engine_has_numpy(self) -> None:
        pages = Pages(Layout(KINDS[0], 4, 2, PAGE, self.rng).page_list, 4)
        self.assertIsInstance(mover.mover_for(pages), NumpyMover)
        with mock.patch.dict("sys.modules", {"numpy": None}):
            self.assertIs(type(mover.mover_for(pages)), CpuMover)


if __name__ == "__main__":
    unittest.main()
