"""Case: an engine that has nothing to do does nothing."""

from __future__ import annotations

import time

from e2e.case import Yard, case
from e2e.engineproc import EngineProcess

IDLE_SECONDS = 10.0


@case("idle-engine", "an engine without work is not kept stepping by the connector")
def idle_engine(yard: Yard) -> str:
    engine = yard.first
    engine.generate(yard.prompt(300))
    engines = yard.running()
    before = _steady(engines)
    time.sleep(IDLE_SECONDS)  # the stretch of time that is measured
    steps = sum(_steps(engines)) - sum(before)
    assert steps == 0, f"{steps} steps in {IDLE_SECONDS} s without a request"
    return f"0 steps of {len(engines)} engines in {IDLE_SECONDS:.0f} s"


def _steps(engines: list[EngineProcess]) -> list[int]:
    return [c.steps for e in engines for c in e.counts()]


def _steady(engines: list[EngineProcess]) -> list[int]:
    """Steps when none has come for half a second: what was stored last may have been settling."""
    deadline = time.monotonic() + 20.0
    seen, since = _steps(engines), time.monotonic()
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline, "the engines do not come to rest within 20 s"
        time.sleep(0.01)
        if (now := _steps(engines)) != seen:
            seen, since = now, time.monotonic()
    return seen
