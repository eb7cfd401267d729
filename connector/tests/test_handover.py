"""Hand-overs: a request waits for the blocks that another engine stores."""

from __future__ import annotations

import logging
import time
import unittest
from typing import Any
from unittest import mock

from blockyard.handover import HandOver, read_hand_over
from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.schedrig import Rig
from tests.test_scheduler import TOKENS, Desk
from tests.vllm_case import Case

PROMPT = list(range(100, 142))  # 10 blocks of 4 tokens and a half


class Reading(unittest.TestCase):
    def test_what_a_router_asks_for(self) -> None:
        self.assertIsNone(read_hand_over(None))
        self.assertIsNone(read_hand_over({"prompt_token_ids": [1]}))
        params = {"blockyard": {"await": 7, "deadline_ms": 1500}}
        self.assertEqual(read_hand_over(params), HandOver(7, 1.5))

    def test_a_value_out_of_range_is_named(self) -> None:
        for given, named in (
            (3, "want an object"),
            ({"deadline_ms": 1}, "await: None, want 1.."),
            ({"await": 0, "deadline_ms": 1}, "await: 0, want 1.."),
            ({"await": True, "deadline_ms": 1}, "await: True, want 1.."),
            ({"await": 1, "deadline_ms": 60_001}, "deadline_ms: 60001, want 1..60000"),
        ):
            with self.subTest(given=given), self.assertRaisesRegex(ValueError, named):
                read_hand_over({"blockyard": given})


class InVllm(Case):
    def open_with(self, params: Any) -> Any:
        with mock.patch.object(self.session, "open", create=True) as opened:
            self.open(10, kv_transfer_params=params)
        return opened.call_args.kwargs["hand_over"]

    def test_the_session_gets_the_hand_over(self) -> None:
        asked = {"await": 2, "deadline_ms": 500}
        self.assertEqual(self.open_with({"blockyard": asked}), HandOver(2, 0.5))
        self.assertIsNone(self.open_with(None))

    def test_a_malformed_one_is_noted_and_the_request_runs(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)
        self.assertIsNone(self.open_with({"blockyard": {"await": "x"}}))
        self.assertEqual(self.side.faults.counts["hand_over: ValueError"], 1)


