"""The scheduler side under faults: dying or hanging agents, failing workers, a late packer.

The test delivers each frame.
"""

from __future__ import annotations

import time
import unittest
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from blockyard import frames
from blockyard.frames import HelloFields
from blockyard.keeper import LOST, Keeper
from blockyard.work import Done, Work
from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.fakelink import PAGE, SteppedPacker
from tests.schedrig import NAMESPACE
from tests.test_scheduler import TOKENS, Desk

CLOCKS = ("attachment", "connection", "lookups", "packer", "stores", "trust")
IDS = [100, 101, 102]


class FaultDesk(Desk):
    """A Desk with a clock that the test sets."""

    def setUp(self) -> None:
        self.now = time.monotonic()
        for module in CLOCKS:
            patch = mock.patch(f"blockyard.{module}._now", lambda: self.now)
            patch.start()
            self.addCleanup(patch.stop)
        super().setUp()

    def offer(self, rid: str = "a", blocks: int = 3) -> Work:
        """Gets grants for all blocks of a request, and passes the stores to the workers."""
        self.session.open(rid, 0, list(range(7, 7 + PAGE * blocks)))
        self.hit(rid)
        self.session.computed(rid, 0, blocks, [list(range(100, 100 + blocks))])
        self.flow()
        work = self.session.take_work()
        self.assertEqual(len(work.stores), 1)
        return work

    def filled(self, work: Work, blocks: int = 3) -> None:
        self.copy(work, ("w1", "", ""), list(range(7, 7 + PAGE * blocks)))

    def death(self) -> None:
        """Restarts the agent. The keeper notices and connects."""
        self.agent.die()
        self.agent.start()
        with mock.patch.object(self.connection, "receive", lambda: False):
            self.keeper._part(self.connection)
        self.connect()

    def load(self, rid: str, ok: bool) -> int:
        """Runs a request that loads its hit. Returns the number of blocks."""
        self.session.open(rid, 0, list(TOKENS))
        blocks = self.hit(rid)
        if blocks:
            self.assertTrue(self.session.load(rid, 0, 0, [[1, 2, 3][:blocks]]))
            self.flow()
            done = Done()
            for load in self.session.take_work().loads:
                done.add(load.job, ok)
            self.session.settle(done)
        self.session.finished(rid)
        self.flow()
        self.session.take_work()
        return blocks


class Faults(FaultDesk):
    def test_a_step_without_its_stores_still_has_its_loads(self) -> None:
        self.filled(self.offer())
        self.session.finished("a")
        tokens = list(range(7, 7 + PAGE * 3))
        self.session.open("b", 0, tokens)
        self.assertEqual(self.hit("b"), 3)
        self.assertTrue(self.session.load("b", 0, 0, [[1, 2, 3]]))
        with (
            mock.patch.object(self.session._stores, "queued", [None]),
            mock.patch.object(self.session._stores, "take", side_effect=RuntimeError("fault")),
            self.assertRaisesRegex(RuntimeError, "fault"),
        ):
            self.session.take_work()
        self.assertEqual([load.rid for load in self.session.take_loads().loads], ["b"])
        self.assertFalse(self.session.take_work())


