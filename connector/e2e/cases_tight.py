"""Cases of hybrid models on an engine with an agent that has room for few prompts."""

from __future__ import annotations

from e2e import faults
from e2e.cases_reload import same
from e2e.shapes import HybridBed, each_shape
from tests.agentproc import wait_until


@each_shape("short-hits", "by default a hit that is computed sooner than loaded is computed")
def short_hits(h: HybridBed) -> str:
    """e2e.measured has the times: a load takes as long as the computation of 700 tokens."""
    tight, names = h.tight, ("loads_total", "declined_hits_total")
    results = {}
    for length in h.shape.lengths[-2:]:
        prompt = h.bed.prompt(length)
        out, _ = tight.run(prompt)
        before = tight.engine.metrics()
        again = tight.engine.generate(prompt)
        assert again.tokens == out.tokens, f"{again.tokens}, want {out.tokens}"

        def grown() -> tuple[int, ...]:
            now = tight.engine.metrics()
            return tuple(int(now[name] - before[name]) for name in names)

        wait_until("vLLM's metrics have the hit", lambda: any(grown()), 10.0)
        results[length] = (again.cached, *grown())
        h.bed.reset_cache(tight.agent, tight.engine)
    short, long = h.shape.lengths[-2:]
    assert results[short] == (0, 0, 1), f"{short} tokens: cached, loads, declined {results[short]}"
    want = (h.shape.cached(long), 1, 0)
    assert results[long] == want, f"{long} tokens: cached, loads, declined {results[long]}"
    return f"{h.shape.cached(short)} of {short} tokens computed, {want[0]} of {long} loaded"


@each_shape("load-fails-policy-fail", "under `fail` a failed load ends its request and no other")
def load_fails_request(h: HybridBed) -> str:
    tight, length = h.tight, h.shape.lengths[-1]
    prompt, other = h.bed.prompt(length), h.bed.prompt(length)
    out, blocks = tight.run(prompt)
    others, _ = tight.run(other)
    failed = tight.engine.failed_loads()
    hurt = [block for block in blocks if block.group != h.shape.full][0]
    with faults.reassigned(faults.host_location(hurt), faults.slot_bytes(tight.agent)):
        running = tight.engine.begin(other)
        ended = tight.engine.generate(prompt)
        same(running.output(), others.tokens, h.shape.cached(length))
    assert ended.finish == "error", f"the request ended with {ended.finish}"
    assert not ended.tokens, f"{len(ended.tokens)} tokens of a request without its blocks"
    failed = tight.engine.failed_loads(failed + 1) - failed
    assert failed == 1, f"vLLM's metrics have {failed} failed loads"
    h.bed.reset_cache(tight.agent, tight.engine)
    same(tight.engine.generate(prompt), out.tokens, h.shape.cached(length))
    h.bed.reset_cache(tight.agent, tight.engine)
    h.bed.settled(tight.agent)
    return f"a block of group {hurt.group} failed one request, the next one was loaded"


@each_shape("eviction", "windows and states are evicted before their prefix, and shorten the hit")
def eviction(h: HybridBed) -> str:
    tight, length = h.tight, h.shape.lengths[-1]
    prompt = h.bed.prompt(length)
    reference = h.bed.computed(tight.engine, prompt)
    tight.quiet()
    tight.agent.post("/v1/reset", {"tier": "all"})
    tight.engine.reset_cache()
    _, blocks = tight.run(prompt)
    gone = _crowd(tight, blocks)
    sparse = [block.group for block in gone if block.group != h.shape.full]
    assert sparse, f"blocks of group {h.shape.full} alone were evicted"
    # A block of a window or state has the hash of the prompt up to its end.
    lost = {block.hash for block in gone if block.group == h.shape.full}
    orphans = {b.hash for b in blocks if b not in gone and b.group != h.shape.full} & lost
    assert not orphans, f"blocks {orphans} have lost their prefix"
    # The windows and states end where the prompt ends, so that nothing serves a shorter prefix.
    same(tight.engine.generate(prompt), reference, 0)
    tight.quiet()
    tight.engine.reset_cache()
    same(tight.engine.generate(prompt), reference, h.shape.cached(length))
    h.bed.reset_cache(tight.agent, tight.engine)
    h.bed.settled(tight.agent)
    return f"{len(sparse)} blocks of groups {sorted(set(sparse))} evicted, then stored again"


def _crowd(tight: HybridBed, blocks: list[faults.Block]) -> list[faults.Block]:
    """Stores other prompts until the agent has evicted some of the blocks. Returns those."""

    def host() -> dict[str, int]:
        (pool,) = tight.agent.stats()["pools"]
        return pool["host"]

    shape = tight.shape
    for _ in range(host()["capacity"]):
        # Short prompts evict few blocks at once.
        length = shape.lengths[-1] if host()["free"] >= len(blocks) else shape.align + 8
        tight.run(tight.bed.prompt(length))
        present = tight.blocks()
        if gone := [block for block in blocks if block.key not in present]:
            return gone
    raise AssertionError(f"a host tier of {host()} evicts nothing")