class Waiting(Desk):
    """The agent is a model, and the clock stands still unless a test moves it."""

    def setUp(self) -> None:
        super().setUp()
        self.now = time.monotonic()
        for module in ("handover", "lookups"):
            patch = mock.patch(f"blockyard.{module}._now", lambda: self.now)
            patch.start()
            self.addCleanup(patch.stop)

    def await_blocks(self, blocks: int, seconds: float = 1.0) -> None:
        self.session.open("b", 0, TOKENS, hand_over=HandOver(blocks, seconds))
        self.flow()

    def ask(self, local: int = 0) -> int | None:
        """The blocks of the hit after all frames have arrived, None for "ask again"."""
        self.flow()
        hit = self.session.hit("b", 0, local, spin=0)
        return None if hit is None else hit.blocks

    def counted(self) -> tuple[int, int, int]:
        return tuple(map(self.count, ("hand_overs", "hand_over_blocks", "hand_over_missing")))

    def test_a_request_waits_until_its_blocks_are_there(self) -> None:
        self.await_blocks(3)
        self.assertIsNone(self.ask())
        self.store("a", TOKENS[:4])  # two of three blocks
        self.now += 0.1
        for _ in range(3):
            self.assertIsNone(self.ask())
        self.assertEqual(self.counted(), (0, 0, 0))
        self.store("c", TOKENS)
        self.now += 0.1
        self.assertIsNone(self.ask(), "the blocks are looked up now")
        self.assertEqual(self.ask(), 3)
        self.assertEqual(self.counted(), (1, 3, 0))
        self.assertEqual(self.ask(), 3)
        self.assertEqual(self.counted(), (1, 3, 0), "a hand-over is counted once")

    def test_the_deadline_ends_the_wait_and_missing_blocks_are_counted(self) -> None:
        self.store("a", TOKENS[:2])
        self.await_blocks(3)
        self.assertIsNone(self.ask())
        self.now += 1.0
        self.assertEqual(self.ask(), 1)
        self.assertEqual(self.counted(), (1, 1, 2))

    def test_a_late_answer_does_not_end_the_wait(self) -> None:
        self.session.open("b", 0, TOKENS, hand_over=HandOver(3, 10.0))
        self.now += 5.0  # no answer has arrived
        self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
        self.assertEqual(self.counted(), (0, 0, 0))
        self.store("a", TOKENS)
        self.assertIsNone(self.ask(), "the blocks are looked up now")
        self.assertEqual(self.ask(), 3)
        self.assertEqual(self.counted(), (1, 3, 0))

    def test_the_deadline_ends_the_wait_for_a_late_answer(self) -> None:
        self.session.open("b", 0, TOKENS, hand_over=HandOver(3, 10.0))
        self.now += 10.0
        hit = self.session.hit("b", 0, 0, spin=0)
        self.assertEqual((hit.blocks, self.counted()), (0, (1, 0, 3)))

    def test_lookups_are_sent_at_growing_intervals(self) -> None:
        self.await_blocks(3, 10.0)
        sent = 0
        for _ in range(1000):  # a second in steps of a millisecond
            self.now += 0.001
            self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
            sent += self.flow().count("LOOKUP")
        self.assertGreater(sent, 25)
        self.assertLess(sent, 45)

    def test_more_blocks_than_the_prompt_has_are_not_awaited(self) -> None:
        self.store("a", TOKENS)
        self.await_blocks(9)
        self.assertEqual(self.ask(), 3)
        self.assertEqual(self.counted(), (1, 3, 0))

    def test_blocks_that_the_engine_has_are_not_awaited(self) -> None:
        self.await_blocks(3)
        self.assertEqual(self.ask(local=3), 0)
        self.assertEqual(self.counted(), (1, 3, 0))

    def test_without_an_agent_the_request_runs_at_once(self) -> None:
        self.agent.die()
        self.keeper._part(self.connection)
        self.session.take_work()
        self.session.open("b", 0, TOKENS, hand_over=HandOver(3, 10.0))
        hit = self.session.hit("b", 0, 0, spin=0)
        self.assertEqual((hit.blocks, self.counted()), (0, (1, 0, 3)))

    def test_the_agents_death_ends_the_wait(self) -> None:
        self.await_blocks(3, 10.0)
        self.assertIsNone(self.ask())
        self.agent.die()
        self.keeper._part(self.connection)
        self.session.take_work()
        hit = self.session.hit("b", 0, 0, spin=0)
        self.assertEqual((hit.blocks, self.count("hand_over_missing")), (0, 3))

    def test_a_request_that_ends_leaves_no_pins(self) -> None:
        self.await_blocks(3)
        self.store("a", TOKENS[:4])
        self.now += 0.1
        self.ask()
        self.assertIsNone(self.ask())
        self.assertEqual(sum(len(m.pins) for m in self.agent.slots), 2)
        self.session.finished("b")
        self.flow()
        self.assertEqual(sum(len(m.pins) for m in self.agent.slots), 0)


@needs_agent
class BetweenEngines(unittest.TestCase):
    def test_the_second_engine_is_asked_before_the_first_has_computed_anything(self) -> None:
        """Both requests begin in the same moment. The second engine loads what the first stores."""
        agent = AgentProcess()
        self.addCleanup(agent.close)
        first, second = (Rig(agent, worker_id=number) for number in (7, 8))
        for rig in (first, second):
            self.addCleanup(rig.close)
            rig.connect()
        second.session.open("r", 0, PROMPT, hand_over=HandOver(10, 20.0))
        first.session.open("r", 0, PROMPT)
        self.assertEqual(first.hit("r"), 0)
        for _ in range(5):
            self.assertIsNone(second.session.hit("r", 0, 0))
        ids = first.fill(PROMPT)
        for blocks in (4, 10):  # the prompt is computed in two steps
            first.session.computed("r", 0, blocks, [ids])
            first.drain()
        first.session.finished("r")
        self.assertEqual(second.hit("r"), 10)
        self.assertEqual(second.session.stats()["hand_over_blocks"], 10)
        targets = second.device_blocks(10)
        self.assertTrue(second.session.load("r", 0, 0, [targets]))
        second.drain()
        for source, target in zip(ids, targets, strict=True):
            self.assertEqual(second.worker.device[target], first.worker.device[source])

        def shown() -> bool:
            rows = agent.stats()["connectors"]
            return any(row.get("hand_over_blocks") == 10 for row in rows)

        wait_until("the agent shows the hand-over", shown)