class Late(FaultDesk):
    def stepped_packer(self) -> SteppedPacker:
        packer = SteppedPacker()
        for owner in (self.session, self.session._lookups, self.session._attachment):
            owner._packer = packer
        return packer

    def test_a_prompt_that_takes_long_to_pack_leaves_the_cache_on(self) -> None:
        packer = self.stepped_packer()
        self.session.open("long", 0, list(range(4000)))
        self.assertIsNone(self.session.hit("long", 0, 0, spin=0))
        self.now += 1.01  # the packer had to wait for the interpreter's lock
        self.assertEqual(self.session.hit("long", 0, 0, spin=0).blocks, 0)
        packer.pack_one()
        self.session.take_work()
        self.flow()
        self.session.open("next", 0, TOKENS)
        self.assertIn("OPEN", self.sent(), "a healthy agent is asked about the next request")

    def test_an_answer_to_the_packers_lookup_is_known_when_the_prompt_is(self) -> None:
        packer = self.stepped_packer()
        self.session.open("long", 0, list(range(4000)))
        packer.pack_one()
        packer.pack_one()  # sends the LOOKUP before the engine asks
        self.flow()
        self.assertIsNotNone(self.session.hit("long", 0, 0, spin=0))
        self.assertEqual(self.session.stats()["errors"], 0)

    def test_lookups_of_a_prompt_that_was_not_packed_are_not_waited_for(self) -> None:
        packer = self.stepped_packer()
        self.session.open("long", 0, list(range(4000)))
        self.session.finished("long")
        packer.pack_one()
        packer.pack_one()
        self.session.take_work()
        self.assertEqual(self.session._attachment.connection.waiting, {})
        self.assertNotIn("LOOKUP", self.sent())

    def test_a_prompt_waits_while_the_packer_gets_on_with_others_but_not_for_ever(self) -> None:
        packer = self.stepped_packer()
        for rid in ("first", "second"):
            self.session.open(rid, 0, list(range(4000)))
        for _ in range(10):
            self.now += 0.9
            packer.progress = self.now
            self.assertIsNone(self.session.hit("second", 0, 0, spin=0))
        self.now += 1.1
        packer.progress = self.now
        self.assertEqual(self.session.hit("second", 0, 0, spin=0).blocks, 0)

    def test_close_does_not_wait_for_prompts_that_find_no_room(self) -> None:
        self.agent.fullness = 1.0
        for n in range(20):
            self.session.open(f"r{n}", 0, list(range(4000)))
        thread = self.session._packer._thread
        assert thread is not None
        self.session.close()
        thread.join(60)
        self.assertFalse(thread.is_alive(), "the clock stands still: no time limit ends the wait")

    def test_an_answer_that_is_overdue_keeps_requests_away_for_a_while_only(self) -> None:
        self.session.open("a", 0, TOKENS)
        self.link.sent.clear()  # the agent loses the LOOKUP
        self.now += 1.01
        self.assertEqual(self.session.hit("a", 0, 0, spin=0).blocks, 0)
        self.session.open("b", 0, TOKENS)
        self.assertEqual(self.sent(), [])
        self.now += 10.1
        self.session.open("c", 0, TOKENS)
        self.assertEqual(self.sent(), ["OPEN", "LOOKUP"])

    def test_a_generation_that_was_not_opened_sends_nothing(self) -> None:
        self.session.open("a", 0, list(TOKENS))
        self.hit("a")
        self.connection.stall()
        self.session.hit("a", 1, 0, spin=0)  # preempted, and no LOOKUP is sent
        self.now += 11
        self.session.computed("a", 1, 3, [IDS])
        self.assertEqual(self.flow(), [])
        self.session.finished("a")
        self.assertEqual(self.flow(), ["CLOSE"], "of the generation that was opened")
        self.session.take_work()
        self.assertEqual(self.count("errors"), 0)


