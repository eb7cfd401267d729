"""Cases of hybrid models, which the connector does not serve: the engine must lose nothing."""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any, NamedTuple

from e2e import hybrid_models, model
from e2e.case import SharedTestBed, case
from e2e.engineproc import EngineError, EngineProcess, Output
from tests.agentproc import AgentProcess


class Hybrid(NamedTuple):
    """A hybrid model, options of its engine, and prompts with the tokens that a repetition finds
    in vLLM's own cache. kind: the first spec that the connector does not serve."""

    write: Callable[[pathlib.Path, int], None]
    kind: str
    options: dict[str, Any]
    cached: dict[int, int]


# Without num_gpu_blocks_override vLLM decides how many blocks fit, which the log shows.
SLIDING = Hybrid(
    hybrid_models.write_sliding,
    "SlidingWindowSpec",
    {"num_gpu_blocks_override": None},
    {20: 0, 330: 320, 950: 928},
)
# vLLM derives the same block size without the option, but then finds no block of a repeated prompt,
# with the connector and without.
STATE = Hybrid(
    hybrid_models.write_state,
    "MambaSpec",
    {
        "num_gpu_blocks_override": None,
        "kv_cache_memory_bytes": 64 << 20,
        "block_size": hybrid_models.STATE_BLOCK,
        "dtype": "bfloat16",
        "mamba_cache_mode": "align",
        "max_model_len": model.MAX_TOKENS,
        "max_num_batched_tokens": model.MAX_TOKENS,
    },
    {100: 0, 1500: 2 * hybrid_models.STATE_BLOCK},
)


class Seen(NamedTuple):
    """What an engine answers and logs. first, again: outputs of every prompt and its repetition.
    capacity: vLLM's log line with the tokens that its cache holds."""

    first: list[Output]
    again: list[Output]
    capacity: str


def _observe(bed: SharedTestBed, engine: EngineProcess, prompts: list[list[int]]) -> Seen:
    """Runs every prompt twice, empties the cache, and does so again with the same results."""
    first = [engine.generate(prompt) for prompt in prompts]
    again = [engine.generate(prompt) for prompt in prompts]
    engine.reset_cache()
    assert [engine.generate(prompt) for prompt in prompts] == first, "a reset changed the answers"
    (capacity,) = engine.logged("KV cache size: ")
    return Seen(first, again, capacity.partition("KV cache size: ")[2])


def _start(
    bed: SharedTestBed, hybrid: Hybrid, name: str, agent: AgentProcess | None, **settings: Any
) -> EngineProcess:
    directory = bed.dir / f"model-{hybrid.kind}"
    if not directory.exists():
        hybrid.write(directory, 1)
    extra = None if agent is None else {"socket": agent.socket, **settings}
    options = {"model": str(directory), **hybrid.options}
    return bed.engine(name, None, extra_config=extra, **options)


def _equal(bed: SharedTestBed, hybrid: Hybrid) -> str:
    """Compares an engine with the connector and one without."""
    agent = bed.main
    sessions = agent.stats()["sessions"]
    prompts = [bed.prompt(tokens) for tokens in hybrid.cached]
    engine = _start(bed, hybrid, "hybrid", agent)
    seen = _observe(bed, engine, prompts)
    reasons = engine.logged("Blockyard stays off")
    assert agent.stats()["sessions"] == sessions, "the connector connected"
    bed.stop(engine)
    assert len(reasons) == 1 and f"layers of kind {hybrid.kind}" in reasons[0], reasons
    engine = _start(bed, hybrid, "hybrid-alone", None)
    alone = _observe(bed, engine, prompts)
    bed.stop(engine)
    assert seen == alone, f"with the connector {seen}, without {alone}"
    assert [out.cached for out in seen.first] == [0] * len(prompts)
    assert [out.cached for out in seen.again] == list(hybrid.cached.values()), seen.again
    return f"{[out.cached for out in seen.again]} tokens cached, room for {seen.capacity}"


@case("hybrid-sliding", "a model with windows keeps all of vLLM's own cache")
def hybrid_sliding(bed: SharedTestBed) -> str:
    return _equal(bed, SLIDING)


@case("hybrid-state", "a model with linear attention keeps all of vLLM's own cache")
def hybrid_state(bed: SharedTestBed) -> str:
    return _equal(bed, STATE)


@case("hybrid-required", "with `require` an engine that cannot be served does not start")
def hybrid_required(bed: SharedTestBed) -> str:
    agent = bed.main
    try:
        _start(bed, SLIDING, "hybrid-required", agent, require=True)
    except EngineError:
        pass  # the log below has the reason
    else:
        raise AssertionError("the engine started")
    (engine,) = [e for e in bed.running() if e.name == "hybrid-required"]
    errors = engine.logged("NotServedError: .*layers of kind SlidingWindowSpec")
    assert errors, f"no reason in the log\n{engine.log()}"
    bed.stop(engine, hard=True)
    return errors[0].partition("NotServedError: ")[2]
