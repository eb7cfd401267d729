"""Loads within a step over vLLM's own scheduler and a real agent, with loads that fail.

The crew compares the KV that every request reads with the right KV, and its workers sample a wrong
token when a load has failed. So neither a wrong block nor a wrong token stays unseen.
"""

from __future__ import annotations

import pathlib
import random
import tempfile
import unittest
from typing import Any

from blockyard.work import Load
from tests import vllm_fakes as fakes
from tests.agentproc import AgentProcess, needs_agent

ORIGIN = fakes.require_vllm()

PROMPT = [(7 * n) % 500 for n in range(150)]
BLOCK = 16
WHOLE = len(PROMPT) // BLOCK * BLOCK
OUTPUT = 4


@needs_agent
@unittest.skipUnless(ORIGIN == "installed", "vLLM is not installed")
class ShortLoads(unittest.TestCase):
    def setUp(self) -> None:
        self.agent = AgentProcess()
        self.addCleanup(self.agent.close)
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.directory = pathlib.Path(held.name)
        self.broken: set[int] = set()  # workers whose loads fail

    def make(self, **shape: Any) -> Any:
        """A crew whose prompt the agent has, after a first hit of all its blocks."""
        from tests.crew import Crew

        self.crew = Crew(
            self.directory, self.agent.socket, short=True, damaged=self._damaged, **shape
        )
        self.addCleanup(self.crew.close)
        self.crew.wait_connected()
        self.first = self.crew.run("first", PROMPT, OUTPUT)
        self.forget()
        for attempt in range(50):  # until the workers have mapped all memory
            self.run_to_end(f"warm-{attempt}")
            self.forget()
            if self.crew.began[f"warm-{attempt}"] == WHOLE:
                self.crew.short = 0
                return
        self.fail(f"no whole hit: {self.crew.began}")

    def _damaged(self, worker: int, load: Load) -> bool:
        return worker in self.broken

    def forget(self) -> None:
        self.crew.settle(self.crew.forget, "vLLM's cache is empty")

    def run_to_end(self, *rids: str, prompt: list[int] = PROMPT) -> None:
        """Runs requests with one prompt. Their tokens must be right."""
        requests = [self.crew.add(rid, prompt, OUTPUT) for rid in rids]
        self.crew.settle(lambda: all(r.is_finished() for r in requests), f"{rids} end")
        for request in requests:
            self.assertEqual(list(request.output_token_ids), self.right(request, prompt))

    def right(self, request: Any, prompt: list[int]) -> list[int]:
        known = self.crew.tokens[request.request_id]
        return known[len(prompt) :][:OUTPUT]

    def test_a_reload_takes_no_step_of_its_own(self) -> None:
        for shape in ({}, {"tp": 2}):
            with self.subTest(**shape):
                self.make(**shape)
                request = self.crew.add("again", PROMPT, OUTPUT)
                steps = 0
                while "again" not in self.crew.began:
                    self.crew.step()
                    steps += 1
                    self.assertLess(steps, 1000, "no answer of the agent")
                # The step that found the hit computed the last tokens.
                self.assertEqual(len(request.output_token_ids), 1)
                self.assertEqual(self.crew.began["again"], WHOLE)
                self.crew.settle(request.is_finished, "the request ends")
                self.assertEqual(list(request.output_token_ids), self.first)
                self.assertEqual(self.crew.short, 1)
                self.setUp()

    def test_a_prompt_of_whole_blocks_computes_one_token(self) -> None:
        self.make()
        before = self.crew.computed
        self.run_to_end("whole", prompt=PROMPT[:WHOLE])
        self.assertEqual(self.crew.began["whole"], WHOLE - 1)
        self.assertEqual(self.crew.computed - before, OUTPUT)

    def test_a_failed_load_is_computed_also_when_one_rank_failed(self) -> None:
        self.make(tp=2)
        for broken in ({0}, {1}, {0, 1}):
            for self.broken in (broken, set()):  # after two failures the session withholds hits
                rid = f"{broken}-{self.broken}"
                self.run_to_end(rid)
                self.assertEqual(self.crew.began[rid], WHOLE)
                self.forget()
        self.assertEqual(self.crew.short, 6)

    def test_under_the_policy_fail_the_request_ends_and_no_other(self) -> None:
        from vllm.v1.request import RequestStatus

        self.make(policy="fail")
        self.broken = {0}
        request = self.crew.add("failed", PROMPT, OUTPUT)
        self.crew.settle(request.is_finished, "the request ends")
        self.assertEqual(request.status, RequestStatus.FINISHED_ERROR)
        self.assertEqual(list(request.output_token_ids), [])
        self.broken = set()
        self.run_to_end("next")  # finds no wrong block in vLLM's cache
        self.forget()
        self.run_to_end("good")
        self.assertEqual(self.crew.began["good"], WHOLE)

    def test_requests_of_one_step_do_not_share_a_load_before_it_has_ended(self) -> None:
        self.make()
        self.run_to_end("a", "b", "c")
        self.assertEqual(self.crew.short, 1)
        self.forget()
        self.broken = {0}
        self.run_to_end("d", "e", "f")
        self.assertGreater(self.crew.short, 1)

    def test_an_abort_during_the_step_of_a_failed_load_leaves_no_wrong_block(self) -> None:
        from vllm.v1.request import RequestStatus

        self.make()
        self.broken = {0}
        self.crew.add("aborted", PROMPT + PROMPT[:40], OUTPUT)

        def abort() -> None:
            if self.crew.short:
                self.crew.scheduler.finish_requests("aborted", RequestStatus.FINISHED_ABORTED)

        while "aborted" in self.crew.scheduler.requests:
            self.crew.step(abort)
        self.assertEqual(self.crew.short, 1)
        self.broken = set()
        self.run_to_end("local", prompt=PROMPT + PROMPT[:40])
        self.forget()
        self.run_to_end("stored", prompt=PROMPT + PROMPT[:40])
        self.assertGreaterEqual(self.crew.began["stored"], WHOLE)

    def test_a_request_that_ends_in_the_step_of_its_load_stores_the_rest(self) -> None:
        self.make()
        longer = [*PROMPT, *range(40)]
        request = self.crew.add("longer", longer, 1)
        self.crew.settle(request.is_finished, "the request ends")
        self.assertEqual(self.crew.began["longer"], WHOLE)
        for attempt in range(50):
            self.forget()
            self.run_to_end(f"again-{attempt}", prompt=longer)
            if self.crew.began[f"again-{attempt}"] == len(longer) // BLOCK * BLOCK:
                return
        self.fail(f"the rest is not stored: {self.crew.began}")

    def test_random_requests_failures_aborts_and_preemptions(self) -> None:
        """Few blocks, so that requests preempt each other. No token may be wrong."""
        from vllm.v1.request import RequestStatus

        self.make()
        session = self.crew.scheduler.connector._scheduler.session
        session._trust.doubts = lambda: False  # otherwise hits are withheld after two failures
        draw = random.Random(11)
        heads = [PROMPT[:n] for n in (48, 96, 144)] + [PROMPT[:48] + list(range(100))]
        requests: list[Any] = []
        prompts: dict[str, list[int]] = {}
        aborted: set[str] = set()

        def abort() -> None:
            running = [r for r in requests if not r.is_finished()]
            if running and draw.random() < 0.05:
                rid = draw.choice(running).request_id
                aborted.add(rid)
                self.crew.scheduler.finish_requests(rid, RequestStatus.FINISHED_ABORTED)

        for _ in range(10):
            if draw.random() < 0.8:
                self.forget()
            left = 6
            while left or not all(r.is_finished() for r in requests):
                if left and draw.random() < 0.5:
                    left -= 1
                    rid = f"random-{len(requests)}"
                    tail = draw.choices(range(500), k=draw.randrange(80))
                    prompts[rid] = draw.choice(heads) + tail
                    requests.append(self.crew.add(rid, prompts[rid], draw.choice((1, 5, 20))))
                self.broken = {0} if draw.random() < 0.3 else set()
                self.crew.step(abort)
        for request in requests:
            if request.request_id not in aborted:
                prompt = prompts[request.request_id]
                known = self.crew.tokens[request.request_id][len(prompt) :]
                self.assertEqual(list(request.output_token_ids), known[: request.max_tokens])
        self.assertGreater(self.crew.short, 8)
        self.assertGreater(session.stats()["failed_loads"], 2)


if __name__ == "__main__":
    unittest.main()
