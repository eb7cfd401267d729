"""Several workers, steps that overlap and drafts, over vLLM's own scheduler and a real agent."""

from __future__ import annotations

import pathlib
import tempfile
import unittest
from typing import Any

from tests import vllm_fakes as fakes
from tests.agentproc import AgentProcess, needs_agent, wait_until

ORIGIN = fakes.require_vllm()

PROMPT = [(7 * n) % 500 for n in range(150)]
OUTPUT = 12


@needs_agent
@unittest.skipUnless(ORIGIN == "installed", "vLLM is not installed")
class Crews(unittest.TestCase):
    def setUp(self) -> None:
        self.agent = AgentProcess()
        self.addCleanup(self.agent.close)
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.directory = pathlib.Path(held.name)

    def reload(self, **shape: Any) -> Any:
        """Stores a prompt, empties the engine's cache, and loads the prompt. Returns the crew."""
        from tests.crew import Crew

        crew = Crew(self.directory, self.agent.socket, **shape)
        self.addCleanup(crew.close)
        crew.wait_connected()
        first = crew.run("first", PROMPT, OUTPUT)
        self.assertEqual(len(first), OUTPUT)
        self.settle_stores(crew)
        whole = (len(PROMPT) + OUTPUT - 1) // crew.align
        self.assertGreaterEqual(self.stored(), whole)
        # A hit ends before memory that a worker has not mapped within a second.
        for attempt in range(50):
            crew.settle(crew.forget, "vLLM's cache is empty")
            # The crew compares the KV of every worker when the request begins to run.
            self.assertEqual(crew.run(f"again-{attempt}", PROMPT, OUTPUT), first)
            whole = (len(PROMPT) - crew.behind) // crew.align * crew.align
            if crew.began[f"again-{attempt}"] == whole:
                return crew
        self.fail(f"no whole hit: {crew.began}")

    def settle_stores(self, crew: Any) -> None:
        """Steps until the crew has no offer and no copy left, and the agent has all its blocks.

        vLLM discards the stores in flight when it empties its cache.
        """
        crew.settle(lambda: not crew.scheduler.has_requests(), "every copy has ended")

        def quiet() -> bool:
            stats = self.agent.stats()
            return stats["quiet"] and not any(pool["host"]["granted"] for pool in stats["pools"])

        wait_until("all blocks are sealed", quiet)

    def stored(self) -> int:
        hosts = [pool["host"] for pool in self.agent.stats()["pools"]]
        return sum(host["active"] + host["inactive"] for host in hosts)

    def copied(self, crew: Any) -> list[tuple[bool, bool]]:
        """Whether each worker has loaded, and stored."""
        return [tuple(blocks > 0 for blocks in worker.copied()) for worker in crew.workers]

    def test_two_tensor_parallel_ranks_store_and_load_their_shards(self) -> None:
        crew = self.reload(tp=2)
        self.assertEqual(self.copied(crew), [(True, True)] * 2)

    def test_equal_kv_is_stored_by_one_rank_and_loaded_by_both(self) -> None:
        crew = self.reload(tp=2, mla=True)
        self.assertEqual(self.copied(crew), [(True, True), (True, False)])

    def test_uneven_pipeline_stages_share_a_block(self) -> None:
        crew = self.reload(tp=2, pp=2)
        self.assertEqual(self.copied(crew), [(True, True)] * 4)

    def test_windows_and_full_attention_on_two_ranks(self) -> None:
        crew = self.reload(tp=2, window=40)
        self.assertEqual(self.copied(crew), [(True, True)] * 2)

    def test_windows_with_steps_that_overlap(self) -> None:
        self.reload(window=40, overlapping=True)

    def test_chunks_beside_full_attention(self) -> None:
        for chunk in (64, 48):  # the prefix ends within a chunk, and where a chunk begins
            with self.subTest(chunk=chunk):
                self.setUp()
                crew = self.reload(tp=2, chunk=chunk)
                self.assertEqual(self.copied(crew), [(True, True)] * 2)

    def test_chunks_with_steps_that_overlap(self) -> None:
        self.reload(chunk=64, overlapping=True)

    def test_full_attention_in_larger_blocks_than_windows(self) -> None:
        crew = self.reload(tp=2, window=40, larger=2)
        self.assertEqual(self.copied(crew), [(True, True)] * 2)

    def test_a_data_parallel_rank_loads_what_the_other_one_has_computed(self) -> None:
        from tests.crew import Crew

        ranks = [Crew(self.directory, self.agent.socket, dp_rank=rank) for rank in (0, 1)]
        for crew in ranks:
            self.addCleanup(crew.close)
            crew.wait_connected()
        first, other = ranks
        output = first.run("first", PROMPT, OUTPUT)
        self.settle_stores(first)
        for attempt in range(50):
            other.settle(other.forget, "vLLM's cache is empty")
            before = other.computed
            self.assertEqual(other.run(f"again-{attempt}", PROMPT, OUTPUT), output)
            if other.began[f"again-{attempt}"] == 144:  # of 150 tokens
                break
        else:
            self.fail(f"no whole hit: {other.began}")
        # The last prompt tokens, and one for each token of the output but the last.
        self.assertEqual(other.computed - before, 150 - 144 + OUTPUT - 1)
        for rank, crew in enumerate(ranks):  # each reports once a second
            crew.settle(lambda n=rank: n in dict(map(reversed, self.reporters())), "a report")
        workers, numbers = zip(*self.reporters(), strict=True)
        self.assertEqual((set(numbers), len(set(workers))), ({0, 1}, 1), "ranks of one worker")

    def reporters(self) -> set[tuple[str, int]]:
        """Worker and rank of each scheduler that the agent has a report of."""
        reports = self.agent.stats()["connectors"]
        return {(one["worker"], one["rank"]) for one in reports if one["role"] == "scheduler"}

    def test_a_request_is_read_from_disk_before_a_step_looks_at_it(self) -> None:
        """vLLM looks for hits when it has a place for a request, however long that takes."""
        self.agent = AgentProcess(disk_size="64MiB")
        self.addCleanup(self.agent.close)
        crew, rid = self.reload(), "queued"
        self.settle_stores(crew)
        crew.settle(crew.forget, "vLLM's cache is empty")
        wait_until("the agent is quiet", lambda: self.agent.stats()["quiet"])
        self.agent.post("/v1/reset", {"tier": "host"})
        self.assertEqual(self.promotions(), 0)
        request = crew.add(rid, PROMPT, OUTPUT)
        wait_until("its blocks are read", lambda: self.promotions() == len(PROMPT) // crew.align)
        self.assertNotIn(rid, crew.began)  # no step has run
        crew.settle(request.is_finished, "the request ends")
        self.assertEqual(crew.began[rid], len(PROMPT) // crew.align * crew.align)

    def promotions(self) -> int:
        return sum(pool["promotions"] for pool in self.agent.stats()["pools"])

    def test_steps_that_overlap(self) -> None:
        self.reload(tp=2, overlapping=True)

    def test_rejected_drafts_are_never_stored(self) -> None:
        crew = self.reload(tp=2, drafts=3)
        self.assertGreater(crew.rejected, 0)

    def test_rejected_drafts_beside_windows(self) -> None:
        crew = self.reload(tp=2, drafts=3, window=40)
        self.assertGreater(crew.rejected, 0)

    def test_rejected_drafts_beside_chunks(self) -> None:
        crew = self.reload(drafts=3, chunk=64)
        self.assertGreater(crew.rejected, 0)

    def test_drafts_and_windows_in_steps_that_overlap(self) -> None:
        self.reload(drafts=3, window=40, overlapping=True)

    def test_a_draft_layer_gets_kv_of_the_same_next_token(self) -> None:
        """Without the block behind a hit, its last KV would be that of another next token."""
        for larger in (1, 2):
            with self.subTest(larger=larger):
                self.setUp()
                crew = self.reload(tp=2, drafts=3, eagle=True, window=200, larger=larger)
                self.assertGreater(crew.rejected, 0)
                end = 96  # of what two prompts have in common: full blocks of every group
                other = PROMPT[:end] + [501 + n for n in range(60)]
                crew.settle(crew.forget, "vLLM's cache is empty")
                crew.run("other", other, OUTPUT)
                self.assertEqual(crew.began["other"], end - crew.align)

    def test_a_turn_of_a_conversation_beside_a_draft_layer(self) -> None:
        crew = self.reload(drafts=3, eagle=True, window=200)
        following = PROMPT + crew.tokens["first"][len(PROMPT) :][:OUTPUT]
        computed = (len(following) - 1) // crew.align * crew.align
        crew.settle(crew.forget, "vLLM's cache is empty")
        crew.run("next", following + PROMPT[:20], OUTPUT)
        self.assertEqual(crew.began["next"], computed - crew.align)


if __name__ == "__main__":
    unittest.main()
