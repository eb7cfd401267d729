"""The delay of a worker's load: from the scheduler's CLAIM, through the agent, to the mover.

    python -m bench.loadbegin [--loads N]      (from connector/; needs bin/blockyard)

Every load has one block, and no loads overlap. Prints median and 99th percentile in microseconds
for three cases. `alone`: no other thread runs. `engine-like`: another thread mostly runs without
the interpreter's lock, as an engine does. `busy Python`: another thread computes in Python, and
keeps the lock for its switch interval (5 ms).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

from blockyard import frames, packed
from blockyard.mover import Pages
from tests.agentproc import wait_until
from tests.workerrig import GatedMover, Rig

from .mover import Neighbour


class StampingMover(GatedMover):
    """Records the start of every load's copy."""

    def __init__(self, pages: Pages) -> None:
        super().__init__(pages)
        self.begun: list[float] = []

    def _pass(self, kind: str, blocks: Sequence[Sequence[int]]) -> None:
        if kind == "load":
            self.begun.append(time.perf_counter())


def delays(rig: Rig, mover: StampingMover, request: int, loads: int) -> list[float]:
    """Seconds from each CLAIM to its copy."""
    assert rig.scheduler is not None
    out = []
    for _ in range(loads):
        mover.begun.clear()
        blocks = packed.pack_u32([9])
        body = frames.encode_claim(request, 0, 0, 1, rig.scheduler.job(), blocks)
        sent = time.perf_counter()
        rig.scheduler.ask(frames.CLAIM, body)
        wait_until("the copy begins", lambda: mover.begun)
        out.append(mover.begun[0] - sent)
    return sorted(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--loads", type=int, default=500)
    args = parser.parse_args()
    rig = Rig(mover=StampingMover)
    try:
        mover = rig.mover
        assert isinstance(mover, StampingMover)
        tokens = rig.fresh_tokens(1)
        rig.kv.fill(0)
        rig.store(tokens, [0])
        assert rig.scheduler is not None
        request = rig.scheduler.open(tokens)
        rig.scheduler.lookup(request, 1)
        for name, pause in (("alone", None), ("engine-like", 2 << 20), ("busy Python", 0)):
            neighbour = None if pause is None else Neighbour(pause)
            if neighbour is not None:
                neighbour.start()
            times = delays(rig, mover, request, args.loads if pause != 0 else args.loads // 10)
            if neighbour is not None:
                neighbour.stop()
            p50, p99 = times[len(times) // 2], times[int(0.99 * len(times))]
            print(f"{name:<12} p50 {p50 * 1e6:>7.0f} us   p99 {p99 * 1e6:>7.0f} us", flush=True)
    finally:
        rig.close()


if __name__ == "__main__":
    sys.exit(main())
