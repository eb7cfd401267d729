"""Cases of isolation: equal tokens with different KV share no blocks."""

from __future__ import annotations

import os

from e2e import model
from e2e.case import LORA, SharedTestBed
from e2e.cases_reload import hit, same
from e2e.runner import case


@case("salt-isolation", "only requests with the same cache salt share blocks")
def salt_isolation(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt, salt="tenant-one").tokens
    for salt in ("tenant-two", None):
        same(engine.generate(prompt, salt=salt), tokens, 0)
        bed.reset_cache(agent, engine)
    same(engine.generate(prompt, salt="tenant-one"), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    return "two salts and none"


@case("lora-isolation", "only requests with the same LoRA adapter share blocks")
def lora_isolation(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(330)
    first, second = (
        [name, number + 1, str(path)] for number, (name, path) in enumerate(bed.adapters.items())
    )
    # The second adapter's files under the first adapter's name.
    replaced = [first[0], 3, second[2]]
    tokens = bed.stored(agent, engine, prompt, lora=first).tokens
    others = []
    for lora in (second, None):
        out = bed.stored(agent, engine, prompt, lora=lora)
        assert out.cached == 0, f"{lora}: {out.cached} tokens of another adapter were cached"
        others.append(out.tokens)
    out = engine.generate(prompt, lora=replaced)
    bed.reset_cache(agent, engine)
    # A hit of the second adapter's blocks is right too, because the files are the same.
    assert out.cached in (0, hit(len(prompt))), f"{out.cached} tokens were cached"
    assert out.tokens == others[0], "the tokens are not those of the second adapter's files"
    assert len({tuple(t) for t in (tokens, *others)}) == 3, "blind: adapters give equal tokens"
    same(engine.generate(prompt, lora=first), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    same(engine.generate(prompt), others[1], hit(len(prompt)))
    bed.reset_cache(agent, engine)
    return "two adapters, one also under the other's name, and none"


@case("other-weights-same-name", "a model with the same name and other weights has its own pool")
def other_weights(bed: SharedTestBed) -> str:
    agent, engine = bed.main, bed.first
    prompt = bed.prompt(330)
    tokens = bed.stored(agent, engine, prompt).tokens
    weights = bed.model / "model.safetensors"
    before = os.stat(weights)
    model.write_model(bed.model, seed=2)
    # Same size and same time, as after an upload or from an archive.
    os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    try:
        other = bed.engine("other", agent, **LORA)
    finally:
        model.write_model(bed.model, seed=1)
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
    # A cache reset discards stores in flight, so stored() waits for them.
    out = bed.stored(agent, other, prompt)
    assert out.cached == 0, f"{out.cached} tokens of other weights were cached"
    assert out.tokens != tokens, "blind: other weights give equal tokens"
    same(other.generate(prompt), out.tokens, hit(len(prompt)))
    bed.stop(other)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    bed.reset_cache(agent, engine)
    return "a miss, then a hit of its own blocks"
