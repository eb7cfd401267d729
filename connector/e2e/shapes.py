"""The hybrid models of the cases, and a running engine of each."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from functools import cached_property
from typing import Any, NamedTuple

from e2e import faults, hybrid_models, model
from e2e.case import SharedTestBed
from e2e.engineproc import EngineProcess, Output
from e2e.runner import Case, case
from e2e.testbed import HOST_BYTES, MODEL_LEN, STEP_TOKENS
from tests.agentproc import AgentProcess

_TIGHT_BYTES = 4 << 20  # room for two prompts of the state model, one extent

# vLLM's own host tier with as much memory as an agent.
_NATIVE_TIER = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "spec_name": "HostTier",
        "spec_module_path": "e2e.native_tier",
        "cpu_bytes_to_use": HOST_BYTES,
    },
}


class Shape(NamedTuple):
    """A hybrid model, and options of its engine.

    groups: the last one is of full attention. needs: blocks of each other group that a long prefix
    needs. align: vLLM's own hits are multiples. lengths: prompts shorter and
    longer than the window, and longer than a step. decoded: output tokens of requests that preempt
    each other, 0 without.
    """

    name: str
    write: Callable[[pathlib.Path, int], None]
    groups: int
    needs: int
    align: int
    options: dict[str, Any]
    lengths: tuple[int, ...]
    decoded: int = 0

    def cached(self, tokens: int) -> int:
        """Cached tokens of a repeated prompt, by vLLM's rule: the last token is computed again."""
        return (tokens - 1) // self.align * self.align

    @property
    def full(self) -> int:
        """The group of full attention."""
        return self.groups - 1

    @property
    def step_tokens(self) -> int:
        """Limit of tokens in a step."""
        return int(self.options.get("max_num_batched_tokens", STEP_TOKENS))

    @property
    def longest(self) -> int:
        """Tokens of a prompt that leaves room for a short answer."""
        return int(self.options.get("max_model_len", MODEL_LEN)) - 24


GEMMA = Shape(
    "gemma3",
    hybrid_models.write_sliding,
    6,
    2,
    model.BLOCK_TOKENS,
    {"num_gpu_blocks_override": 92},
    (20, 50, 64, 330, 950),
    300,
)
GPT_OSS = Shape(
    "gptoss",
    hybrid_models.write_experts,
    2,
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
    1,
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
# A prefix needs the blocks of its last chunk, and none where it ends with a chunk. vLLM keeps all
# chunks of a prompt, so that a lost block costs no more than its chunk. Stores may hold all of
# these blocks: at the default limit, 64, slow copies would leave the end of a long prompt unstored.
CHUNKS = Shape(
    "llama4",
    hybrid_models.write_chunks,
    4,
    1,
    model.BLOCK_TOKENS,
    {"num_gpu_blocks_override": 140, "settings": {"max_inflight_blocks": 128}},
    (20, 50, 129, 330, 950),
    300,
)
SHAPES = (GEMMA, GPT_OSS, QWEN)


class HybridBed:
    """An agent and an engine of one shape. options: of the engine, named `name`."""

    def __init__(
        self, bed: SharedTestBed, shape: Shape, agent: AgentProcess, name: str, **options: Any
    ) -> None:
        self.bed = bed
        self.shape = shape
        self.agent = agent
        self.model = bed.dir / f"model-{shape.name}"
        if not self.model.exists():
            shape.write(self.model, 1)
        self.engine = self.start(name, **options)

    def start(self, name: str, **options: Any) -> EngineProcess:
        """Starts another engine of the shape."""
        return self._start(name, self.agent, **options)

    def _start(self, name: str, agent: AgentProcess | None, **options: Any) -> EngineProcess:
        arguments = {"model": str(self.model), **self.shape.options, **options}
        return self.bed.engine(f"{self.shape.name}-{name}", agent, **arguments)

    def native(self) -> EngineProcess:
        """Starts an engine of the shape with vLLM's own host tier instead of an agent."""
        return self._start("native", None, kv_transfer_config=_NATIVE_TIER)

    @cached_property
    def tight(self) -> HybridBed:
        """Another bed of the shape. Its agent has room for few prompts and no disk. Its engine ends
        requests whose load fails, and has known measurements (e2e.measured)."""
        return HybridBed(
            self.bed,
            self.shape,
            self.bed.agent(disk=False, host_bytes=_TIGHT_BYTES),
            "tight",
            policy="fail",
            connector="e2e.measured:MeasuredConnector",
            measured=True,
        )

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
        """Waits until all offered blocks are stored or refused.

        vLLM discards the stores in flight when it resets its cache.
        """
        self.bed.quiet(self.agent)


def hybrid(bed: SharedTestBed, shape: Shape) -> HybridBed:
    """The shared bed of a shape. A copy of its engine waits while the test bed's throttle is shut.

    Engines of other shapes end, because they need much memory.
    """
    current = bed.hybrid
    if current is None or current.shape is not shape:
        if current is not None:
            for engine in bed.running():
                if engine.name.startswith(current.shape.name):
                    bed.stop(engine)
        bed.hybrid = current = HybridBed(
            bed, shape, bed.agent(), "first", connector="e2e.slow:SlowConnector"
        )
    return current


def each_shape(
    check: str, reason: str, shapes: tuple[Shape, ...] = SHAPES
) -> Callable[[Callable[[HybridBed], str]], tuple[Case, ...]]:
    """A decorator that makes a case for each shape."""

    def decorate(run: Callable[[HybridBed], str]) -> tuple[Case, ...]:
        def of(shape: Shape) -> Case:
            @case(f"{shape.name}-{check}", f"{shape.name}: {reason}")
            def one(bed: SharedTestBed) -> str:
                return run(hybrid(bed, shape))

            return one

        return tuple(of(shape) for shape in shapes)

    return decorate
