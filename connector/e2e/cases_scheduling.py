"""Cases: what the engine's scheduler does to requests whose blocks are being copied."""

from __future__ import annotations

from e2e.bed import MODEL_LEN
from e2e.case import LORA, Skipped, Yard, case
from e2e.cases_reload import hit, same
from e2e.engineproc import EngineError
from tests.agentproc import wait_until


@case("preemption", "requests that lose their blocks halfway begin again and end as if alone")
def preemption(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    # Together they need more blocks than there are.
    prompts = [yard.prompt(256) for _ in range(6)]
    references = [yard.computed(engine, p, 300) for p in prompts]
    before = engine.counts()[0].preempted
    loads = yard.loaded(agent)
    requests = [engine.begin(p, 300) for p in prompts]
    for number, (request, tokens) in enumerate(zip(requests, references, strict=True)):
        out = request.output()
        assert out.tokens == tokens, f"request {number} went wrong: {out.tokens}, want {tokens}"
    preempted = engine.counts()[0].preempted - before
    assert preempted > 0, "nobody was preempted: the case shows nothing"
    yard.forget(agent, engine)
    for prompt, tokens in zip(prompts, references, strict=True):
        same(engine.generate(prompt, 300), tokens, hit(len(prompt)))
        yard.forget(agent, engine)
    yard.settled(agent)
    return f"{preempted} preempted, {yard.loaded(agent) - loads} blocks loaded"


@case("store-races-reuse", "device blocks whose copy has not begun are not used for others")
def store_races_reuse(yard: Yard) -> str:
    agent, engine = yard.slow_agent, yard.slow
    prompt = yard.prompt(330)
    before, kept = yard.throttle.arrived("store"), yard.kept(agent)
    yard.throttle.hold(stores=True)
    tokens = engine.generate(prompt).tokens
    wait_until("a store is held", lambda: yard.throttle.arrived("store") > before)
    # The request has ended, so its blocks are free but for the store. These need all others.
    for _ in range(3):
        engine.generate(yard.prompt(MODEL_LEN - 100))
    assert yard.kept(agent) == kept, "blocks were stored while stores were held"
    yard.throttle.hold()
    wait_until("the blocks are stored", lambda: yard.kept(agent) > kept, 20.0)
    yard.forget(agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    yard.settled(agent)
    return f"{yard.kept(agent) - kept} blocks stored late"


@case("abort-mid-load", "a request that is aborted while its blocks are loaded leaves nothing held")
def abort_mid_load(yard: Yard) -> str:
    agent, engine = yard.slow_agent, yard.slow
    prompt = yard.prompt(330)
    tokens = yard.stored(agent, engine, prompt).tokens
    before = yard.throttle.arrived("load")
    yard.throttle.hold(loads=True)
    request = engine.begin(prompt)
    wait_until("a load is held", lambda: yard.throttle.arrived("load") > before)
    engine.ask("abort", request=request.number).wait()
    out = request.output()
    assert out.finish == "abort" and not out.tokens, f"the request ended with {out}"
    engine.generate(yard.prompt(300))  # the engine goes on meanwhile
    yard.throttle.hold()
    yard.forget(agent, engine)  # refused while a block is held
    yard.settled(agent)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    return "nothing held afterwards"


@case("two-dp-ranks", "the ranks of a data-parallel engine share one pool")
def two_dp_ranks(yard: Yard) -> str:
    agent = yard.main
    try:
        engine = yard.engine("ranks", agent, data_parallel_size=2, **LORA)
    except EngineError:
        if any(e.logged(r"not in available memory nodes \[\]") for e in yard.running()):
            raise Skipped("this vLLM wants a memory node for each rank") from None
        raise
    prompt = yard.prompt(500)
    tokens = yard.stored(agent, engine, prompt, rank=0).tokens
    same(engine.generate(prompt, rank=1), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    same(engine.generate(prompt, rank=0), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    steps = [c.steps for c in engine.counts()]
    assert len(steps) == 2 and all(steps), f"steps of the ranks: {steps}"
    yard.settled(agent)
    yard.stop(engine)
    return f"{hit(len(prompt))} tokens of rank 0 at rank 1"
