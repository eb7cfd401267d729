"""Cases of hybrid models that the connector does not serve: the engine must lose nothing."""

from __future__ import annotations

from typing import Any

from e2e import hybrid_models
from e2e.case import SharedTestBed
from e2e.engineproc import EngineError, EngineProcess
from e2e.runner import case

# Tokens that a repeated prompt finds in vLLM's own cache.
_CACHED = {20: 0, 330: 320, 950: 928}
_REASON = "it is disabled by its settings"


def _start(bed: SharedTestBed, name: str, **settings: Any) -> EngineProcess:
    directory = bed.dir / "model-unserved"
    if not directory.exists():
        hybrid_models.write_sliding(directory, 1)
    # vLLM's CPU build runs no hybrid model that the connector itself does not serve.
    return bed.engine(
        name,
        None,
        extra_config={"socket": bed.main.socket, "enabled": False, **settings},
        model=str(directory),
        num_gpu_blocks_override=110,
    )


@case("hybrid-inert", "a hybrid model that is not served keeps all of vLLM's own cache")
def hybrid_inert(bed: SharedTestBed) -> str:
    sessions = bed.main.stats()["sessions"]
    engine = _start(bed, "hybrid-inert")
    for tokens, cached in _CACHED.items():
        prompt = bed.prompt(tokens)
        first, again = engine.generate(prompt), engine.generate(prompt)
        assert (first.cached, again.cached) == (0, cached), f"{tokens}: {first}, {again}"
        engine.reset_cache()
        assert engine.generate(prompt) == first, "a reset changed the answer"
    assert bed.main.stats()["sessions"] == sessions, "the connector connected"
    reasons = engine.logged("Blockyard stays off")
    assert len(reasons) == 1 and _REASON in reasons[0], reasons
    bed.stop(engine)
    return f"{list(_CACHED.values())} of {list(_CACHED)} tokens cached"


@case("hybrid-required", "with `require` an engine that cannot be served does not start")
def hybrid_required(bed: SharedTestBed) -> str:
    try:
        _start(bed, "hybrid-required", require=True)
    except EngineError:
        pass  # the log below has the reason
    else:
        raise AssertionError("the engine started")
    (engine,) = [e for e in bed.running() if e.name == "hybrid-required"]
    errors = engine.logged(f"NotServedError: .*{_REASON}")
    assert errors, f"no reason in the log\n{engine.log()}"
    bed.stop(engine, hard=True)
    return errors[0].partition("NotServedError: ")[2]
