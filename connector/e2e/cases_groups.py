"""Cases of hybrid models: windows and states of other layers beside full attention.

Every case runs for each shape. Blocks of each KV group are stored and loaded on their own.
"""

from __future__ import annotations

from e2e import faults
from e2e.case import SharedTestBed
from e2e.cases_reload import same
from e2e.runner import case
from e2e.shapes import CHUNKS, GEMMA, GPT_OSS, SHAPES, HybridBed, each_shape, hybrid
from tests.agentproc import wait_until

_ALL = (*SHAPES, CHUNKS)


@each_shape(
    "reload", "after a reset, prompts come from the pool as they did from vLLM's own cache", _ALL
)
def reload(h: HybridBed) -> str:
    hits = []
    for length in h.shape.lengths:
        prompt = h.bed.prompt(length)
        reference = h.bed.computed(h.engine, prompt)
        h.engine.reset_cache()
        out, _ = h.run(prompt)
        same(out, reference, 0)
        device = h.engine.generate(prompt)
        same(h.engine.generate(prompt), reference, device.cached)
        assert device.cached == h.shape.cached(length), f"vLLM's own cache had {device.cached}"
        h.quiet()
        h.engine.reset_cache()
        before = h.bed.loaded(h.agent)
        same(h.engine.generate(prompt), reference, device.cached)
        if device.cached:  # the agent counts a load shortly after the engine has its end
            wait_until("blocks are loaded", lambda: h.bed.loaded(h.agent) > before)
        else:
            assert h.bed.loaded(h.agent) == before, "blocks were loaded"
        h.bed.reset_cache(h.agent, h.engine)
        hits.append(device.cached)
    h.bed.settled(h.agent)
    h.bed.hybrid_models.add(h.shape.name)
    return f"{hits} of {list(h.shape.lengths)} tokens"


@each_shape("control", "a zeroed block of any group changes the tokens", _ALL)
def damage(h: HybridBed) -> str:
    """Live host memory is trusted. Without the change, equal tokens would prove nothing.

    Few tokens follow the hit: a state forgets, so that later tokens would hide the damage.
    """
    for group in range(h.shape.groups):
        # The likeliest tokens of a prompt can be the same without the group.
        assert any(_damage_shows(h, group) for _ in range(3)), f"blind: zeros in group {group}"
    return f"seen in each of {h.shape.groups} groups"


def _damage_shows(h: HybridBed, group: int) -> bool:
    """Zeroes the stored blocks of a group of a new prompt. Do the tokens change?"""
    length = h.shape.cached(h.shape.lengths[-1]) + 2
    prompt = h.bed.prompt(length)
    out, blocks = h.run(prompt)
    hurt = [block for block in blocks if block.group == group]
    assert hurt, f"no block of group {group} was stored"
    for block in hurt:
        faults.zero(faults.host_location(block), h.agent)
    damaged = h.engine.generate(prompt)
    h.quiet()
    h.engine.reset_cache()
    assert damaged.cached == h.shape.cached(length), f"{damaged.cached} tokens were cached"
    h.agent.post("/v1/reset", {"tier": "all"})
    return damaged.tokens != out.tokens


@each_shape("flipped-byte", "a group damaged on disk shortens the hit, whichever it is", _ALL)
def flipped(h: HybridBed) -> str:
    length, hits = h.shape.lengths[-1], []
    for group in range(h.shape.groups):
        prompt = h.bed.prompt(length)
        out, blocks = h.run(prompt)
        # A chunk that the hit does not end in may be damaged: so all blocks of the group are.
        for block in blocks:
            if block.group == group:
                faults.flip(faults.disk_location(block), 64)
        h.agent.post("/v1/reset", {"tier": "host"})
        before = h.bed.count(h.agent, "corrupt_reads")
        again = h.engine.generate(prompt)
        assert again.tokens == out.tokens, f"group {group}: {again.tokens}, want {out.tokens}"
        whole = h.shape.cached(length)
        assert again.cached < whole, f"group {group}: {again.cached} of {whole} tokens"
        assert h.bed.count(h.agent, "corrupt_reads") > before, "no corrupt block was found"
        h.quiet()
        h.engine.reset_cache()
        # The request has stored what the hit needs again.
        same(h.engine.generate(prompt), out.tokens, whole)
        h.bed.reset_cache(h.agent, h.engine)
        hits.append(again.cached)
    h.bed.settled(h.agent)
    return f"{hits} tokens with each group lost"


@each_shape("disk-only", "blocks of all groups come from disk", _ALL)
def disk_only(h: HybridBed) -> str:
    length = h.shape.lengths[-1]
    prompt = h.bed.prompt(length)
    out, _ = h.run(prompt)
    h.agent.post("/v1/reset", {"tier": "host"})
    before = h.agent.stats()["cache"]["onboarded_disk"]
    same(h.engine.generate(prompt), out.tokens, h.shape.cached(length))
    loads = h.agent.stats()["cache"]["onboarded_disk"] - before
    assert loads >= h.shape.groups, f"{loads} blocks came from disk"
    h.bed.reset_cache(h.agent, h.engine)
    return f"{loads} blocks from disk"


