"""Cases of hybrid models with speculative decoding: drafts write KV that vLLM then rejects."""

from __future__ import annotations

from typing import Any

from e2e.cases_reload import same
from e2e.engineproc import EngineProcess
from e2e.shapes import CHUNKS, GEMMA, GPT_OSS, HybridBed, each_shape

_DRAFTS = 3
_OUTPUT = 100
_PROMPTS = 8  # a model may answer a prompt just as its n-grams say


@each_shape("speculative", "refused drafts change no stored block", (GEMMA, GPT_OSS, CHUNKS))
def speculative(h: HybridBed) -> str:
    """With n-grams the engine shares its blocks with engines without drafts."""
    ngrams = {"method": "ngram", "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    engine = _start(h, "speculative", ngrams)
    for _ in range(_PROMPTS):
        prompt = h.bed.prompt(12) * 25  # each n-gram has come before, so that vLLM has drafts
        reference = h.bed.computed(h.engine, prompt, _OUTPUT)
        refused = _reload(h, engine, prompt, reference)
        if refused:
            break
    else:
        raise AssertionError(f"blind: vLLM has refused no draft of {_PROMPTS} prompts")
    h.engine.reset_cache()
    same(h.engine.generate(prompt, _OUTPUT), reference, h.shape.cached(len(prompt)))
    following = prompt + reference + h.bed.prompt(20)
    reference = h.bed.computed(h.engine, following)
    want = (len(prompt) + _OUTPUT - 1) // h.shape.align * h.shape.align
    engine.reset_cache()
    same(engine.generate(following), reference, want)
    h.bed.reset_cache(h.agent, engine)
    h.bed.reset_cache(h.agent, h.engine)
    h.bed.settled(h.agent)
    h.bed.stop(engine)
    return f"{refused} refused drafts, {want} tokens of the next turn loaded"


def _start(h: HybridBed, name: str, speculative_config: dict[str, Any]) -> EngineProcess:
    config = {"num_speculative_tokens": _DRAFTS, **speculative_config}
    return h.start(name, speculative_config=config)


def _reload(h: HybridBed, engine: EngineProcess, prompt: list[int], reference: list[int]) -> int:
    """Stores a prompt and its answer, loads the prompt. Returns the number of refused drafts."""
    same(engine.generate(prompt, _OUTPUT), reference, 0)
    h.quiet()
    engine.reset_cache()
    drafts = engine.metrics("vllm:spec_decode_num_")
    refused = int(drafts["draft_tokens_total"] - drafts["accepted_tokens_total"])
    same(engine.generate(prompt, _OUTPUT), reference, h.shape.cached(len(prompt)))
    h.bed.reset_cache(h.agent, engine)
    return refused
