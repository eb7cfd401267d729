"""Cases: what was computed once is loaded, wherever it lies, and the tokens stay the same."""

from __future__ import annotations

from e2e import faults, hashes, model
from e2e.bed import STEP_TOKENS, block_count
from e2e.case import Yard, case
from e2e.engineproc import Output
from tests.agentproc import AgentProcess, wait_until


def same(out: Output, tokens: list[int], cached: int) -> None:
    """The request found that many tokens cached and gave these."""
    assert out.cached == cached, f"{out.cached} tokens were cached, want {cached}"
    assert out.tokens == tokens, f"tokens {out.tokens}, want {tokens}"


def hit(tokens: int) -> int:
    """Tokens of a prompt that count as cached when all of its complete blocks are loaded. That
    may be all: vLLM computes the last one again and counts it nevertheless."""
    return block_count(tokens) * model.BLOCK_TOKENS


def resident(agent: AgentProcess, prompt: list[int]) -> list[faults.Block]:
    """The stored blocks of a prompt without adapter and salt, in its order."""
    stored = {b.hash: b for b in faults.blocks(agent)}
    return [stored[h] for h in hashes.chain(prompt)]


@case("reset-reload", "after the engine's own cache is emptied, prompts come from the pool")
def reset_reload(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    lengths = (330, 64, 32, 950)
    prompts = [yard.prompt(n) for n in lengths]
    answers = []
    for prompt in prompts:
        out = yard.stored(agent, engine, prompt)
        assert out.cached == 0, f"a new prompt found {out.cached} tokens cached"
        answers.append(out.tokens)
    before = yard.loaded(agent)
    for prompt, tokens in zip(prompts, answers, strict=True):
        same(engine.generate(prompt), tokens, hit(len(prompt)))
        yard.forget(agent, engine)
    loads = yard.loaded(agent) - before
    _in_place(yard, prompts[0])
    assert loads == sum(map(block_count, lengths)), f"{loads} blocks were loaded"
    return f"{loads} blocks loaded"


def _in_place(yard: Yard, prompt: list[int]) -> None:
    """Loaded blocks lie in their own places: one that begins like the prompt shares the first
    blocks of it on the device alone. Blocks that are exchanged within a prompt do not change its
    own tokens (see control), but they change these."""
    agent, engine = yard.main, yard.first
    shared = 3 * model.BLOCK_TOKENS
    other = prompt[:shared] + yard.prompt(40)
    reference = yard.computed(engine, other)
    engine.generate(prompt)
    loads = yard.loaded(agent)
    same(engine.generate(other), reference, shared)
    assert yard.loaded(agent) == loads, "the shared blocks were loaded, not found on the device"
    yard.forget(agent, engine)


@case("chunked-prefill", "a prompt of several steps is stored as it grows and extends a hit")
def chunked_prefill(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    head = yard.prompt(2 * STEP_TOKENS)
    whole = head + yard.prompt(STEP_TOKENS + 100)
    reference = yard.computed(engine, whole)
    yard.stored(agent, engine, head)
    # The head is loaded, the rest is computed behind it in chunks.
    out = engine.generate(whole)
    same(out, reference, len(head))
    wait_until("the rest is stored", lambda: _stored(agent, whole), 20.0)
    yard.forget(agent, engine)
    same(engine.generate(whole), reference, hit(len(whole)))
    yard.forget(agent, engine)
    return f"{len(head)} of {len(whole)} tokens loaded, then {hit(len(whole))}"


def _stored(agent: AgentProcess, prompt: list[int]) -> bool:
    return set(hashes.chain(prompt)) <= {b.hash for b in faults.blocks(agent)}


@case("disk-only", "blocks that are on disk alone come back")
def disk_only(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(650)
    tokens = yard.stored(agent, engine, prompt).tokens
    agent.post("/v1/reset", {"tier": "host"})
    assert all(b.host is None and b.disk for b in resident(agent, prompt)), "host memory has some"
    before = agent.stats()["cache"]["onboarded_disk"]
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    loads = agent.stats()["cache"]["onboarded_disk"] - before
    assert loads == block_count(len(prompt)), f"{loads} blocks came from disk"
    yard.forget(agent, engine)
    return f"{loads} blocks from disk"


@case("two-engines-one-pool", "the first request of a second engine hits what the first stored")
def two_engines(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(500)
    tokens = yard.stored(agent, engine, prompt).tokens
    second = yard.second
    assert sum(c.steps for c in second.counts()) == 0, "the second engine has run before"
    same(second.generate(prompt), tokens, hit(len(prompt)))
    # And the other way round.
    prompt = yard.prompt(500)
    tokens = yard.stored(agent, second, prompt).tokens
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    return f"{hit(len(prompt))} tokens each way"


@case("engine-restart", "an engine that is killed and started again is warm")
def engine_restart(yard: Yard) -> str:
    agent = yard.main
    second = yard.second
    prompt = yard.prompt(500)
    tokens = yard.stored(agent, second, prompt).tokens
    # Killed in the middle of something.
    second.begin(yard.prompt(200), 600).started()
    yard.stop(second, hard=True)
    del yard.second
    again = yard.second
    same(again.generate(prompt), tokens, hit(len(prompt)))
    yard.forget(agent, again)
    yard.settled(agent)
    yard.stop(again)
    del yard.second
    return f"{hit(len(prompt))} tokens at its first request"