@each_shape("partial-hit", "a hit extends what the device has, and serves prompts that go on", _ALL)
def partial(h: HybridBed) -> str:
    length = h.shape.lengths[-1]
    whole = h.bed.prompt(length - 120)
    head = whole[: len(whole) * 3 // 5]
    longer = whole + h.bed.prompt(100)
    reference = h.bed.computed(h.engine, whole)
    further = h.bed.computed(h.engine, longer)
    h.engine.reset_cache()
    h.run(head)
    h.run(whole)
    h.engine.generate(head)  # the device has the first half now
    before = h.bed.loaded(h.agent)
    same(h.engine.generate(whole), reference, h.shape.cached(len(whole)))
    part = h.bed.loaded(h.agent) - before
    h.quiet()
    h.engine.reset_cache()
    same(h.engine.generate(longer), further, h.shape.cached(len(whole)))
    h.bed.reset_cache(h.agent, h.engine)
    assert part, "nothing was loaded beyond the device's own blocks"
    return f"{part} blocks behind the device's own"


@each_shape(
    "chunked-prefill", "a prompt of several steps extends a hit and is stored by steps", _ALL
)
def chunked_prefill(h: HybridBed) -> str:
    whole = h.bed.prompt(h.shape.longest)
    head = whole[: h.shape.lengths[-2]]
    reference = h.bed.computed(h.engine, whole)
    h.engine.reset_cache()
    h.run(head)
    rest = len(whole) - h.shape.cached(len(head))
    assert rest > h.shape.step_tokens, f"blind: a step computes all of {rest} tokens"
    same(h.engine.generate(whole), reference, h.shape.cached(len(head)))
    h.quiet()
    h.engine.reset_cache()
    same(h.engine.generate(whole), reference, h.shape.cached(len(whole)))
    h.bed.reset_cache(h.agent, h.engine)
    return f"{len(whole) - rest} of {len(whole)} tokens loaded, then {h.shape.cached(len(whole))}"


@each_shape("load-fails", "the engine computes a load that fails in any group")
def load_fails(h: HybridBed) -> str:
    length = h.shape.lengths[-1]
    failed = h.engine.failed_loads()
    for group in range(h.shape.groups):
        prompt = h.bed.prompt(length)
        out, blocks = h.run(prompt)
        hurt = [block for block in blocks if block.group == group][-1]
        # Between the answer and the copy, the slot gets another block.
        with faults.reassigned(faults.host_location(hurt), faults.slot_bytes(h.agent)):
            same(h.engine.generate(prompt), out.tokens, 0)
            h.quiet()
        h.engine.reset_cache()
        same(h.engine.generate(prompt), out.tokens, h.shape.cached(length))
        h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    failed = int(h.engine.failed_loads(failed + h.shape.groups) - failed)
    assert failed == h.shape.groups, f"vLLM's metrics have {failed} failed loads"
    return f"a failed load of each of {failed} groups"


@each_shape("conversation", "the next turn finds the answer's blocks too", (GEMMA, GPT_OSS, CHUNKS))
def conversation(h: HybridBed) -> str:
    prompt = h.bed.prompt(200)
    out, _ = h.run(prompt, 100)
    following = prompt + out.tokens + h.bed.prompt(20)
    reference = h.bed.computed(h.engine, following)
    h.engine.reset_cache()
    again = h.engine.generate(following)
    assert again.tokens == reference, f"{again.tokens}, want {reference}"
    want = (len(prompt) + len(out.tokens) - 1) // h.shape.align * h.shape.align
    assert again.cached == want, f"{again.cached} tokens were cached, want {want}"
    h.bed.reset_cache(h.agent, h.engine)
    return f"{want} tokens, {h.shape.cached(len(prompt))} of them of the first prompt"


@each_shape("abort-mid-load", "an abort during a load leaves no block and no slot held", _ALL)
def abort_mid_load(h: HybridBed) -> str:
    length = h.shape.lengths[-1]
    prompt = h.bed.prompt(length)
    out, _ = h.run(prompt)
    throttle = h.bed.throttle
    before = throttle.arrived("load")
    throttle.hold(loads=True)
    request = h.engine.begin(prompt)
    wait_until("a load is held", lambda: throttle.arrived("load") > before)
    h.engine.ask("abort", request=request.number).wait()
    aborted = request.output()
    assert aborted.finish == "abort" and not aborted.tokens, f"the request ended with {aborted}"
    # The held load keeps its device blocks. vLLM admits a prompt only if the rest has room for it.
    h.engine.generate(h.bed.prompt(200))
    throttle.hold()
    h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    same(h.engine.generate(prompt), out.tokens, h.shape.cached(length))
    h.bed.reset_cache(h.agent, h.engine)
    return "nothing held afterwards"


@each_shape("late-stores", "a prompt whose copies begin after its end is stored as a whole", _ALL)
def late_stores(h: HybridBed) -> str:
    """Other cases rely on it: how much they store must not depend on the time of a copy."""
    length = h.shape.lengths[-1]
    prompt = h.bed.prompt(length)
    throttle = h.bed.throttle
    before, kept = throttle.arrived("store"), h.bed.blocks_stored(h.agent)
    throttle.hold(stores=True)
    out = h.engine.generate(prompt)
    wait_until("a store is held", lambda: throttle.arrived("store") > before)
    assert h.bed.blocks_stored(h.agent) == kept, "blocks were stored while stores were held"
    throttle.hold()
    h.quiet()
    h.engine.reset_cache()
    same(h.engine.generate(prompt), out.tokens, h.shape.cached(length))
    h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    return f"{h.shape.cached(length)} tokens stored late"


@each_shape("store-races-reuse", "a window is not reused before its copy", (GEMMA, GPT_OSS))
def store_races_reuse(h: HybridBed) -> str:
    prompt = h.bed.prompt(330)
    throttle = h.bed.throttle
    before, kept = throttle.arrived("store"), h.bed.blocks_stored(h.agent)
    throttle.hold(stores=True)
    tokens = h.engine.generate(prompt).tokens
    wait_until("a store is held", lambda: throttle.arrived("store") > before)
    for _ in range(8):  # together they need all blocks that are free
        h.engine.generate(h.bed.prompt(100))
    assert h.bed.blocks_stored(h.agent) == kept, "blocks were stored while stores were held"
    throttle.hold()
    h.quiet()
    h.engine.reset_cache()
    out = h.engine.generate(prompt)
    assert out.tokens == tokens, f"{out.tokens}, want {tokens}"
    h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    assert out.cached, "nothing was stored"
    return f"{out.cached} tokens stored late"


@each_shape("preemption", "preempted requests give the same tokens", (GEMMA, GPT_OSS, CHUNKS))
def preemption(h: HybridBed) -> str:
    prompts = [h.bed.prompt(256) for _ in range(6)]
    references = [h.bed.computed(h.engine, p, h.shape.decoded) for p in prompts]
    h.engine.reset_cache()
    before = h.engine.counts()[0].preempted
    requests = [h.engine.begin(p, h.shape.decoded) for p in prompts]
    for number, (request, tokens) in enumerate(zip(requests, references, strict=True)):
        out = request.output()
        assert out.tokens == tokens, f"request {number}: tokens {out.tokens}, want {tokens}"
    preempted = h.engine.counts()[0].preempted - before
    assert preempted > 0, "blind: no request was preempted"
    h.quiet()
    h.engine.reset_cache()
    hits = []
    for prompt, tokens in zip(prompts, references, strict=True):
        out = h.engine.generate(prompt, h.shape.decoded)
        assert out.tokens == tokens, f"tokens {out.tokens}, want {tokens}"
        hits.append(out.cached)
        h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    return f"{preempted} preempted, then {hits} tokens loaded"


@each_shape("agent-kill-restart", "the next agent serves all groups", _ALL)
def agent_kill_restart(h: HybridBed) -> str:
    length = h.shape.lengths[-1]
    prompt, running = h.bed.prompt(length), h.bed.prompt(100)
    reference = h.bed.computed(h.engine, running, 200)
    out, _ = h.run(prompt)
    request = h.engine.begin(running, 200)
    request.started()
    h.bed.kill(h.agent)
    assert request.output().tokens == reference, "the agent's death changed a running request"
    h.engine.reset_cache()
    same(h.engine.generate(prompt), out.tokens, 0)
    h.agent.start()
    h.bed.connected(h.agent)
    h.engine.reset_cache()
    same(h.engine.generate(prompt), out.tokens, h.shape.cached(length))
    h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    return f"{h.shape.cached(length)} tokens of the dead agent"


@each_shape("engine-kill", "another engine loads the blocks of an engine that was killed", _ALL)
def engine_kill(h: HybridBed) -> str:
    length = h.shape.lengths[-1]
    prompt = h.bed.prompt(length)
    out, _ = h.run(prompt)
    h.engine.begin(h.bed.prompt(200), 600).started()
    h.bed.stop(h.engine, hard=True)
    h.engine = h.start("second", connector="e2e.slow:SlowConnector")
    same(h.engine.generate(prompt), out.tokens, h.shape.cached(length))
    h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    return f"{h.shape.cached(length)} tokens at its first request"


@case("gemma3-two-engines", "gemma3: two engines share one pool")
def two_engines(bed: SharedTestBed) -> str:
    h = hybrid(bed, GEMMA)
    prompt = bed.prompt(500)
    out, _ = h.run(prompt)
    other = h.start("other")
    same(other.generate(prompt), out.tokens, GEMMA.cached(500))
    prompt = bed.prompt(500)
    tokens = other.generate(prompt).tokens
    h.quiet()
    bed.stop(other)
    same(h.engine.generate(prompt), tokens, GEMMA.cached(500))
    bed.reset_cache(h.agent, h.engine)
    return f"{GEMMA.cached(500)} tokens each way"
