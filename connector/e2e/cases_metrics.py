"""Cases of the connector's face in vLLM: its metrics, and the hits that it does not load."""

from __future__ import annotations

from e2e import model
from e2e.case import SharedTestBed
from e2e.cases_reload import hit, same
from e2e.runner import case
from e2e.testbed import MODEL_LEN, STEP_TOKENS, block_count
from tests.agentproc import wait_until

# Rounds of prompts of each length that the engine measures.
_ROUNDS = 3


@case("own-metrics", "vLLM's metrics and log show the hits, loads, stores and bytes")
def own_metrics(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    engine.generate(bed.prompt(8))  # its steps bring what earlier requests left uncounted
    before = engine.metrics()
    prompt = bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt).tokens
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    blocks = block_count(hit(len(prompt)))
    stored = block_count(len(prompt) + len(tokens) - 1)
    want = {
        "loads_total": 1,
        "loaded_blocks_total": blocks,
        "load_bytes_total": blocks * model.BLOCK_BYTES,
        "stored_blocks_total": stored,
        "store_bytes_total": stored * model.BLOCK_BYTES,
        "failed_loads_total": 0,
        "declined_hits_total": 0,
    }

    def grown() -> dict[str, float]:
        now = engine.metrics()
        return {name: now[name] - before[name] for name in want}

    try:
        wait_until("vLLM's metrics have the load", lambda: grown() == want, 10.0)
    except AssertionError as err:
        raise AssertionError(f"{err}: {grown()}, want {want}") from None
    now = engine.metrics()
    assert now["connected"] == 1 and now["min_load_blocks"] == 1, now
    assert now["copy_seconds_total"] > before["copy_seconds_total"], now
    logged = engine.logged(r"KV Transfer metrics: .*Blockyard loads=1.*Blockyard load_bytes=")
    logged += engine.logged(r"KV Transfer metrics: .*Blockyard load_bytes=.*Blockyard loads=1")
    assert logged, "vLLM has not logged the load"
    bed.reset_cache(agent, engine)
    return f"{blocks} loaded blocks, {blocks * model.BLOCK_BYTES} bytes"


@case("short-hits", "a hit that is computed sooner than loaded is computed, a long one is loaded")
def short_hits(bed: SharedTestBed) -> str:
    agent = bed.main
    engine = bed.engine("measured", agent, measured=True)
    first = model.BLOCK_TOKENS + 8
    lengths = (first, STEP_TOKENS // 2, MODEL_LEN - 64)
    prompts = [bed.prompt(length) for _ in range(_ROUNDS) for length in lengths]
    answers = [bed.stored(agent, engine, prompt).tokens for prompt in prompts]
    for prompt, tokens in zip(prompts, answers, strict=True):
        out = engine.generate(prompt)
        assert out.tokens == tokens and out.cached in (0, hit(len(prompt))), out
    engine.reset_cache()
    for prompt, tokens in zip(prompts, answers, strict=True):
        out = engine.generate(prompt)
        if len(prompt) == first:
            same(out, tokens, 0)
        elif len(prompt) == lengths[-1]:
            same(out, tokens, hit(len(prompt)))
    now = engine.metrics()
    assert now["declined_hits_total"] >= _ROUNDS, now
    # The gauge follows the measurements one power of two at a time, so its value is not known here.
    least, declined = int(now["min_load_blocks"]), int(now["declined_hits_total"])
    assert least.bit_count() == 1, now
    bed.reset_cache(agent, engine)
    bed.stop(engine)
    return f"loads from {least} blocks on, {declined} hits computed"
