"""The scheduler side with the model of an agent. The test delivers each frame."""

from __future__ import annotations

import logging
import random
import unittest
from typing import Any
from unittest import mock

from blockyard import frames
from blockyard.frames import HelloFields
from blockyard.keeper import Keeper
from blockyard.namespace import Identity
from blockyard.readable import pack_runs
from blockyard.scheduler import SchedulerSession
from blockyard.settings import Settings
from blockyard.work import Done, Mapped, Work
from tests.agentproc import wait_until
from tests.fakeagent import FakeAgent
from tests.fakelink import PAGE, FakeLink
from tests.schedrig import NAMESPACE, Blocks

TOKENS = [1, 2, 3, 4, 5, 6]  # 3 blocks


class Desk(unittest.TestCase):
    """A session with a modelled agent. flow() lets the agent handle frames and answer."""

    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.agent = FakeAgent(random.Random(1), 64, lambda slot: False)
        self.agent.rng = mock.Mock(random=lambda: 0.5, choice=lambda options: options[0])
        self.blocks = Blocks()
        self.session = self.make()

    def make(self, **settings: Any) -> SchedulerSession:
        given = Settings(**{"socket": "/fake", "stats": False, **settings})
        session = SchedulerSession(given, self.blocks, PAGE)
        self.keeper: Keeper = session._keeper
        hello = HelloFields(engine="test", worker_id=1, namespace=NAMESPACE)
        with mock.patch.object(self.keeper, "start"):
            session.start(hello)
        self.keeper._hello = hello
        self.connect()
        session.take_work()
        session.mapped(self.mapped())
        return session

    def connect(self) -> None:
        with mock.patch("blockyard.keeper.Link", self.agent.connect):
            self.connection = self.keeper._connect()

    def mapped(self, *extents: int) -> Mapped:
        """Reports that the worker has mapped extent 0 and these extents."""
        c = self.connection
        return Mapped(1, c.nonce, c.session, pack_runs([0, *extents]))

    @property
    def link(self) -> FakeLink:
        return self.agent.links[-1]

    def keep(self) -> None:
        """One turn of the keeper's thread."""
        self.connection.flush()
        self.connection.receive()

    def sent(self) -> list[str]:
        """The names of the sent frames that the agent has not handled, with the keeper's."""
        self.keep()
        return [frames.name(frame_type) for frame_type, _, _ in self.link.sent]

    def flow(self) -> list[str]:
        """Lets the agent handle all frames and its answers arrive. Returns the frames' names."""
        names = self.sent()
        while self.link.sent:
            self.agent.handle(self.link)
        self.link.arrived.extend(self.link.answers)
        self.link.answers.clear()
        self.keep()
        return names

    def hit(self, rid: str, generation: int = 0) -> int:
        self.flow()
        hit = self.session.hit(rid, generation, 0, spin=0)
        assert hit is not None
        return hit.blocks

    def store(self, rid: str, tokens: list[int]) -> None:
        """Stores all blocks of a request."""
        self.session.open(rid, 0, list(tokens))
        self.hit(rid)
        ids = list(range(100, 100 + len(tokens) // PAGE))
        self.assertTrue(self.session.computed(rid, 0, len(ids), [ids]))
        self.flow()
        self.copy(self.session.take_work(), ("w1", "", ""), tokens)
        self.flow()
        self.session.take_work()
        self.session.finished(rid)
        self.flow()

    def copy(self, work: Work, root: tuple, tokens: list[int]) -> None:
        done = Done()
        for store in work.stores:
            for at in range(0, len(store.slots), 16):
                slot = int.from_bytes(store.slots[at + 4 : at + 8], "little")
                block = int.from_bytes(store.blocks[at // 4 : at // 4 + 4], "little") - 100
                self.agent.slots[slot].content = (*root, *tokens[: (block + 1) * PAGE])
            done.add(store.job, True)
        self.session.settle(done)

    def count(self, name: str) -> int:
        return self.session.stats()[name]


class Asking(Desk):
    def test_a_hit_is_the_same_however_often_it_is_asked(self) -> None:
        self.store("a", TOKENS)
        self.session.open("b", 0, TOKENS)
        self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
        self.assertEqual(self.flow(), ["OPEN", "LOOKUP"])
        for _ in range(3):
            hit = self.session.hit("b", 0, 1, spin=0)
            self.assertEqual((hit.blocks, hit.sources, len(hit.slots)), (2, b"\x01\x01", 32))
        self.assertEqual(self.sent(), [])
        self.assertEqual(self.session.hit("b", 0, 3, spin=0).blocks, 0)

    def test_blocks_that_come_from_disk_are_asked_for_again_with_a_wait(self) -> None:
        self.store("a", TOKENS)
        self.session.open("b", 0, TOKENS)
        self.agent.rng.random = lambda: 0.05  # all blocks are still on disk
        self.flow()
        self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
        self.assertEqual(self.link.sent[0][2]["wait_ms"], 1000)
        self.assertEqual(self.hit("b"), 3)

    def test_a_hit_grows_while_the_request_waits(self) -> None:
        self.session.open("b", 0, TOKENS)
        self.assertEqual(self.hit("b"), 0)
        self.store("a", TOKENS[:4])
        with mock.patch("blockyard.lookups._REFRESH_SECONDS", 0.0):
            self.assertEqual(self.session.hit("b", 0, 0, spin=0).blocks, 0)
        self.assertEqual(self.hit("b"), 2)

    def test_answers_that_overtake_each_other(self) -> None:
        """Three LOOKUPs of one block each. The last answer arrives first."""
        self.store("a", TOKENS)
        with mock.patch("blockyard.lookups._BLOCKS", 1):
            self.session.open("b", 0, TOKENS)
        self.assertEqual(self.flow(), ["OPEN", "LOOKUP", "LOOKUP", "LOOKUP"])
        self.link.arrived.reverse()
        self.assertEqual(self.hit("b"), 3)

    def test_pins_behind_a_gap_are_given_back(self) -> None:
        self.store("a", TOKENS)
        slot = self.agent.find(("w1", "", "", *TOKENS[:4]))
        self.agent.slots[slot].key = None
        with mock.patch("blockyard.lookups._BLOCKS", 1):
            self.session.open("b", 0, TOKENS)
        self.assertEqual(self.hit("b"), 1)
        self.assertEqual(self.flow(), ["RELEASE"])
        self.assertEqual(sum(len(m.pins) for m in self.agent.slots), 1)

    def test_requests_beyond_the_agents_limit_are_not_opened(self) -> None:
        for i in range(self.agent.max_requests + 2):
            self.session.open(f"r{i}", 0, TOKENS)
        self.assertEqual(self.count("too_many"), 2)
        self.assertEqual(self.session.hit("r7", 0, 0).blocks, 0)
        self.assertEqual(self.sent().count("OPEN"), self.agent.max_requests)

    def test_an_id_that_is_used_again_gets_another_number(self) -> None:
        for _ in range(2):
            self.session.open("a", 0, TOKENS)
            self.session.finished("a")
        numbers = [body["req"] for kind, _, body in self.link.sent if kind == frames.OPEN]
        self.assertEqual(len(set(numbers)), 2)
        self.assertEqual(self.flow().count("CLOSE"), 2)

    def test_what_the_protocol_cannot_carry_is_skipped(self) -> None:
        self.session.open("a", 0, [1, -1])
        self.session.open("b", 0, [1, 2**32])
        self.session.open("c", 0, TOKENS, Identity(salt="x" * 2000))
        self.session.open("d", 0, [1, 2], Identity(lora_name="\ud800"))
        self.assertEqual(self.sent(), [])
        self.assertEqual(self.count("skipped"), 4)
        for rid in "abcd":
            self.assertEqual(self.session.hit(rid, 0, 0).blocks, 0)
            self.session.finished(rid)

    def test_a_refused_frame_breaks_its_request_and_no_other(self) -> None:
        self.session.open("a", 0, TOKENS)
        self.session.open("b", 0, TOKENS)
        self.flow()
        number = next(n for n, r in self.connection.requests.items() if r.rid == "a")
        self.link.arrived.clear()
        self.link.answer(frames.ERROR, 0, code="limit", retryable=False, req=number, text="no")
        self.link.arrived.extend(self.link.answers)
        self.link.answers.clear()
        self.session.hit("b", 0, 0, spin=0)
        self.session.computed("a", 0, 3, [[1, 2, 3]])
        self.assertEqual(self.sent(), [])
        self.session.computed("b", 0, 3, [[4, 5, 6]])
        self.assertEqual(self.sent(), ["STORE"])

    def test_a_long_prompt_is_packed_by_the_helper(self) -> None:
        tokens = list(range(5000))
        self.session.open("a", 0, tokens)
        self.assertEqual(self.session.hit("a", 0, 0, spin=0), None)

        def asked() -> bool:
            self.session.take_work()
            return self.sent().count("LOOKUP") == 3

        wait_until("the LOOKUPs", asked)
        self.assertEqual(self.sent()[:3], ["OPEN", "APPEND", "APPEND"])
        self.assertEqual(self.hit("a"), 0)


class Loading(Desk):
    def test_pins_drop_once_when_all_workers_have_reported(self) -> None:
        self.store("a", TOKENS)
        self.session._settling.workers = 2
        self.session.open("b", 0, TOKENS)
        self.assertEqual(self.hit("b"), 3)
        self.assertTrue(self.session.load("b", 0, 0, [[7, 8, 9]]))
        self.assertEqual(self.flow(), ["CLAIM"])
        load = self.session.take_work().loads[0]
        self.session.finished("b")
        self.session.settle(Done({load.job: [1, 0]}))
        self.assertEqual(self.sent(), [], "a copy of another worker may be in flight")
        self.session.settle(Done({load.job: [1, 0]}))
        self.assertEqual(self.sent(), ["RELEASE", "CLOSE"])
        self.session.settle(Done({load.job: [2, 0]}))
        self.assertEqual(len(self.sent()), 2, "a report that comes twice changes nothing")

    def test_several_groups_load_by_the_engines_channel_alone(self) -> None:
        """A CLAIM has one device block for each block, so several groups need Work."""
        self.store("a", TOKENS)
        self.session.open("b", 0, TOKENS)
        self.assertEqual(self.hit("b"), 3)
        self.assertTrue(self.session.load("b", 0, 1, [[7, 8], [1, 2]]))
        self.assertEqual(self.sent(), [])
        load = self.session.take_work().loads[0]
        self.assertEqual((len(load.slots), len(load.blocks)), (32, 16))

    def test_a_load_that_cannot_begin_is_reported_as_failed(self) -> None:
        self.assertFalse(self.session.load("unknown", 0, 0, [[1, 2]]))
        load = self.session.take_work().loads[0]
        self.assertEqual((load.rid, load.slots), ("unknown", b""))
        self.assertTrue(load.blocks)
        self.assertTrue(self.session.busy())
        self.session.settle(Done({load.job: [0, 1]}))
        self.assertFalse(self.session.busy())

    def test_the_end_of_a_connection_between_hit_and_load(self) -> None:
        """The slots stay pinned for the ended session, and the load runs."""
        self.store("a", TOKENS)
        self.session.open("b", 0, TOKENS)
        self.assertEqual(self.hit("b"), 3)
        self.agent.die()
        self.keeper._part(self.connection)
        self.assertTrue(self.session.load("b", 0, 0, [[7, 8, 9]]))
        self.agent.start()
        self.connect()
        self.assertTrue(self.session.take_work().loads)
        self.assertEqual(len(self.link.sent[0][2]["pinned"]), 48)

    def test_drain_between_hit_and_load(self) -> None:
        self.store("a", TOKENS)
        self.session.open("b", 0, TOKENS)
        self.assertEqual(self.hit("b"), 3)
        self.connection.draining = True
        self.assertEqual(self.session.hit("b", 0, 0).blocks, 3)
        self.assertTrue(self.session.load("b", 0, 0, [[7, 8, 9]]))
        load = self.session.take_work().loads[0]
        self.assertNotIn("BYE", self.sent())
        self.session.settle(Done({load.job: [1, 0]}))
        self.assertIn("BYE", self.sent())


class Storing(Desk):
    def test_the_limit_on_held_blocks_puts_offers_off(self) -> None:
        self.session = self.make(max_inflight_blocks=2)
        self.session.open("a", 0, TOKENS)
        self.hit("a")
        ids = [100, 101, 102]
        self.assertFalse(self.session.computed("a", 0, 3, [ids]))
        self.assertEqual(sorted(self.blocks.refs), [100, 101])
        self.flow()
        self.copy(self.session.take_work(), ("w1", "", ""), TOKENS)
        self.assertTrue(self.session.computed("a", 0, 3, [ids]))
        self.assertEqual(sorted(self.blocks.refs), [102])

    def test_blocks_that_are_there_are_let_go_at_once(self) -> None:
        self.store("a", TOKENS[:4])
        self.session.open("b", 0, TOKENS, lookup=False)
        self.assertTrue(self.session.computed("b", 0, 3, [[100, 101, 102]]))
        self.assertEqual(len(self.blocks.refs), 3)
        self.flow()
        self.session.take_work()
        self.assertEqual(sorted(self.blocks.refs), [102])
        self.assertEqual(self.count("present_blocks"), 2)

    def test_blocks_can_be_let_go_at_once_and_then_nothing_of_them_is_stored(self) -> None:
        self.session.open("a", 0, TOKENS)
        self.hit("a")
        self.session.computed("a", 0, 2, [[100, 101]])
        self.flow()
        work = self.session.take_work()
        self.session.computed("a", 0, 3, [[100, 101, 102]])
        self.assertEqual(len(self.blocks.refs), 3)
        self.session.yield_blocks()
        self.assertFalse(self.blocks.refs)
        self.session.settle(Done({work.stores[0].job: [1, 0]}))
        self.session.take_work()
        self.assertNotIn("COMMIT", self.sent())
        self.flow()
        self.session.take_work()
        self.assertFalse(self.session.busy())
        self.assertEqual(self.count("dropped_stores"), 3)

    def test_a_grant_that_comes_too_late_is_aborted(self) -> None:
        self.session.open("a", 0, TOKENS)
        self.hit("a")
        self.session.computed("a", 0, 3, [[100, 101, 102]])
        self.assertTrue(self.session.busy())
        with mock.patch("blockyard.stores._now", lambda: 1e9):
            self.session.take_work()
        self.assertFalse(self.session.busy())
        self.assertFalse(self.blocks.refs)
        self.flow()
        self.assertFalse(self.session.take_work())
        self.assertEqual(self.flow(), ["ABORT"])

    def test_decoded_tokens_go_before_their_blocks(self) -> None:
        tokens = list(TOKENS)
        self.session.open("a", 0, tokens)
        self.hit("a")
        self.session.computed("a", 0, 3, [[100, 101, 102]])
        tokens += [7, 8, 9]
        self.flow()
        self.session.computed("a", 0, 5, [[100, 101, 102, 103, 104]])
        self.assertEqual(self.sent(), ["APPEND", "STORE"])
        self.assertEqual(self.link.sent[1][2]["count"], 1, "the fifth block is not complete")

    def test_a_failed_copy_is_not_committed(self) -> None:
        self.session.open("a", 0, TOKENS)
        self.hit("a")
        self.session.computed("a", 0, 3, [[100, 101, 102]])
        self.flow()
        store = self.session.take_work().stores[0]
        self.session.settle(Done({store.job: [0, 1]}))
        self.assertEqual(self.flow(), ["ABORT"])
        self.assertFalse(self.blocks.refs)
        self.assertEqual(self.count("dropped_stores"), 3)

    def test_settings_turn_loads_and_stores_off(self) -> None:
        self.session = self.make(load=False)
        self.session.open("a", 0, TOKENS)
        self.assertEqual(self.sent(), ["OPEN"])
        self.session = self.make(store=False)
        self.session.open("a", 0, TOKENS)
        self.hit("a")
        self.session.computed("a", 0, 3, [[1, 2, 3]])
        self.assertEqual(self.sent(), [])

    def test_a_connection_with_the_old_weights_is_left(self) -> None:
        """The connection was made during a reset of the engine's cache."""
        self.agent.die()
        self.keeper._part(self.connection)
        self.session.take_work()
        self.agent.start()
        self.connect()
        self.session._attachment.weights = "new"
        self.session.take_work()
        self.assertEqual(self.count("connected"), 0)
        self.assertEqual(self.sent()[-1], "BYE")


if __name__ == "__main__":
    unittest.main()
