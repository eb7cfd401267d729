"""Time to the first token when a conversation reaches an engine's other data-parallel rank.

    python -m bench.ranks [--rounds N] [--tokens N]      (from connector/)

Two engines of two ranks each compute the same prompts: one without a connector, one with
Blockyard's. In each round one rank computes a new prompt. Then the other rank, whose device does
not have it, gets the prompt. The exit status is 1 when a token differs from the computed token,
or when a rank with the connector has fewer cached tokens than the prompt's blocks.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import pathlib
import random
import statistics
import sys
import tempfile
import time
from typing import Any

from tests.agentproc import AgentProcess, wait_until

from . import child, engine, model

_HOST_BYTES = 2 << 30
_BATCH_TOKENS = 2048
_WARM_TOKENS = 8 * model.BLOCK_TOKENS
_START_SECONDS = 900.0  # two ranks on a busy machine
_WARM_SECONDS = 120.0
_QUIET_SECONDS = 60.0


class Ranks:
    """Operations of a child: an engine of two data-parallel ranks."""

    def __init__(self, options: dict[str, Any]) -> None:
        arguments = engine.arguments_of(
            options["model"], options["connector"], **options["arguments"], data_parallel_size=2
        )
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._start(arguments))
        self._count = 0

    async def _start(self, arguments: dict[str, Any]) -> None:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        self._llm = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    def op_generate(self, tokens: list[int], rank: int) -> dict[str, Any]:
        """The time to the first token of a rank in ms, the number of cached tokens, the token."""
        return self._loop.run_until_complete(self._generate(tokens, rank))

    async def _generate(self, tokens: list[int], rank: int) -> dict[str, Any]:
        from vllm import SamplingParams
        from vllm.inputs import TokensPrompt

        self._count += 1
        params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
        prompt = TokensPrompt(prompt_token_ids=tokens)
        began, last = time.perf_counter(), None
        async for output in self._llm.generate(
            prompt, params, f"r{self._count}", data_parallel_rank=rank
        ):
            last = output
        took = time.perf_counter() - began
        assert last is not None
        cached, token = last.num_cached_tokens or 0, last.outputs[0].token_ids[0]
        return {"ms": took * 1e3, "cached": cached, "token": token}


def _warm(ranks: child.Child, agent: AgentProcess | None, draw: random.Random) -> None:
    """Runs prompts until each rank loads what the other one has stored."""
    for rank in (0, 1):
        deadline = time.monotonic() + _WARM_SECONDS
        while True:
            tokens = engine.prompt(draw, _WARM_TOKENS)
            ranks.ask("generate", tokens=tokens, rank=rank)
            _settle(agent)
            again = ranks.ask("generate", tokens=tokens, rank=1 - rank)
            if agent is None or again["cached"] > 0:
                break
            if time.monotonic() > deadline:
                raise RuntimeError("no rank loads what the other one has stored")


def _settle(agent: AgentProcess | None) -> None:
    time.sleep(0.5)
    if agent is not None:
        wait_until("the agent is quiet", lambda: agent.stats()["quiet"], _QUIET_SECONDS)


def _measure(work: pathlib.Path, tokens: int, rounds: int) -> bool:
    directory = work / "medium"
    directory.mkdir()
    model.write(directory, model.MEDIUM, tokens + 64)
    arguments = {
        "max_model_len": tokens + 64,
        "max_num_seqs": 4,
        "max_num_batched_tokens": _BATCH_TOKENS,
        "num_gpu_blocks_override": 2 * tokens // model.BLOCK_TOKENS + 64,
    }
    draw, right = random.Random(5), True
    prompts = [engine.prompt(draw, tokens) for _ in range(rounds)]
    times: dict[str, list[float]] = {}
    for name in ("none", "blockyard"):  # one after the other: two ranks need a core each
        with contextlib.ExitStack() as stack:
            agent, connector = None, None
            if name == "blockyard":
                agent = stack.enter_context(AgentProcess(host_size=str(_HOST_BYTES)))
                connector = engine.ours(agent.socket)
            options = {"model": str(directory), "connector": connector, "arguments": arguments}
            ranks = child.Child(name, "ranks", options, work / f"{name}.log")
            stack.callback(ranks.close)
            ranks.start(_START_SECONDS)
            _warm(ranks, agent, draw)
            for turn, prompt in enumerate(prompts):
                first = ranks.ask("generate", tokens=prompt, rank=turn % 2)
                _settle(agent)
                other = ranks.ask("generate", tokens=prompt, rank=1 - turn % 2)
                times.setdefault(f"{name}, first rank", []).append(first["ms"])
                times.setdefault(f"{name}, other rank", []).append(other["ms"])
                least = tokens - model.BLOCK_TOKENS if agent is not None else 0
                right = right and other["cached"] >= least and other["token"] == first["token"]
    middle = {what: statistics.median(found) for what, found in times.items()}
    for what, ms in middle.items():
        print(f"{what}: {ms:.0f} ms to the first token of {tokens} tokens")
    none, ours = middle["none, other rank"], middle["blockyard, other rank"]
    print(f"bench-ranks: tokens={tokens} other_rank_ms={ours:.0f} without_ms={none:.0f}", end="")
    print(f" ratio={ours / none:.3f} equal={'yes' if right else 'no'}")
    return right


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.ranks", description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=8192)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-ranks-") as work:
        return 0 if _measure(pathlib.Path(work), options.tokens, options.rounds) else 1


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        child.serve(Ranks)
    else:
        sys.exit(main())
