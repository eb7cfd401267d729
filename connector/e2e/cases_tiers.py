"""Cases of hybrid models that compare: the agent with vLLM's own host tier, metrics with copies."""

from __future__ import annotations

from typing import NamedTuple

from e2e import faults
from e2e.cases_reload import same
from e2e.engineproc import EngineProcess, Output
from e2e.shapes import QWEN, HybridBed, each_shape
from tests.agentproc import wait_until

_NATIVE = "vllm:kv_offload_"
_ANSWER = 100  # tokens of an answer that the next turn repeats


class _Request(NamedTuple):
    """A request of a story. ours, native: cached tokens that the two tiers give the request.

    warm: the engine's own cache has the request before. It is empty otherwise.
    """

    prompt: list[int]
    ours: int
    native: int
    count: int = 8
    warm: bool = False


def _repeats(h: HybridBed) -> list[_Request]:
    """Prompts that come again, and one that goes on."""
    story = []
    for length in h.shape.lengths:
        prompt, cached = h.bed.prompt(length), h.shape.cached(length)
        story += [_Request(prompt, 0, 0), _Request(prompt, cached, cached)]
    longer = story[-1].prompt + h.bed.prompt(40)
    cached = h.shape.cached(h.shape.lengths[-1])
    return [*story, _Request(longer, cached, cached)]


def _branches(h: HybridBed, prompt: list[int]) -> list[_Request]:
    """Prompts that part from a stored prompt.

    Windows and states are kept where a prompt ends, so that the first branch finds nothing. The
    engine's own cache shows vLLM where the second branch parts, and both tiers keep that place.
    """
    head = prompt[: len(prompt) * 3 // 5]
    own = [head + h.bed.prompt(100) for _ in range(3)]
    first, parting = h.shape.cached(len(own[0])), h.shape.cached(len(head) + 1)
    if first > len(head):
        first = 0  # the end of a branch serves no other branch
    whole = h.shape.cached(len(prompt))
    return [
        _Request(own[0], 0, 0),
        _Request(prompt, whole, whole),
        _Request(own[1], first, first, warm=True),
        _Request(own[2], parting, parting),
    ]


def _play(h: HybridBed, engine: EngineProcess, story: list[_Request]) -> list[Output]:
    """The answers of an engine to the requests, one after the other."""
    answers = []
    for number, request in enumerate(story):
        answers.append(engine.generate(request.prompt, request.count))
        if number + 1 < len(story) and story[number + 1].warm:
            continue
        if engine is h.engine:
            h.quiet()
        engine.reset_cache()
    return answers


def _compare(h: HybridBed, native: EngineProcess, story: list[_Request]) -> list[Output]:
    """Plays a story on both engines and compares. Returns our answers."""
    pairs = zip(story, _play(h, h.engine, story), _play(h, native, story), strict=True)
    answers = []
    for number, (request, ours, theirs) in enumerate(pairs):
        reference = h.bed.computed(h.engine, request.prompt, request.count)
        found, want = (ours.cached, theirs.cached), (request.ours, request.native)
        assert found == want, f"request {number}: {found} tokens cached (ours, vLLM's), want {want}"
        assert ours.tokens == reference, f"request {number}: {ours.tokens}, want {reference}"
        assert theirs.tokens == reference, f"blind, request {number}: vLLM's {theirs.tokens}"
        answers.append(ours)
    h.bed.reset_cache(h.agent, h.engine)
    return answers


@each_shape("vllm-tier", "prompts have as many cached tokens as with vLLM's own host tier, or more")
def vllm_tier(h: HybridBed) -> str:
    native = h.native()
    before = h.engine.metrics()["load_bytes_total"]
    repeats = _repeats(h)
    _compare(h, native, repeats)

    def copied() -> tuple[float, float]:
        ours = h.engine.metrics()["load_bytes_total"] - before
        return ours, native.metrics(_NATIVE)["load_bytes_total"]

    def agree() -> bool:
        ours, theirs = copied()
        # A state is smaller than its slot. vLLM counts the state, and our metric the slot.
        return 0 < theirs <= ours if h.shape is QWEN else theirs == ours

    try:
        wait_until("both tiers have copied as many bytes", agree, 10.0)
    except AssertionError as err:
        raise AssertionError(f"{err}: {copied()}") from None
    both = [int(size) for size in copied()]
    _compare(h, native, _branches(h, repeats[-2].prompt))
    # By default vLLM's tier stores prompts alone. The agent stores the last window of an answer
    # too, which serves the next turn. A state within an answer is stored by neither.
    first = h.bed.prompt(h.shape.lengths[-1] // 2)
    (answer,) = _compare(h, native, [_Request(first, 0, 0, _ANSWER)])
    turn = first + answer.tokens + h.bed.prompt(20)
    ours, theirs = h.shape.cached(len(first) + _ANSWER), h.shape.cached(len(first))
    _compare(h, native, [_Request(turn, ours, theirs)])
    h.bed.stop(native)
    h.bed.settled(h.agent)
    return f"{both} bytes; next turn {ours} tokens, vLLM's {theirs}"


@each_shape("own-metrics", "vLLM's metrics and log show the loads, stores and bytes of all groups")
def own_metrics(h: HybridBed) -> str:
    h.engine.generate(h.bed.prompt(8))  # its steps bring what earlier requests left uncounted
    before = h.engine.metrics()
    length = h.shape.lengths[-1]
    prompt = h.bed.prompt(length)
    out, blocks = h.run(prompt)
    same(h.engine.generate(prompt), out.tokens, h.shape.cached(length))
    sparse = (h.shape.groups - 1) * h.shape.needs
    loaded = h.shape.cached(length) // h.shape.align + sparse
    size = faults.slot_bytes(h.agent)
    want = {
        "loads_total": 1,
        "loaded_blocks_total": loaded,
        "load_bytes_total": loaded * size,
        "stored_blocks_total": len(blocks),
        "store_bytes_total": len(blocks) * size,
        "failed_loads_total": 0,
        "declined_hits_total": 0,
    }

    def grown() -> dict[str, float]:
        now = h.engine.metrics()
        return {name: now[name] - before[name] for name in want}

    try:
        wait_until("vLLM's metrics have the load", lambda: grown() == want, 10.0)
    except AssertionError as err:
        raise AssertionError(f"{err}: {grown()}, want {want}") from None
    assert h.engine.metrics()["connected"] == 1, "vLLM's metrics have no session"
    logged = h.engine.logged(rf"KV Transfer metrics: .*Blockyard loaded_blocks={loaded}\b")
    assert logged, "vLLM has not logged the load"
    h.bed.reset_cache(h.agent, h.engine)
    return f"{loaded} loaded blocks, {loaded * size} bytes"
