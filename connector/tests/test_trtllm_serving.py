"""TensorRT-LLM's connector with a stand-in of the executor and a real agent.

The stand-in checks every loaded byte and overwrites every freed block.
"""

from __future__ import annotations

import unittest
from unittest import mock

from tests import planes
from tests.agentproc import needs_agent, wait_until
from tests.trtllm_case import (
    BLOCK_TOKENS,
    BlockyardLeader,
    BlockyardWorker,
    Case,
    Executor,
    SecondExecutor,
    arguments,
    leader_module,
    prompt,
    worker_module,
)


@planes.both
@needs_agent
class Serving(Case):
    def test_what_one_request_stored_another_loads(self) -> None:
        engine = self.engine()
        first = self.request(prompt(1))
        self.run_to_end(engine, first)
        self.stored(4)
        second = self.request(prompt(1))
        self.run_to_end(engine, second)
        self.assertEqual(engine.hits[first.request_id], 0)
        self.assertEqual(engine.hits[second.request_id], 4 * BLOCK_TOKENS)
        self.settled(engine)

    def test_one_token_is_left_to_compute(self) -> None:
        """The hit of a completely resident prompt omits its last block."""
        engine = self.engine()
        whole = prompt(1)[:-1]
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        again = self.request(whole)
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 3 * BLOCK_TOKENS)

    def test_decoded_blocks_are_stored(self) -> None:
        engine = self.engine()
        first = self.request(prompt(1), new_tokens=2 * BLOCK_TOKENS)
        self.run_to_end(engine, first)
        self.stored(6)
        longer = self.request([*first.tokens[: 6 * BLOCK_TOKENS], 7])
        self.run_to_end(engine, longer)
        self.assertEqual(engine.hits[longer.request_id], 6 * BLOCK_TOKENS)

    def test_an_aborted_prompt_stores_what_was_computed(self) -> None:
        """Blocks that were never computed have garbage and must not be stored."""
        engine = self.engine(chunk=BLOCK_TOKENS)
        aborted = engine.submit(self.request(prompt(1, 8)))
        for _ in range(3):
            engine.step()
        engine.abort(aborted)
        wait_until("it is over", lambda: engine.step() or aborted.state == "done")
        self.settled(engine)
        again = self.request(prompt(1, 8))
        self.run_to_end(engine, again)
        self.assertLessEqual(engine.hits[again.request_id], 3 * BLOCK_TOKENS)

    def test_an_engine_that_is_started_again_finds_its_blocks(self) -> None:
        before = self.engine()
        self.run_to_end(before, self.request(prompt(1)))
        self.stored(4)
        for part in (*before.workers, before.leader):
            part.shutdown()
        after = self.engine()
        again = self.request(prompt(1))
        self.run_to_end(after, again)
        self.assertEqual(after.hits[again.request_id], 4 * BLOCK_TOKENS)

    def test_salts_keep_requests_apart(self) -> None:
        engine = self.engine()
        self.run_to_end(engine, self.request(prompt(1), cache_salt="a"))
        self.stored(4)
        hits = {}
        for salt in ("a", "b", None):
            request = self.request(prompt(1), cache_salt=salt)
            self.run_to_end(engine, request)
            hits[salt] = engine.hits[request.request_id]
        self.assertEqual(hits, {"a": 4 * BLOCK_TOKENS, "b": 0, None: 0})

    def test_what_tokens_do_not_name_is_left_alone(self) -> None:
        engine = self.engine()
        for extra in (
            {"lora_task_id": 3},
            {"multimodal_positions": [1]},
            {"is_dummy_request": True},
            {"is_generation_only_request": True},
        ):
            with self.subTest(extra):
                self.run_to_end(engine, self.request(prompt(1), **extra))
                self.settled(engine)
                self.assertEqual(self.resident(), 0)
        self.assertEqual(engine.leader.stats()["skipped_lora"], 1)

    def test_a_hook_that_fails_costs_a_miss(self) -> None:
        engine = self.engine()
        request = self.request(prompt(1))
        request.request_id = "no number"  # type: ignore[assignment]
        with self.assertLogs("blockyard.trtllm.hub", "ERROR"):
            self.assertEqual(engine.leader.get_num_new_matched_tokens(request, 0), (0, False))
        self.assertEqual(engine.leader.stats()["failed_get_num_new_matched_tokens"], 1)

    def test_what_the_engine_has_no_room_for_is_not_loaded(self) -> None:
        """The engine takes a part of the hit, or nothing, and waits for the load."""
        engine = self.engine()
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        for room in (3, 1, 0):
            before = engine.workers[0].stats()["loaded_blocks"]
            engine.room = room
            again = self.request(prompt(1))
            self.run_to_end(engine, again)
            self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)
            self.assertEqual(engine.workers[0].stats()["loaded_blocks"] - before, room)
        self.settled(engine)

    def test_an_answer_that_is_late_is_a_miss(self) -> None:
        engine = self.engine()
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        with (
            mock.patch.object(leader_module, "ANSWER_SECONDS", 0.0),
            mock.patch.object(engine.leader._hub.session, "hit", return_value=None) as hit,
        ):
            again = self.request(prompt(1))
            self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 0)
        self.assertEqual(engine.leader.stats()["late_lookups"], 1)
        self.assertGreater(hit.call_args.kwargs["rest"], 0, "the hook receives all answers itself")
        self.settled(engine)
        wait_until("no pins", lambda: self.pool()["pins"] == 0)

    def test_a_long_prompt_is_waited_for(self) -> None:
        """The packer needs more time than one poll for the answer."""
        engine = self.engine(blocks=2100)
        tokens = prompt(1, 1040)
        self.run_to_end(engine, self.request(tokens))
        self.stored(1040)
        again = self.request(tokens)
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 1040 * BLOCK_TOKENS)


