"""Cases: equal tokens that do not mean equal KV are kept apart."""

from __future__ import annotations

import os

from e2e import model
from e2e.case import LORA, Yard, case
from e2e.cases_reload import hit, same


@case("salt-isolation", "requests share blocks only with those of the same cache salt")
def salt_isolation(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(330)
    tokens = yard.stored(agent, engine, prompt, salt="tenant-one").tokens
    for salt in ("tenant-two", None):
        same(engine.generate(prompt, salt=salt), tokens, 0)
        yard.forget(agent, engine)
    same(engine.generate(prompt, salt="tenant-one"), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    return "two salts and none"


@case("lora-isolation", "requests share blocks only with those of the same LoRA adapter")
def lora_isolation(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(330)
    first, second = (
        [name, number + 1, str(path)] for number, (name, path) in enumerate(yard.adapters.items())
    )
    # An adapter that was replaced under its name.
    replaced = [first[0], 3, second[2]]
    tokens = yard.stored(agent, engine, prompt, lora=first).tokens
    others = []
    for lora in (second, None):
        out = yard.stored(agent, engine, prompt, lora=lora)
        assert out.cached == 0, f"{lora}: {out.cached} tokens of another adapter were cached"
        others.append(out.tokens)
    out = engine.generate(prompt, lora=replaced)
    yard.forget(agent, engine)
    # It may hit what was stored under its other name: the files are the same.
    assert out.cached in (0, hit(len(prompt))), f"{out.cached} tokens were cached"
    assert out.tokens == others[0], "the replaced adapter answers as the one that it replaced"
    assert len({tuple(t) for t in (tokens, *others)}) == 3, "an adapter changes nothing: blind"
    same(engine.generate(prompt, lora=first), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    same(engine.generate(prompt), others[1], hit(len(prompt)))
    yard.forget(agent, engine)
    return "two adapters, one of them under the other's name, and none"


@case("other-weights-same-name", "a model with the same name and other weights has its own pool")
def other_weights(yard: Yard) -> str:
    agent, engine = yard.main, yard.first
    prompt = yard.prompt(330)
    tokens = yard.stored(agent, engine, prompt).tokens
    weights = yard.model / "model.safetensors"
    before = os.stat(weights)
    model.write_model(yard.model, seed=2)
    # What an upload or an unpacked archive may look like: same size, same time.
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    try:
        other = yard.engine("other", agent, **LORA)
    finally:
        model.write_model(yard.model, seed=1)
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    # An engine that empties its cache discards the stores in flight: wait for them.
    out = yard.stored(agent, other, prompt)
    assert out.cached == 0, f"{out.cached} tokens of other weights were cached"
    assert out.tokens != tokens, "the weights make no difference: the case shows nothing"
    same(other.generate(prompt), out.tokens, hit(len(prompt)))
    yard.stop(other)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    yard.forget(agent, engine)
    return "missed, then warm with its own"