class Doubt(FaultDesk):
    def doubt(self) -> None:
        """Makes two loads in a row fail."""
        for rid in ("b1", "b2"):
            self.assertEqual(self.load(rid, ok=False), 3)

    def test_loads_that_fail_every_time_are_tried_at_growing_intervals(self) -> None:
        """A worker that cannot join its session fails all loads."""
        self.store("a", TOKENS)
        tries = 0
        for n in range(300):
            tries += bool(self.load(f"r{n}", ok=False))
            self.now += 1.0
        self.assertIn(tries, range(5, 15))
        self.assertEqual(self.count("doubted"), 300 - tries)
        self.assertFalse(any(memory.pins for memory in self.agent.slots))

    def test_one_failure_is_the_fault_of_its_slots(self) -> None:
        """The slots may have another block now. Other hits are not affected."""
        self.store("a", TOKENS)
        for rid in ("b", "d", "f"):
            self.assertEqual(self.load(rid, ok=False), 3)
            self.assertEqual(self.load(rid + "-next", ok=True), 3)
        self.assertEqual(self.count("doubted"), 0)

    def test_a_store_on_all_workers_ends_the_doubt(self) -> None:
        self.store("a", TOKENS)
        self.doubt()
        self.assertEqual(self.load("c", ok=True), 0)
        self.store("d", [9, 9, 9, 9])
        self.assertEqual(self.load("e", ok=True), 3)

    def test_one_load_at_a_time_shows_whether_they_work_again(self) -> None:
        self.store("a", TOKENS)
        self.doubt()
        self.now += 1.1
        for rid in ("c", "d"):
            self.session.open(rid, 0, list(TOKENS))
        self.assertEqual(self.hit("c"), 3)
        self.assertTrue(self.session.load("c", 0, 0, [[1, 2, 3]]))
        self.assertEqual(self.hit("d"), 0)
        load = self.session.take_work().loads[0]
        self.session.settle(Done({load.job: [1, 0]}))
        self.assertEqual(self.load("e", ok=True), 3)

    def test_a_claim_that_reaches_too_few_workers_is_a_doubt_until_its_load_has_ended(self) -> None:
        self.store("a", TOKENS)
        self.session._settling.workers = self.session._loads.workers = 2
        self.session.open("b", 0, list(TOKENS))
        self.session.open("c", 0, list(TOKENS))
        self.assertEqual(self.hit("b"), 3)
        self.assertTrue(self.session.load("b", 0, 0, [[1, 2, 3]]))
        self.flow()
        load = self.session.take_work().loads[0]
        self.assertEqual(self.hit("c"), 0)
        self.session.settle(Done({load.job: [2, 0]}))  # the second worker had the job from its Work
        self.session.open("d", 0, list(TOKENS))
        self.assertEqual(self.hit("d"), 3)


class Resume(FaultDesk):
    def test_it_is_sent_when_enough_copies_have_ended_without_a_new_request(self) -> None:
        with mock.patch.object(frames, "MAX_RESUME_SLOTS", 2):
            work = self.offer()
            self.death()
            self.session.take_work()
            self.assertEqual(self.sent(), [], "three slots, and room for two")
            self.filled(work)
            self.session.take_work()
            self.assertEqual(self.sent(), ["RESUME"])

    def test_after_two_quick_deaths_the_session_that_resumed_is_named(self) -> None:
        work = self.offer()
        self.death()
        second = self.connection.session
        self.session.take_work()
        self.assertEqual(self.flow(), ["RESUME"])
        self.connection.receive()  # RESUMED has arrived, but the session has not taken it
        self.death()
        self.session.take_work()
        named = [body["session"] for kind, _, body in self.link.sent if kind == frames.RESUME]
        self.assertEqual(named, [second])
        self.flow()
        self.filled(work)
        self.session.take_work()
        self.assertEqual(self.flow()[0], "COMMIT")
        self.session.take_work()
        self.assertEqual(self.count("resumed_blocks"), 3)

    def test_first_request_after_a_restart_is_asked_about_once_slots_are_named(self) -> None:
        self.offer()
        self.death()
        self.session.open("first", 0, list(TOKENS))  # the engine's first call
        self.assertEqual(self.sent(), ["RESUME"])
        self.assertIsNone(self.session.hit("first", 0, 0, spin=0), "ask again, not a miss")
        self.flow()
        self.session.hit("first", 0, 0, spin=0)
        self.assertEqual(self.sent()[:2], ["OPEN", "LOOKUP"])
        self.assertEqual(self.count("absent"), 0)

    def test_a_request_that_waits_for_that_is_given_up_when_the_agent_dies_again(self) -> None:
        self.offer()
        self.death()
        self.session.open("first", 0, list(TOKENS))
        self.session.hit("first", 0, 0, spin=0)
        self.link.close()
        self.assertEqual(self.session.hit("first", 0, 0, spin=0).blocks, 0)

    def test_a_commit_that_was_not_sent_is_named_and_stored(self) -> None:
        work = self.offer()
        self.session.finished("a")
        self.agent.fullness = 1.0
        self.filled(work)
        self.assertEqual(self.sent(), [])
        self.agent.fullness = 0.0
        self.death()
        self.session.take_work()
        self.assertEqual(self.flow(), ["RESUME"])
        self.session.take_work()
        self.flow()
        self.session.take_work()
        self.assertEqual(self.count("resumed_blocks"), 3)
        self.assertEqual(self.count("dropped_stores"), 0)

    def test_a_commit_that_cannot_be_sent_any_more_is_counted(self) -> None:
        work = self.offer()
        self.agent.fullness = 1.0
        self.filled(work)
        self.session.reset()
        self.death()
        self.agent.fullness = 0.0
        self.session.take_work()
        self.assertNotIn("RESUME", self.flow())
        self.assertEqual(self.count("dropped_stores"), 3)