@planes.both
@needs_agent
class SecondManager(Case):
    host_size = "192MiB"

    def test_stores_at_the_end_and_loads(self) -> None:
        engine = self.engine(world=2, kind=SecondExecutor)
        before = engine.leader.stats()["stores"]
        first = engine.submit(self.request(prompt(1), new_tokens=10))
        for _ in range(6):
            engine.step()
        self.assertEqual(engine.leader.stats()["stores"], before)
        wait_until("it is over", lambda: engine.step() or first.state == "done")
        self.stored(4)
        again = self.request(prompt(1))
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)

    def test_a_request_that_is_run_again_begins_anew(self) -> None:
        engine = self.engine(kind=SecondExecutor)
        first = engine.submit(self.request(prompt(1), new_tokens=40))
        for _ in range(20):
            engine.step()
        engine.reset(first)
        wait_until("it is over", lambda: engine.step() or first.state == "done")
        self.stored(4)
        again = self.request(prompt(1))
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)

    def test_the_managers_do_not_share(self) -> None:
        """The bytes are equal in this test, but the connector cannot know that."""
        first = self.engine(kind=SecondExecutor)
        self.run_to_end(first, self.request(prompt(1)))
        self.stored(4)
        second = self.engine()
        again = self.request(prompt(1))
        self.run_to_end(second, again)
        self.assertEqual(second.hits[again.request_id], 0)


@planes.both
@needs_agent
class Ranks(Case):
    def test_ranks_store_and_load_their_own_shares(self) -> None:
        """Two ranks. The second gets the leader's name from the metadata, as in another process."""
        with (
            mock.patch.object(worker_module, "here", lambda: ""),
            mock.patch.object(leader_module, "READY_SECONDS", 0.01),
        ):
            engine = self.engine(world=2, joined=False)
            self.run_to_end(engine, self.request(prompt(2)))  # its metadata has the leader's name
            self.joined(engine)
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        again = self.request(prompt(1))
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)
        for worker in engine.workers:
            self.assertEqual(worker.stats()["loaded_blocks"], 4)
            self.assertGreaterEqual(worker.stats()["stored_blocks"], 4)

    def test_what_all_ranks_have_is_stored_once(self) -> None:
        engine = self.engine(world=2, outer=1)
        self.run_to_end(engine, self.request(prompt(1)))
        self.stored(4)
        again = self.request(prompt(1))
        self.run_to_end(engine, again)
        self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)
        first, second = (worker.stats()["stored_blocks"] for worker in engine.workers)
        self.assertGreaterEqual(first, 4)
        self.assertEqual(second, 0)
        self.assertEqual([w.stats()["loaded_blocks"] for w in engine.workers], [4, 4])

    def test_ranks_with_requests_of_their_own_share_a_pool(self) -> None:
        """Attention data parallelism: every rank has a leader, and all share blocks."""
        engines = [self.engine(rank=rank, attention_dp=True) for rank in (0, 5)]
        self.run_to_end(engines[0], self.request(prompt(1)))
        self.stored(4)
        for engine in engines:
            again = self.request(prompt(1))
            self.run_to_end(engine, again)
            self.assertEqual(engine.hits[again.request_id], 4 * BLOCK_TOKENS)

    def test_a_rank_that_never_comes_costs_the_cache_alone(self) -> None:
        leader = BlockyardLeader(arguments("m", 0, 2))
        self.addCleanup(leader.shutdown)
        worker = BlockyardWorker(arguments("m", 0, 2))
        self.addCleanup(worker.shutdown)
        engine = Executor(leader, [worker])
        for seed in (1, 1):
            request = self.request(prompt(seed))
            self.run_to_end(engine, request)
            self.assertEqual(engine.hits[request.request_id], 0)


if __name__ == "__main__":
    unittest.main()
