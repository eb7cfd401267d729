"""Case: an idle engine takes no step."""

from __future__ import annotations

import time

from e2e.case import SharedTestBed
from e2e.engineproc import EngineProcess
from e2e.runner import case
from tests.agentproc import wait_until

IDLE_SECONDS = 10.0


@case("idle-engine", "the connector does not keep an engine without work stepping")
def idle_engine(bed: SharedTestBed) -> str:
    engine = bed.first
    engine.generate(bed.prompt(300))
    engines = bed.running()
    wait_until("no engine has a step to take", lambda: not _sum(engines, "busy"), 60.0)
    before = _sum(engines, "steps")
    time.sleep(IDLE_SECONDS)  # the measured time
    steps = _sum(engines, "steps") - before
    assert steps == 0, f"{steps} steps in {IDLE_SECONDS} s without a request"
    return f"0 steps of {len(engines)} engines in {IDLE_SECONDS:.0f} s"


def _sum(engines: list[EngineProcess], name: str) -> int:
    """The sum of a counter over all ranks."""
    return sum(getattr(counts, name) for engine in engines for counts in engine.counts())
