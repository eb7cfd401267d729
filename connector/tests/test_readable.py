"""Hits have only blocks in memory that all workers have mapped."""

from __future__ import annotations

import unittest
from types import SimpleNamespace as Bag
from typing import Any
from unittest import mock

from blockyard.packed import Slot, extents_of, pack_slots, unpack_u32
from blockyard.readable import Readable, pack_runs
from blockyard.work import Mapped
from tests.fakelink import PAGE
from tests.test_scheduler import TOKENS, Desk

BLOCKS = len(TOKENS) // PAGE


class Reports(unittest.TestCase):
    def setUp(self) -> None:
        self.readable = Readable()
        self.readable.workers = 2
        self.connection: Any = Bag(nonce=5, session=3)

    def say(
        self, worker: int, *extents: int, session: int = 3, nonce: int = 5, pinned: bool = True
    ) -> bool:
        return self.readable.take(Mapped(worker, nonce, session, pack_runs(extents), pinned))

    def leading(self, *extents: int, first: int = 0) -> int:
        slots = pack_slots(Slot(number, 7, 1 << 40) for number in extents)
        return self.readable.leading(self.connection, slots, first)

    def test_runs_of_extents_are_short(self) -> None:
        self.assertEqual(unpack_u32(pack_runs([0, 1, 2, 5, 7, 8])), [0, 3, 5, 1, 7, 2])
        self.assertEqual(pack_runs([]), b"")
        self.assertEqual(len(pack_runs(range(16384))), 8)

    def test_extents_of_packed_slots(self) -> None:
        slots = [Slot(3, 1, 1 << 50), Slot(0, 9, 2), Slot(1 << 31, 0, 3)]
        for u32 in ("I", ""):
            with mock.patch("blockyard.packed._U32", u32):
                self.assertEqual(extents_of(pack_slots(slots), 0), [3, 0, 1 << 31])
                self.assertEqual(extents_of(pack_slots(slots), 2), [1 << 31])

    def test_all_workers_must_have_an_extent(self) -> None:
        self.say(1, 0, 1, 2, 4)
        self.assertEqual(self.leading(0), 0, "one worker has said nothing")
        self.say(2, 0, 2, 3)
        self.assertEqual(self.leading(0, 2, 0, 2), 4)
        self.assertEqual(self.leading(0, 2, 1, 2), 2)
        self.assertEqual(self.leading(0, 2, 1, 2, first=3), 1)
        self.assertEqual(self.leading(3), 0)

    def test_what_a_worker_says_takes_the_place_of_what_it_said(self) -> None:
        self.say(1, 0)
        self.say(2, 0)
        self.say(2)
        self.assertEqual(self.leading(0), 0)

    def test_all_is_pinned_when_the_last_report_of_each_worker_says_so(self) -> None:
        self.assertFalse(self.say(1, 0), "one worker has said nothing")
        self.assertFalse(self.say(2, 0, pinned=False))
        self.assertTrue(self.say(2, 0))
        self.assertFalse(self.say(1, 0, 1, pinned=False), "an extent was mapped later")
        self.assertFalse(self.say(2, 0, 1))
        self.assertTrue(self.say(1, 0, 1))

    def test_extents_of_another_session_or_agent_count_for_nothing(self) -> None:
        self.say(1, 0)
        for other in ({"session": 2}, {"nonce": 4}):
            self.say(2, 0, **other)
            self.assertEqual(self.leading(0), 0)

    def test_a_worker_that_was_started_again_takes_the_place_of_the_oldest(self) -> None:
        self.say(1, 0)
        self.say(2, 0)
        self.say(3)
        self.assertEqual(self.leading(0), 0)
        self.say(3, 0)
        self.assertEqual(self.leading(0), 1)
        self.assertEqual(len(self.readable._reports), 2)


class Promises(Desk):
    """A Desk with two slots in each extent: the third block is in extent 1."""

    def setUp(self) -> None:
        super().setUp()
        self.assertEqual(BLOCKS, 3)
        self.clock = 100.0
        patches = [
            mock.patch("blockyard.lookups._now", lambda: self.clock),
            mock.patch("tests.fakelookups.Slot", lambda _, slot, gen: Slot(slot // 2, slot, gen)),
        ]
        for patch in patches:
            patch.start()
            self.addCleanup(patch.stop)
        self.store("a", TOKENS)
        self.session.mapped(Mapped(1, 0, 0, b""))  # the report before the worker has joined

    def ask(self, rid: str, local: int = 0) -> int | None:
        hit = self.session.hit(rid, 0, local, spin=0)
        if hit is None:
            return None
        self.assertEqual((len(hit.sources), len(hit.slots)), (hit.blocks, 16 * hit.blocks))
        return hit.blocks

    def opened(self, rid: str) -> None:
        self.session.open(rid, 0, list(TOKENS))
        self.flow()

    def test_a_request_waits_for_workers_that_are_mapping(self) -> None:
        self.opened("b")
        self.assertIsNone(self.ask("b"))
        self.session.mapped(self.mapped())
        self.assertIsNone(self.ask("b"), "extent 1 is still to come")
        self.session.mapped(self.mapped(1))
        self.assertEqual(self.ask("b"), 3)
        self.assertEqual(self.count("unmapped"), 0)

    def test_after_a_second_it_gets_what_all_workers_can_read(self) -> None:
        self.session.mapped(self.mapped())
        self.opened("b")
        self.assertIsNone(self.ask("b"))
        self.clock += 1.1
        self.assertEqual(self.ask("b"), 2)
        self.assertEqual(self.ask("b"), 2)
        self.assertEqual(self.count("unmapped"), 1)
        self.assertTrue(self.session.load("b", 0, 0, [[1, 2]]))

    def test_nothing_is_a_miss_and_its_pins_drop(self) -> None:
        self.opened("b")
        self.assertIsNone(self.ask("b"))
        self.clock += 1.1
        self.assertEqual(self.ask("b"), 0)
        self.assertIn("RELEASE", self.sent())

    def test_blocks_that_the_engine_has_itself_need_not_be_mapped(self) -> None:
        self.opened("b")
        c = self.connection
        self.session.mapped(Mapped(1, c.nonce, c.session, pack_runs([1])))
        self.assertEqual(self.ask("b", local=2), 1)
        self.assertIsNone(self.ask("b", local=1))

    def test_who_has_waited_in_vain_is_enough_until_a_worker_says_something(self) -> None:
        for rid in ("b", "c", "d"):
            self.opened(rid)
        self.assertIsNone(self.ask("b"))
        self.clock += 1.1
        self.assertEqual(self.ask("b"), 0)
        self.assertEqual(self.ask("c"), 0)
        self.session.mapped(self.mapped())
        self.assertIsNone(self.ask("d"), "extent 1 may follow")

    def test_a_promise_does_not_shrink(self) -> None:
        self.session.mapped(self.mapped(1))
        self.opened("b")
        self.assertEqual(self.ask("b"), 3)
        self.session.mapped(self.mapped())
        self.assertEqual(self.ask("b"), 3)

    def test_a_restarted_agent_s_memory_counts_when_it_was_announced_again(self) -> None:
        self.session.mapped(self.mapped(1))
        self.agent.die()
        self.keeper._part(self.connection)
        self.session.take_work()
        self.agent.start()
        self.connect()
        self.session.take_work()
        self.flow()
        self.session.take_work()
        self.opened("b")
        self.assertIsNone(self.ask("b"))
        self.session.mapped(self.mapped(1))
        self.assertEqual(self.ask("b"), 3)


if __name__ == "__main__":
    unittest.main()
