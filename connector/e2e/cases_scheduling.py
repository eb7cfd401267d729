"""Cases of scheduling: preemption, reuse and aborts during copies, and data-parallel ranks."""

from __future__ import annotations

from e2e import model
from e2e.runner import Skipped, case
from e2e.testbed import MODEL_LEN, block_count
from e2e.case import LORA, SharedTestBed
from e2e.cases_reload import hit, same
from e2e.engineproc import EngineError
from tests.agentproc import wait_until


@case("preemption", "a preempted request gives the same tokens as without preemption")
def preemption(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    # The prompts together need more blocks than the device has.
    prompts = [bed.prompt(256) for _ in range(6)]
    references = [bed.computed(engine, p, 300) for p in prompts]
    before = engine.counts()[0].preempted
    loads = bed.loaded(agent)
    requests = [engine.begin(p, 300) for p in prompts]
    for number, (request, tokens) in enumerate(zip(requests, references, strict=True)):
        out = request.output()
        assert out.tokens == tokens, f"request {number}: tokens {out.tokens}, want {tokens}"
    preempted = engine.counts()[0].preempted - before
    assert preempted > 0, "blind: no request was preempted"
    bed.quiet(agent)  # a reset discards the stores in flight
    bed.reset_cache(agent, engine)
    for prompt, tokens in zip(prompts, references, strict=True):
        same(engine.generate(prompt, 300), tokens, hit(len(prompt)))
        bed.reset_cache(agent, engine)
    bed.settled(agent)
    return f"{preempted} preempted, {bed.loaded(agent) - loads} blocks loaded"


@case("store-races-reuse", "the engine does not reuse device blocks before their copy")
def store_races_reuse(bed: SharedTestBed) -> str:
    agent, engine = bed.slow_agent, bed.slow
    prompt = bed.prompt(330)
    before, kept = bed.throttle.arrived("store"), bed.blocks_stored(agent)
    bed.throttle.hold(stores=True)
    tokens = engine.generate(prompt).tokens
    wait_until("a store is held", lambda: bed.throttle.arrived("store") > before)
    # The request has ended, so only the store holds its blocks. These prompts need all others.
    for _ in range(3):
        engine.generate(bed.prompt(MODEL_LEN - 100))
    assert bed.blocks_stored(agent) == kept, "blocks were stored while stores were held"
    bed.throttle.hold()
    wait_until("the blocks are stored", lambda: bed.blocks_stored(agent) > kept, 20.0)
    bed.reset_cache(agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    bed.settled(agent)
    return f"{bed.blocks_stored(agent) - kept} blocks stored late"


@case("abort-mid-load", "an abort during a load leaves no block and no slot held")
def abort_mid_load(bed: SharedTestBed) -> str:
    agent, engine = bed.slow_agent, bed.slow
    prompt = bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt).tokens
    before = bed.throttle.arrived("load")
    bed.throttle.hold(loads=True)
    request = engine.begin(prompt)
    wait_until("a load is held", lambda: bed.throttle.arrived("load") > before)
    engine.ask("abort", request=request.number).wait()
    out = request.output()
    assert out.finish == "abort" and not out.tokens, f"the request ended with {out}"
    engine.generate(bed.prompt(300))  # other requests run meanwhile
    bed.throttle.hold()
    bed.reset_cache(agent, engine)  # vLLM refuses a reset while a block is held
    bed.settled(agent)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    return "nothing held afterwards"


@case("two-dp-ranks", "the ranks of a data-parallel engine share one pool")
def two_dp_ranks(bed: SharedTestBed) -> str:
    agent = bed.main
    try:
        engine = bed.engine("ranks", agent, data_parallel_size=2, **LORA)
    except EngineError:
        if any(e.logged(r"not in available memory nodes \[\]") for e in bed.running()):
            raise Skipped("this vLLM needs a memory node for each rank") from None
        raise
    prompt = bed.prompt(500)
    tokens = bed.stored(agent, engine, prompt, rank=0).tokens
    same(engine.generate(prompt, rank=1), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    same(engine.generate(prompt, rank=0), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    steps = [c.steps for c in engine.counts()]
    assert len(steps) == 2 and all(steps), f"steps of the ranks: {steps}"
    bed.settled(agent)
    bed.stop(engine)
    return f"{hit(len(prompt))} tokens of rank 0 at rank 1"


@case("two-tp-ranks", "each of two tensor-parallel ranks copies its part of a block")
def two_tp_ranks(bed: SharedTestBed) -> str:
    agent = bed.main
    engine = bed.engine("parts", agent, tensor_parallel_size=2)
    prompt = bed.prompt(500)
    tokens = bed.stored(agent, engine, prompt).tokens

    def cached() -> int:
        out = engine.generate(prompt)
        bed.reset_cache(agent, engine)
        assert out.tokens == tokens, f"tokens {out.tokens}, want {tokens}"
        return out.cached

    # A hit waits a second for ranks that map the agent's memory, and is a miss then.
    wait_until("both ranks read the blocks", lambda: cached() == hit(len(prompt)))
    half = block_count(hit(len(prompt))) * model.BLOCK_BYTES // 2
    wait_until(
        "both ranks have loaded a half", lambda: engine.metrics()["load_bytes_total"] == 2 * half
    )
    bed.settled(agent)
    bed.stop(engine)
    return f"{hit(len(prompt))} tokens, {half} bytes at each rank"


@case("speculative-decoding", "refused drafts change no stored block")
def speculative_decoding(bed: SharedTestBed) -> str:
    agent = bed.main
    ngrams = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    ngrams["prompt_lookup_min"] = 1
    engine = bed.engine("speculative", agent, speculative_config=ngrams)
    prompt = bed.prompt(12) * 25  # each n-gram has come before, so that vLLM has drafts
    before = bed.blocks_stored(agent)
    out = engine.generate(prompt, 100)
    whole = len(prompt) + len(out.tokens) - 1  # the last token of an answer is not computed
    wait_until(
        "the answer's blocks are stored",
        lambda: bed.blocks_stored(agent) >= before + block_count(whole),
        20.0,
    )
    bed.reset_cache(agent, engine)
    drafts = engine.metrics("vllm:spec_decode_num_")
    refused = int(drafts["draft_tokens_total"] - drafts["accepted_tokens_total"])
    assert refused > 0, f"blind: vLLM has refused no draft: {drafts}"
    same(engine.generate(prompt, 100), out.tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    following = prompt + out.tokens + bed.prompt(20)
    reference = bed.computed(engine, following)
    engine.reset_cache()
    same(engine.generate(following), reference, hit(whole))
    bed.reset_cache(agent, engine)
    bed.settled(agent)
    bed.stop(engine)
    return f"{refused} refused drafts, {hit(whole)} tokens loaded"
