"""TensorRT-LLM's connector under faults: the agent dies, loads fail, the engine takes blocks.

The stand-in engine checks every loaded byte in all tests.
"""

from __future__ import annotations

import os
import random
import unittest
from collections.abc import Callable
from typing import Any
from unittest import mock

from blockyard.packed import pack_slots, unpack_slots
from blockyard.trtllm import copies as copies_module
from blockyard.work import Work
from tests import planes
from tests.agentproc import needs_agent, wait_until
from tests.trtllm_case import BLOCK_TOKENS, Case, Executor, LlmRequest, prompt, worker_module


@planes.both
@needs_agent
class Deaths(Case):
    def test_an_engine_serves_on_without_an_agent_and_finds_the_next_one(self) -> None:
        engine = self.engine()
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        self.agent.kill9()
        alone = self.request(prompt(1))
        self.run_to_end(engine, alone)
        self.assertEqual(engine.hits[alone.request_id], 0)
        self.agent.start()
        self.joined(engine)
        again = self.request(prompt(1))
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)
        self.settled(engine)

    def test_an_engine_that_starts_before_its_agent(self) -> None:
        self.agent.kill9()
        engine = self.engine(joined=False)
        self.run_to_end(engine, self.request(prompt(1)))
        self.agent.start()
        self.joined(engine)
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)

    def test_the_agent_may_die_at_any_moment(self) -> None:
        """Requests with shared prompts run while the agent is killed, stopped and started.

        All end with the right bytes on both ranks, and no block stays held.
        """
        engine = self.engine(world=2, blocks=96, chunk=2 * BLOCK_TOKENS)
        rng = random.Random(int(os.environ.get("BLOCKYARD_TEST_SEED", "5")))
        for _ in range(8):
            requests = []
            for _ in range(6):
                tokens, more = prompt(rng.randrange(3)), rng.randrange(1, 20)
                requests.append(engine.submit(self.request(tokens, new_tokens=more)))
            for _ in range(rng.randrange(12)):
                engine.step()
            rng.choice((self.agent.kill9, self.agent.terminate))()
            for _ in range(rng.randrange(4)):
                engine.step()
            self.agent.start()
            self.run_on(engine, requests)
        self.joined(engine)
        self.settled(engine)
        self.run_to_end(engine, self.request(prompt(7)))
        again = self.request(prompt(7))
        wait_until("what was stored is found", lambda: self.hits(engine, again))
        self.assertGreater(engine.workers[0].stats()["loaded_blocks"], 0)

    def test_a_promise_outlives_the_agent(self) -> None:
        """The agent is killed between its answer and the allocation, and other requests look up.

        The blocks come from the mapping.
        """
        engine = self.engine()
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        allocate = engine.leader.update_state_after_alloc

        def die_first(request: LlmRequest, blocks: list[int]) -> None:
            if engine.hits[request.request_id]:
                self.agent.kill9()
                wait_until("it is noticed", lambda: not engine.leader.stats()["connected"])
                other = self.request(prompt(9))
                self.assertEqual(engine.leader.get_num_new_matched_tokens(other, 0), (0, False))
                self.assertFalse(engine.leader.request_finished(other, []))
            allocate(request, blocks)

        with mock.patch.object(engine.leader, "update_state_after_alloc", die_first):
            again = self.request(prompt(1))
            self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)
        self.assertEqual(engine.workers[0].stats()["loaded_blocks"], 4)
        self.assertEqual(engine.leader.stats()["unclaimed_loads"], 1)

    def hits(self, engine: Executor, like: LlmRequest) -> int:
        request = self.request(like.prompt)
        self.run_to_end(engine, request)
        return engine.hits[request.request_id]

    def run_on(self, engine: Executor, requests: list[LlmRequest]) -> None:
        def over() -> bool:
            engine.step()
            return all(r.state == "done" for r in requests)

        wait_until("the requests are over", over, 30)


