"""Time to the first token when a conversation reaches an engine's other data-parallel rank.

Two engines of two ranks each compute the same prompts: one without a connector, one with
Blockyard's. In each round one rank computes a new prompt. Then the other rank, whose device does
not have it, gets the prompt. As a program, this module is the child process of an engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
import random
import statistics
import time
from typing import Any, NamedTuple

from tests.agentproc import AgentProcess, wait_until

from . import child, engine, model, report

TOKENS = 8192  # of a prompt
NONE, OURS = "without a connector", "with Blockyard's"

_BATCH_TOKENS = 2048
_WARM_TOKENS = 8 * model.BLOCK_TOKENS
_START_SECONDS = 300.0
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


class RankFigures(NamedTuple):
    """speedup: the first token of the other rank without a connector, to that with Blockyard's.

    right: every token equals the computed token, and every prompt came from the pool as a whole.
    """

    speedup: float
    right: bool
    text: str


def other_rank(work: pathlib.Path, rounds: int) -> RankFigures:
    """Measures both engines one after the other, because two ranks need a core each."""
    directory = work / "ranks"
    directory.mkdir()
    model.write(directory, model.MEDIUM, TOKENS + 64)
    draw = random.Random(5)
    prompts = [engine.prompt(draw, TOKENS) for _ in range(rounds)]
    agent_bytes = (rounds + 1) * TOKENS * model.MEDIUM.token_bytes
    none = _measure(work, directory, prompts, None)
    with AgentProcess(host_size=str(agent_bytes)) as agent:
        ours = _measure(work, directory, prompts, agent)
    rows = [
        [name, *(report.number(statistics.median(times)) for times in (of.first, of.other))]
        for name, of in ((NONE, none), (OURS, ours))
    ]
    text = report.table(
        f"Median time to the first token of {TOKENS} tokens in ms, two data-parallel ranks",
        ["engine", "first rank", "other rank"],
        rows,
    )
    right = none.equal and ours.equal and ours.cached >= TOKENS - model.BLOCK_TOKENS
    text += f"  least cached tokens of the other rank: {none.cached} and {ours.cached}\n"
    return RankFigures(report.paired(none.other, ours.other), right, text)


class _Times(NamedTuple):
    """cached: the least number of a prompt's tokens that the other rank did not compute."""

    first: list[float]
    other: list[float]
    cached: int
    equal: bool


def _measure(
    work: pathlib.Path,
    directory: pathlib.Path,
    prompts: list[list[int]],
    agent: AgentProcess | None,
) -> _Times:
    name = "ranks-none" if agent is None else "ranks-blockyard"
    options = {
        "model": str(directory),
        "connector": None if agent is None else engine.ours(agent.socket),
        "arguments": {
            "max_model_len": TOKENS + 64,
            "max_num_seqs": 4,
            "max_num_batched_tokens": _BATCH_TOKENS,
            "num_gpu_blocks_override": 2 * TOKENS // model.BLOCK_TOKENS + 64,
        },
    }
    firsts, others = [], []
    with contextlib.closing(child.Child(name, "ranks", options, work / f"{name}.log")) as ranks:
        ranks.start(_START_SECONDS)
        _warm(ranks, agent)
        for turn, prompt in enumerate(prompts):
            firsts.append(ranks.ask("generate", tokens=prompt, rank=turn % 2))
            _settle(agent)
            others.append(ranks.ask("generate", tokens=prompt, rank=1 - turn % 2))
            _settle(agent)
    return _Times(
        [one["ms"] for one in firsts],
        [one["ms"] for one in others],
        min(one["cached"] for one in others),
        all(a["token"] == b["token"] for a, b in zip(firsts, others, strict=True)),
    )


def _warm(ranks: child.Child, agent: AgentProcess | None) -> None:
    """Runs prompts until each rank loads what the other one has stored."""
    draw = random.Random(6)
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
    """Waits until the last prompt's blocks are stored: the engine takes steps for them."""
    time.sleep(0.5)
    if agent is not None:
        wait_until("the agent is quiet", lambda: agent.stats()["quiet"], _QUIET_SECONDS)


if __name__ == "__main__":
    child.serve(Ranks)