class Hanging(FaultDesk):
    def test_an_agent_that_hangs_does_not_keep_the_engine_stepping_after_a_reset(self) -> None:
        self.session.open("a", 0, list(TOKENS))
        self.hit("a")
        self.agent.fullness = 1.0
        self.session.reset()
        self.assertTrue(self.session.busy())
        self.now += 2.1
        self.session.take_work()
        self.assertFalse(self.session.busy())
        self.assertEqual(self.agent.links, [], "the connection was closed")

    def test_a_commit_without_room_is_sent_without_the_engine(self) -> None:
        work = self.offer()
        self.agent.fullness = 1.0
        self.filled(work)
        self.assertFalse(self.session.busy(), "the engine need not step for it")
        self.assertEqual(self.sent(), [])
        self.agent.fullness = 0.0
        self.assertEqual(self.sent(), ["COMMIT"])

    def test_nothing_is_offered_to_an_agent_that_does_not_read_and_all_of_it_later(self) -> None:
        self.session.open("a", 0, list(TOKENS))
        self.hit("a")
        self.agent.fullness = 1.0
        self.session.release_hit("a", 0)
        self.session.finished("a")
        self.assertEqual(self.sent(), [])
        self.session.open("b", 0, list(TOKENS))
        self.assertFalse(self.session.computed("b", 0, 3, [IDS]))
        self.assertFalse(self.blocks.refs)


class Reset(FaultDesk):
    def test_a_commit_that_is_refused_while_resetting_leaves_nothing_open(self) -> None:
        work = self.offer()
        self.session.hit("a", 1, 0, spin=0)  # preempted: the copy belongs to an earlier generation
        self.flow()
        self.filled(work)
        self.session.reset()
        kinds = [frames.name(kind) for kind, _, _ in self.link.sent]
        self.assertEqual(kinds, ["COMMIT", "CLOSE", "CLOSE", "RESET", "BYE"])
        self.agent.faults = 1.0
        self.agent.handle(self.link)
        self.agent.faults = 0.0
        self.flow()  # the model raises Violation for RESET with open requests
        self.assertFalse(self.blocks.refs)


@needs_agent
class KeeperThread(unittest.TestCase):
    @contextmanager
    def keeper(self, counters: object) -> Iterator[Keeper]:
        with AgentProcess() as agent:
            keeper = Keeper(agent.socket, counters)  # type: ignore[arg-type]
            try:
                keeper.start(HelloFields("t", 3, namespace=NAMESPACE))
                yield keeper
            finally:
                keeper.close()

    def test_an_error_does_not_end_it_and_the_engine_is_told(self) -> None:
        calls: list[int] = []

        def counters() -> dict[str, int]:
            calls.append(1)
            if len(calls) == 2:
                raise RuntimeError("once")
            return {"lookups": len(calls)}

        with self.assertLogs("blockyard.keeper", "ERROR"), self.keeper(counters) as keeper:
            wait_until("the second connection", lambda: keeper.connects == 2)
            self.assertEqual(keeper.errors, 1)
            self.assertEqual([kind for kind, _ in keeper.events][:2], ["up", LOST])


if __name__ == "__main__":
    unittest.main()
