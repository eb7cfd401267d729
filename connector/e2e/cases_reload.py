"""Cases of reloads: the engine loads computed blocks from any tier, and the tokens stay equal."""

from __future__ import annotations

from e2e import faults, hashes, model
from e2e.runner import case
from e2e.testbed import STEP_TOKENS, block_count
from e2e.case import SharedTestBed
from e2e.engineproc import Output
from tests.agentproc import AgentProcess, wait_until


def same(out: Output, tokens: list[int], cached: int) -> None:
    """Checks a request's number of cached tokens and its output tokens."""
    assert out.cached == cached, f"{out.cached} tokens were cached, want {cached}"
    assert out.tokens == tokens, f"tokens {out.tokens}, want {tokens}"


def hit(tokens: int) -> int:
    """Cached tokens of a prompt after a load of all its complete blocks.

    May be all tokens: vLLM computes the last token again, but counts it as cached.
    """
    return block_count(tokens) * model.BLOCK_TOKENS


def resident(agent: AgentProcess, prompt: list[int]) -> list[faults.Block]:
    """The stored blocks of a prompt without adapter and salt, in order."""
    stored = {b.hash: b for b in faults.blocks(agent)}
    return [stored[h] for h in hashes.chain(prompt)]


@case("reset-reload", "after a reset of the engine's own cache, prompts come from the pool")
def reset_reload(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    lengths = (330, 64, 32, 950)
    prompts = [bed.prompt(n) for n in lengths]
    answers = []
    for prompt in prompts:
        out = bed.stored(agent, engine, prompt)
        assert out.cached == 0, f"a new prompt found {out.cached} tokens cached"
        answers.append(out.tokens)
    before = bed.loaded(agent)
    for prompt, tokens in zip(prompts, answers, strict=True):
        same(engine.generate(prompt), tokens, hit(len(prompt)))
        bed.reset_cache(agent, engine)
    loads = bed.loaded(agent) - before
    _in_place(bed, prompts[0])
    assert loads == sum(map(block_count, lengths)), f"{loads} blocks were loaded"
    return f"{loads} blocks loaded"


def _in_place(bed: SharedTestBed, prompt: list[int]) -> None:
    """Checks that loaded blocks are in order on the device.

    Another prompt shares only the first blocks. Blocks exchanged within the loaded prompt do not
    change its own tokens (see control), but they change the other prompt's tokens.
    """
    agent, engine = bed.main, bed.first
    shared = 3 * model.BLOCK_TOKENS
    other = prompt[:shared] + bed.prompt(40)
    reference = bed.computed(engine, other)
    engine.generate(prompt)
    bed.settled(agent)  # a load counts with its release, which may follow the answer
    loads = bed.loaded(agent)
    same(engine.generate(other), reference, shared)
    assert bed.loaded(agent) == loads, "the device's blocks were loaded again"
    bed.reset_cache(agent, engine)


@case("chunked-prefill", "a prompt of several steps extends a hit and is stored chunk by chunk")
def chunked_prefill(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    head = bed.prompt(2 * STEP_TOKENS)
    whole = head + bed.prompt(STEP_TOKENS + 100)
    reference = bed.computed(engine, whole)
    bed.stored(agent, engine, head)
    # The engine loads the head and computes the rest in chunks.
    out = engine.generate(whole)
    same(out, reference, len(head))
    wait_until("the rest is stored", lambda: _stored(agent, whole), 20.0)
    bed.reset_cache(agent, engine)
    same(engine.generate(whole), reference, hit(len(whole)))
    bed.reset_cache(agent, engine)
    return f"{len(head)} of {len(whole)} tokens loaded, then {hit(len(whole))}"


def _stored(agent: AgentProcess, prompt: list[int]) -> bool:
    return set(hashes.chain(prompt)) <= {b.hash for b in faults.blocks(agent)}


@case("disk-only", "blocks that are only on disk are loaded")
def disk_only(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(650)
    tokens = bed.stored(agent, engine, prompt).tokens
    agent.post("/v1/reset", {"tier": "host"})
    assert all(b.host is None and b.disk for b in resident(agent, prompt)), "host memory has some"
    before = agent.stats()["cache"]["onboarded_disk"]
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    loads = agent.stats()["cache"]["onboarded_disk"] - before
    assert loads == block_count(len(prompt)), f"{loads} blocks came from disk"
    bed.reset_cache(agent, engine)
    return f"{loads} blocks from disk"


@case("two-engines-one-pool", "a second engine's first request hits blocks of the first engine")
def two_engines(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(500)
    tokens = bed.stored(agent, engine, prompt).tokens
    second = bed.second
    assert sum(c.steps for c in second.counts()) == 0, "the second engine has run before"
    same(second.generate(prompt), tokens, hit(len(prompt)))
    # And the other way round.
    prompt = bed.prompt(500)
    tokens = bed.stored(agent, second, prompt).tokens
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    return f"{hit(len(prompt))} tokens each way"


@case("engine-restart", "a killed engine is warm after its restart")
def engine_restart(bed: SharedTestBed) -> str:
    agent = bed.main
    second = bed.second
    prompt = bed.prompt(500)
    tokens = bed.stored(agent, second, prompt).tokens
    # The kill comes while a request runs.
    second.begin(bed.prompt(200), 600).started()
    bed.stop(second, hard=True)
    del bed.second
    again = bed.second
    same(again.generate(prompt), tokens, hit(len(prompt)))
    bed.reset_cache(agent, again)
    bed.settled(agent)
    bed.stop(again)
    del bed.second
    return f"{hit(len(prompt))} tokens at its first request"
