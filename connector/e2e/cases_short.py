"""Cases of short loads: loads within the step that computes the rest of the prompt."""

from __future__ import annotations

from e2e import faults
from e2e.case import SharedTestBed
from e2e.cases_faults import fail_one
from e2e.cases_reload import hit, resident, same
from e2e.engineproc import EngineProcess
from e2e.runner import case
from tests.agentproc import wait_until


def _engine(bed: SharedTestBed, name: str, policy: str = "recompute") -> EngineProcess:
    return bed.engine(
        name,
        bed.main,
        policy=policy,
        connector="e2e.measured:ShortConnector",
        scheduler_cls="e2e.probe.PlainScheduler",
    )


def _short_loads(engine: EngineProcess, count: int) -> None:
    """Waits until vLLM's metrics have `count` short loads."""
    wait_until(
        f"{count} short loads", lambda: engine.metrics()["short_loads_total"] == count, 10.0
    )


@case("short-loads", "loads within a step bring the right tokens, and a failed one is computed")
def short_loads(bed: SharedTestBed) -> str:
    agent = bed.main
    engine = _engine(bed, "short")
    lengths = (330, 64, 32, 950)
    prompts = [bed.prompt(n) for n in lengths]
    answers = [bed.stored(agent, engine, prompt).tokens for prompt in prompts]
    for prompt, tokens in zip(prompts, answers, strict=True):
        # vLLM has to compute a token in the step.
        same(engine.generate(prompt), tokens, min(hit(len(prompt)), len(prompt) - 1))
    engine.reset_cache()
    running = [engine.begin(prompt) for prompt in prompts]
    for request, tokens in zip(running, answers, strict=True):
        assert request.output().tokens == tokens, "requests side by side"
    _short_loads(engine, 2 * len(prompts))
    _failing(bed, engine, prompts[3], answers[3])
    bed.stop(engine)
    return f"{2 * len(prompts)} loads within steps, then a failed one"


def _failing(
    bed: SharedTestBed, engine: EngineProcess, prompt: list[int], tokens: list[int]
) -> None:
    """Another request has the same prompt, which takes several steps to compute."""
    bed.reset_cache(bed.main, engine)
    before = engine.failed_loads()
    with faults.reassigned(faults.host_location(resident(bed.main, prompt)[0])):
        both = [engine.begin(prompt), engine.begin(prompt)]
        for request in both:
            assert request.output().tokens == tokens, "tokens after a failed load"
    engine.failed_loads(before + 1)
    # vLLM's own cache has the computed blocks, and none of the failed load.
    assert engine.generate(prompt).tokens == tokens, "tokens of vLLM's own cache"
    bed.reset_cache(bed.main, engine)
    # After two failures the connector withholds hits for a second.
    assert engine.generate(prompt).tokens == tokens, "tokens after a reset"
    bed.reset_cache(bed.main, engine)


@case("short-load-fails-policy-fail", "under `fail` a failed short load ends its request alone")
def short_load_fails(bed: SharedTestBed) -> str:
    agent = bed.main
    engine = _engine(bed, "short-strict", policy="fail")
    prompt, tokens = fail_one(bed, engine)
    bed.reset_cache(agent, engine)
    same(engine.generate(prompt), tokens, hit(len(prompt)))
    _short_loads(engine, 3)
    bed.reset_cache(agent, engine)
    bed.stop(engine)
    return "one request ended with an error, the next one was loaded"