@planes.both
@needs_agent
class Failures(Case):
    def corrupt(self) -> None:
        """Changes the generation of every slot."""
        for pool in self.agent.get("/v1/pools"):
            for path in {block["host"]["path"] for block in pool["blocks"]}:
                with open(path, "r+b") as file:
                    file.write(b"\xff" * 8 * 64)

    def promised(self) -> tuple[Executor, LlmRequest]:
        """An engine, and a request whose blocks are damaged between hit and allocation."""
        engine = self.engine()
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        return engine, self.request(prompt(1))

    def test_a_load_that_fails_for_good_ends_the_step_with_an_error(self) -> None:
        engine, request = self.promised()
        self.corrupt()
        engine.submit(request)
        with mock.patch.object(copies_module, "RETRY_SECONDS", (0.01, 0.01)):
            with self.assertRaisesRegex(worker_module.LoadFailed, "wrong tokens"):
                wait_until("the load has failed", lambda: engine.step())
        self.assertEqual(engine.workers[0].stats()["retried_loads"], 2)
        self.assertEqual(request.state, "loading")

    def test_a_load_that_fails_for_a_while_is_tried_again(self) -> None:
        engine, request = self.promised()
        session = engine.workers[0]._copies._session
        begin, failures = session.begin, iter([True, True, True])

        def fail_first(work: Work, fence: object = None) -> None:
            """Gives the first tries a wrong generation."""
            if work.loads and next(failures, False):
                wrong = [
                    load._replace(
                        slots=pack_slots(
                            slot._replace(generation=99) for slot in unpack_slots(load.slots)
                        )
                    )
                    for load in work.loads
                ]
                work = Work(loads=wrong)
            begin(work, fence)

        # Otherwise the agent's own LOAD begins the copy.
        with (
            mock.patch.object(session, "begin", fail_first),
            mock.patch.object(session, "_early", False),
        ):
            session._wake_up()  # its thread may wait with the old value
            self.run_to_end(engine, request)
        self.assertEqual(engine.workers[0].stats()["retried_loads"], 3)

    def test_blocks_that_are_taken_away_are_not_stored(self) -> None:
        """A request is reset during the store of its blocks.

        The pages have other content by then, which must never hit under the request's tokens.
        """
        engine = self.engine(blocks=16)
        session = engine.workers[0]._copies._session
        begin, late = session.begin, []
        with mock.patch.object(session, "begin", lambda *work: late.append(work)):
            request = self.request(prompt(1), new_tokens=30)
            engine.submit(request)
            wait_until("the store is ordered", lambda: engine.step() or late)
            engine.reset(request)
            for work in late:
                begin(*work)
            late.clear()
            wait_until("the first stores have ended", lambda: not len(engine.leader._hub.held))
        self.assertEqual(self.resident(), 0)
        self.assertGreaterEqual(engine.leader.stats()["distrusted"], 1)
        self.run_on(engine, request)
        self.settled(engine)

    def test_a_request_that_is_asked_about_twice_begins_anew(self) -> None:
        """Releases without request_reset() only look up again."""
        engine = self.engine(blocks=16)
        request = engine.submit(self.request(prompt(1), new_tokens=30))
        for _ in range(4):
            engine.step()
        with mock.patch.object(engine.leader, "request_reset", lambda request: None):
            engine.reset(request)
        self.run_on(engine, request)
        self.settled(engine)
        self.assertEqual(engine.leader.stats()["requests"], 0)
        again = self.request(request.tokens)
        self.run_to_end(engine, again)
        self.assertEqual(engine.leader.stats()["failed_loads"], 0)

    def run_on(self, engine: Executor, request: LlmRequest) -> None:
        wait_until("it is over", lambda: engine.step() or request.state == "done", 20)

    def test_a_store_waits_for_the_rank_s_own_step(self) -> None:
        """A rank must not store KV of a step that it has not launched."""
        engine = self.engine()
        copies = engine.workers[0]._copies
        launched, begun = copies.launched, []
        begin = copies._session.begin
        with (
            mock.patch.object(copies, "launched", lambda step: False),
            mock.patch.object(copies._session, "begin", lambda *work: begun.append(work)),
        ):
            engine.submit(self.request(prompt(1), new_tokens=4))
            wait_until("the order is there", lambda: engine.step() or copies._waiting)
            self.assertEqual(begun, [])
            step = engine.workers[0]._step
            copies._launched = 0
        with engine.workers[0]._lock, mock.patch.object(copies._session, "begin", begin):
            self.assertTrue(launched(step))
        self.stored(4)

    def test_a_lost_worker_costs_the_cache_and_no_request(self) -> None:
        engine = self.engine()
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        copies = engine.workers[0]._copies
        with (
            self.assertLogs("blockyard", "ERROR"),
            mock.patch.object(copies, "poll", side_effect=RuntimeError("broken by the test")),
        ):
            storing = engine.submit(self.request(prompt(2)))
            self.run_on(engine, storing)
            wait_until("it is noticed", lambda: engine.leader._hub._crew.lost)
        again = self.request(prompt(1))
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 0)
        # A report of the lost worker may still arrive.
        wait_until("nothing is due", lambda: engine.step() or not engine.leader._hub.active())


if __name__ == "__main__":
    unittest.main()
