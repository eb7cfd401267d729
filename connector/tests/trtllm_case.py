"""The base of the tests of the TensorRT-LLM connector: an agent, and engines of the stand-in."""

from __future__ import annotations

import os
import unittest
from typing import Any
from unittest import mock

from tests import planes, stubs_trtllm
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
    """A prompt of `blocks` blocks and one token."""
    return [seed * 100_000 + i for i in range(blocks * BLOCK_TOKENS + 1)]


class Case(unittest.TestCase):
    """An agent, and engines that are shut down after the test."""

    agent: AgentProcess
    host_size = "64MiB"  # one extent, for one namespace

    def setUp(self) -> None:
        self.agent = AgentProcess(host_size=self.host_size)
        self.addCleanup(self.agent.close)
        self._numbers = iter(range(1, 1_000_000))
        self._seeds = iter(range(1_000, 1_000_000))
        self._base = 0
        variables = {
            "BLOCKYARD_SOCKET": self.agent.socket,
            "BLOCKYARD_NATIVE": str(int(planes.in_c)),
        }
        # A busy machine may need more time for an answer than an engine grants.
        for patch in (
            mock.patch.dict(os.environ, variables),
            mock.patch.object(leader_module, "ANSWER_SECONDS", 2.0),
            mock.patch.object(worker_module, "_device", lambda: "cpu"),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def engine(self, world: int = 1, outer: int = 2, rank: int = 0, **kwargs: Any) -> Executor:
        """An engine of `world` ranks with a connected session."""
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
        """Waits until all ranks have joined the leader and the agent.

        Stores a block to check it. resident() does not count that block.
        """
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

        wait_until("a block is stored", stored_one, 30)
        wait_until("all earlier stores are counted", answered)
        self._base += self.total() - before

    def request(self, tokens: list[int], **kwargs: Any) -> LlmRequest:
        return LlmRequest(next(self._numbers), tokens, **kwargs)

    def run_to_end(self, engine: Executor, *requests: LlmRequest) -> None:
        """Runs an engine until these requests have ended and their blocks are free."""
        for request in requests:
            engine.submit(request)

        def over() -> bool:
            engine.step()
            return all(r.state == "done" for r in requests)

        wait_until("the requests have ended", over, 20)

    def stored(self, blocks: int) -> None:
        """Waits until the agent's pools hold so many blocks of the test's prompts."""
        wait_until(f"{blocks} blocks are stored", lambda: self.resident() >= blocks)
        # kill -9 loses blocks that are not sealed.
        wait_until("they are sealed", lambda: not self.pool()["seal_queue"])

    def pool(self) -> Any:
        """The counters of the agent's only pool."""
        pools = self.agent.stats()["pools"]
        self.assertEqual(len(pools), 1)
        return pools[0]

    def total(self) -> int:
        """The number of stored blocks."""
        return sum(len(pool["blocks"]) for pool in self.agent.get("/v1/pools"))

    def resident(self) -> int:
        """The number of stored blocks of the test's own prompts."""
        return self.total() - self._base

    def settled(self, engine: Executor) -> None:
        """Waits until no block is held and the leader is idle."""
        leader = engine.leader

        def quiet() -> bool:
            engine.step()
            return not len(leader._hub.held) and not leader._hub.active()

        wait_until("nothing is in flight", quiet)
