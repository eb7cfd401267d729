"""The work of one hook on the scheduler side, with the model of an agent."""

from __future__ import annotations

import unittest
from unittest import mock

from blockyard import lookups
from blockyard.work import Done
from tests.fakelink import PAGE
from tests.test_scheduler import TOKENS, Desk


class Turns(Desk):
    def offers(self, count: int) -> None:
        """Offers two blocks of each of `count` requests. The agent grants all of them."""
        for number in range(count):
            self.session.open(f"{number}", 0, [number, 1, 2, 3])
        self.flow()
        for number in range(count):
            first = 100 + 2 * number
            self.assertTrue(self.session.computed(f"{number}", 0, 2, [[first, first + 1]]))
        self.flow()

    def copies(self, count: int) -> list[int]:
        """Copies the blocks of the first `count` offers. Returns the jobs."""
        jobs = []
        for number in range(count):
            store = self.session.take_work().stores[0]
            for block in range(2):
                slot = int.from_bytes(store.slots[16 * block + 4 : 16 * block + 8], "little")
                tokens = [number, 1, 2, 3][: PAGE * (block + 1)]
                self.agent.slots[slot].content = ("w1", "", "", *tokens)
            jobs.append(store.job)
        return jobs

    def test_a_step_takes_one_answer_to_an_offer_and_more_of_many(self) -> None:
        self.offers(6)
        taken = []
        while self.session.granted:
            taken.append(len(self.session.take_work().stores))
        self.assertEqual(taken, [2, 2, 1, 1])
        self.assertEqual(len(self.blocks.refs), 12)

    def test_a_step_with_an_offer_takes_an_answer_of_many_only(self) -> None:
        self.offers(6)
        taken = [len(self.session.take_work(False).stores) for _ in range(5)]
        self.assertEqual(taken, [1, 1, 1, 0, 0])
        self.assertEqual(self.session.granted, 3)

    def test_only_a_hook_that_may_rest_receives_the_answers_of_a_long_prompt(self) -> None:
        """The keeper receives 2 ms later, and an engine may ask once and wait for less."""
        self.store("x", TOKENS)
        with mock.patch.object(lookups, "_BLOCKS", 2):
            self.session.open("a", 0, TOKENS)
        self.assertEqual(self.sent(), ["OPEN", "LOOKUP", "LOOKUP"])
        while self.link.sent:
            self.agent.handle(self.link)
        self.link.arrived.extend(self.link.answers)
        self.link.answers.clear()
        self.assertIsNone(self.session.hit("a", 0, 0, spin=0))
        hit = self.session.hit("a", 0, 0, rest=1e-6)
        assert hit is not None
        self.assertEqual(hit.blocks, 3)

    def test_a_hook_settles_one_store_and_every_load(self) -> None:
        self.store("x", TOKENS)
        for rid in "ab":
            self.session.open(rid, 0, TOKENS)
            self.assertEqual(self.hit(rid), 3)
        self.offers(2)
        jobs = self.copies(2)
        for rid in "ab":
            self.session.load(rid, 0, 0, [[7, 8, 9]])
        jobs += [load.job for load in self.session.take_work().loads]
        self.session.settle(Done({job: [1, 0] for job in jobs}))
        self.assertFalse(self.session.loading)
        self.assertEqual(sorted(self.blocks.refs), [102, 103], "the second store is not settled")
        self.assertTrue(self.session.busy())
        self.session.take_work()
        self.assertFalse(self.blocks.refs)
        self.assertFalse(self.session.busy())
        self.assertEqual(self.flow().count("COMMIT"), 2)

    def test_a_store_that_is_reported_is_committed_at_the_end(self) -> None:
        for end in (self.session.yield_blocks, self.session.reset, self.session.close):
            with self.subTest(end=end.__name__):
                self.setUp()
                self.offers(2)
                jobs = self.copies(2)
                self.session.settle(Done({job: [1, 0] for job in jobs}))
                getattr(self.session, end.__name__)()
                self.assertFalse(self.blocks.refs)
                self.assertEqual(self.sent().count("COMMIT"), 2)

    def test_decoded_tokens_that_the_protocol_cannot_carry(self) -> None:
        tokens = list(TOKENS)
        self.session.open("a", 0, tokens)
        self.hit("a")
        tokens += [2**32, 1]
        self.assertTrue(self.session.computed("a", 0, 4, [[100, 101, 102, 103]]))
        self.assertEqual(self.flow(), [], "APPEND cannot be encoded")
        self.assertFalse(self.session.take_work())
        self.assertFalse(self.session.busy())
        self.assertFalse(self.blocks.refs)
        self.assertEqual((self.count("skipped"), self.count("dropped_stores")), (1, 4))
        tokens += [1, 2]
        self.session.computed("a", 0, 5, [[100, 101, 102, 103, 104]])
        self.assertEqual(self.sent(), [], "the request stores nothing more")


if __name__ == "__main__":
    unittest.main()
