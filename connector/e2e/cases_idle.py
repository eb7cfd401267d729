"""Case: an idle engine takes no step."""

from __future__ import annotations

import time

from e2e.case import SharedTestBed
from e2e.engineproc import EngineProcess
from e2e.runner import case

IDLE_SECONDS = 10.0


@case("idle-engine", "the connector does not keep an engine without work stepping")
def idle_engine(bed: SharedTestBed) -> str:
    engine = bed.first
    engine.generate(bed.prompt(300))
    engines = bed.running()
    before = _steady(engines)
    time.sleep(IDLE_SECONDS)  # the measured time
    steps = sum(_steps(engines)) - sum(before)
    assert steps == 0, f"{steps} steps in {IDLE_SECONDS} s without a request"
    return f"0 steps of {len(engines)} engines in {IDLE_SECONDS:.0f} s"


def _steps(engines: list[EngineProcess]) -> list[int]:
    return [c.steps for e in engines for c in e.counts()]


def _steady(engines: list[EngineProcess]) -> list[int]:
    """The steps of each rank after half a second without a step, when all stores have settled."""
    deadline = time.monotonic() + 20.0
    seen, since = _steps(engines), time.monotonic()
    while time.monotonic() - since < 0.5:
        assert time.monotonic() < deadline, "the engines still step after 20 s"
        time.sleep(0.01)
        if (now := _steps(engines)) != seen:
            seen, since = now, time.monotonic()
    return seen
