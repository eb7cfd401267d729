"""The hybrid models of the cases, and a running engine of each."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from e2e import faults, hybrid_models, model
from e2e.case import SharedTestBed
from e2e.engineproc import EngineProcess, Output
from tests.agentproc import AgentProcess, wait_until

_QUIET_POLLS = 20  # polls of a quiet agent without a new block


class Shape(NamedTuple):
    """A hybrid model, and options of its engine.

    align: vLLM's own hits are multiples. lengths: prompts shorter and longer than the window, and
    longer than a step. decoded: output tokens of requests that preempt each other, 0 without.
    """

    name: str
    write: Callable[[pathlib.Path, int], None]
    groups: int
    align: int
    options: dict[str, Any]
    lengths: tuple[int, ...]
    decoded: int = 0

    def cached(self, tokens: int) -> int:
        """Cached tokens of a repeated prompt, by vLLM's rule: the last token is computed again."""
        return (tokens - 1) // self.align * self.align


GEMMA = Shape(
    "gemma3",
    hybrid_models.write_sliding,
    6,
    model.BLOCK_TOKENS,
    {"num_gpu_blocks_override": 92},
    (20, 50, 64, 330, 950),
    300,
)
GPT_OSS = Shape(
    "gptoss",
    hybrid_models.write_experts,
    2,
    model.BLOCK_TOKENS,
    {},
    (20, 50, 64, 330, 950),
    300,
)
# vLLM derives the same block size without the option, but then finds no block of a repeated prompt,
# with the connector and without.
QWEN = Shape(
    "qwen3next",
    hybrid_models.write_state,
    4,
    hybrid_models.STATE_BLOCK,
    {
        "num_gpu_blocks_override": None,
        "kv_cache_memory_bytes": 64 << 20,
        "block_size": hybrid_models.STATE_BLOCK,
        "dtype": "bfloat16",
        "mamba_cache_mode": "align",
        "max_model_len": model.MAX_TOKENS,
        "max_num_batched_tokens": 1000,
    },
    (100, 641, 1500),
)
SHAPES = (GEMMA, GPT_OSS, QWEN)


class HybridBed:
    """An agent and an engine of one shape. A copy waits while the bed's throttle is shut."""

    def __init__(self, bed: SharedTestBed, shape: Shape) -> None:
        self.bed = bed
        self.shape = shape
        self.agent: AgentProcess = bed.agent()
        self.model = bed.dir / f"model-{shape.name}"
        if not self.model.exists():
            shape.write(self.model, 1)
        self.engine = self.start("first", connector="e2e.slow:SlowConnector")

    def start(self, name: str, **options: Any) -> EngineProcess:
        """Starts another engine of the shape."""
        arguments = {"model": str(self.model), **self.shape.options, **options}
        return self.bed.engine(f"{self.shape.name}-{name}", self.agent, **arguments)

    def blocks(self) -> dict[str, faults.Block]:
        """All blocks of the agent by key."""
        return {block.key: block for block in faults.blocks(self.agent)}

    def run(self, tokens: list[int], count: int = 8) -> tuple[Output, list[faults.Block]]:
        """Runs a request and waits until its blocks are stored. Returns the new blocks.

        Then resets the engine's own cache.
        """
        before = self.blocks()
        out = self.engine.generate(tokens, count)
        self.quiet()
        self.engine.reset_cache()
        return out, [block for key, block in self.blocks().items() if key not in before]

    def quiet(self) -> None:
        """Waits until the agent is quiet and gets no more blocks.

        vLLM discards the stores in flight when it resets its cache.
        """
        seen: list[int] = []

        def settled() -> bool:
            stored = self.bed.blocks_stored(self.agent)
            if not self.agent.stats()["quiet"] or (seen and seen[-1] != stored):
                seen.clear()
            seen.append(stored)
            return len(seen) > _QUIET_POLLS

        wait_until("the agent is quiet", settled, 30.0, pause=0.02)


def hybrid(bed: SharedTestBed, shape: Shape) -> HybridBed:
    """The shared bed of a shape. Engines of other shapes end, because they need much memory."""
    current = bed.hybrid
    if current is None or current.shape is not shape:
        if current is not None:
            for engine in bed.running():
                if engine.name.startswith(current.shape.name):
                    bed.stop(engine)
        bed.hybrid = current = HybridBed(bed, shape)
    return current
