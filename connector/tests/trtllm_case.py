"""What the tests of TensorRT-LLM's connector share: an agent, and engines of the stand-in."""

from __future__ import annotations

import os
import unittest
from typing import Any
from unittest import mock

from tests import stubs_trtllm
from tests.agentproc import AgentProcess, wait_until

stubs_trtllm.install()

from blockyard.trtllm import BlockyardLeader, BlockyardWorker  # noqa: E402
from blockyard.trtllm import leader as leader_module  # noqa: E402
from blockyard.trtllm import worker as worker_module  # noqa: E402
from tests.stubs_trtllm.executor import (  # noqa: E402
    BLOCK_TOKENS,
    Executor,
    LlmRequest,
    SecondExecutor,
    arguments,
)

__all__ = [
    "BLOCK_TOKENS",
    "BlockyardLeader",
    "BlockyardWorker",
    "Case",
    "Executor",
    "LlmRequest",
    "SecondExecutor",
    "arguments",
    "leader_module",
    "prompt",
    "worker_module",
]


def prompt(seed: int, blocks: int = 4) -> list[int]:
    """A prompt of some blocks and one token."""
    return [seed * 100_000 + i for i in range(blocks * BLOCK_TOKENS + 1)]


class Case(unittest.TestCase):
    """An agent, and engines that are shut down after the test."""

    agent: AgentProcess
    host_size = "64MiB"  # an extent, which is the share of one namespace

    def setUp(self) -> None:
        self.agent = AgentProcess(host_size=self.host_size)
        self.addCleanup(self.agent.close)
        self._numbers = iter(range(1, 1_000_000))
        self._seeds = iter(range(1_000, 1_000_000))
        self._base = 0
        # A busy machine may take longer to answer than an engine should wait.
        for patch in (
            mock.patch.dict(os.environ, {"BLOCKYARD_SOCKET": self.agent.socket}),
            mock.patch.object(leader_module, "ANSWER_SECONDS", 2.0),
            mock.patch.object(worker_module, "_device", lambda: "cpu"),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def engine(self, world: int = 1, outer: int = 2, rank: int = 0, **kwargs: Any) -> Executor:
        """An engine of `world` ranks, whose session with the agent is up."""
        adp = kwargs.pop("attention_dp", False)
        joined = kwargs.pop("joined", True)
        kind = kwargs.pop("kind", Executor)
        size = 8 if adp else world
        leader = BlockyardLeader(arguments("m", rank, size, adp))
        self.addCleanup(leader.shutdown)
        ranks = [rank] if adp else range(world)
        workers = [BlockyardWorker(arguments("m", r, size, adp)) for r in ranks]
        for worker in workers:
            self.addCleanup(worker.shutdown)
        engine: Executor = kind(leader, workers, outer=outer, **kwargs)
        if joined:
            self.joined(engine)
        return engine

    def joined(self, engine: Executor) -> None:
        """Waits until all ranks have joined, the leader and the agent, so that a block of a prompt
        of its own has been stored. resident() does not count those."""
        leader = engine.leader
        wait_until("the session is up", lambda: leader.stats().get("connected"))
        wait_until("all ranks have joined", lambda: leader._hub.complete)
        before = self.total()

        def stored_one() -> bool:
            self.run_to_end(engine, self.request(prompt(next(self._seeds), 1)))
            self.settled(engine)
            return self.total() > before

        def answered() -> bool:
            engine.step()
            s = leader.stats()
            return s["stores"] <= s["stored_blocks"] + s["present_blocks"] + s["dropped_stores"]

        wait_until("a block was stored", stored_one, 30)
        wait_until("what was stored before it is counted too", answered)
        self._base += self.total() - before

    def request(self, tokens: list[int], **kwargs: Any) -> LlmRequest:
        return LlmRequest(next(self._numbers), tokens, **kwargs)

    def run_to_end(self, engine: Executor, *requests: LlmRequest) -> None:
        """Runs an engine until these requests are over and their blocks given back."""
        for request in requests:
            engine.submit(request)

        def over() -> bool:
            engine.step()
            return all(r.state == "done" for r in requests)

        wait_until("the requests are over", over, 20)

    def stored(self, blocks: int) -> None:
        """Waits until the agent's pools hold so many blocks."""
        wait_until(f"{blocks} blocks are stored", lambda: self.resident() >= blocks)
        # What was not sealed is gone after kill -9.
        wait_until("they are sealed", lambda: not self.pool()["seal_queue"])

    def pool(self) -> Any:
        """The counters of the one pool that there is."""
        pools = self.agent.stats()["pools"]
        self.assertEqual(len(pools), 1)
        return pools[0]

    def total(self) -> int:
        """Blocks that the agent holds."""
        return sum(len(pool["blocks"]) for pool in self.agent.get("/v1/pools"))

    def resident(self) -> int:
        """Blocks that the agent holds of a test's own prompts."""
        return self.total() - self._base

    def settled(self, engine: Executor) -> None:
        """Nothing is held, loading or owed any more."""
        leader = engine.leader

        def quiet() -> bool:
            engine.step()
            return not len(leader._hub.held) and not leader._hub.active()

        wait_until("nothing is in flight", quiet)
