"""The cost of the scheduler side's calls for the engine, with a real agent.

The bounds are five times the figures of an idle machine. They catch work that grows with the length
of a prompt or request. BLOCKYARD_COSTS=1 prints the measured figures.
"""

from __future__ import annotations

import os
import time
import unittest
from collections.abc import Callable

from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.schedrig import Rig

SLACK = 5.0


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))] * 1e6


def measure(call: Callable[[int], object], n: int) -> list[float]:
    clock = time.perf_counter
    times = []
    for i in range(n):
        start = clock()
        call(i)
        times.append(clock() - start)
    return times


@needs_agent
class Costs(unittest.TestCase):
    def setUp(self) -> None:
        self.agent = AgentProcess()
        self.addCleanup(self.agent.close)
        self.rig = Rig(self.agent)
        self.addCleanup(self.rig.close)
        self.rig.connect()

    def check(self, what: str, times: list[float], want_us: float) -> None:
        got = percentile(times, 0.5)  # the median ignores other load on the machine
        if os.environ.get("BLOCKYARD_COSTS"):
            half, high = percentile(times, 0.5), percentile(times, 0.99)
            print(f"{what}: p50 {half:.1f} us, p99 {high:.1f} us")
        self.assertLess(got, SLACK * want_us, f"{what}: {got:.1f} us")

    def test_steps_with_nothing_to_do(self) -> None:
        session = self.rig.session
        self.rig.store("a", list(range(100, 140)))
        wait_until("COMMIT is answered", lambda: self.stored(10))
        step = lambda _: (session.take_work(), session.settle(None), session.busy())  # noqa: E731
        self.check("an empty step", measure(step, 5000), 2.0)

    def stored(self, blocks: int) -> bool:
        self.rig.session.take_work()
        return self.rig.session.stats()["stored_blocks"] >= blocks

    def test_hooks_of_short_and_long_prompts(self) -> None:
        """A hook of a prompt of 100,000 tokens costs as much as one of 1,000 tokens."""
        session = self.rig.session
        for size, n in ((1000, 300), (100_000, 10)):
            prompts = [[(i + k) % 50000 for k in range(size)] for i in range(n)]
            opened = measure(lambda i: session.open(f"{size}.{i}", 0, prompts[i]), n)
            asked: list[float] = []
            for i in range(n):
                hit = None
                while hit is None:
                    asked += measure(lambda _: session.hit(f"{size}.{i}", 0, 0), 1)
                    hit = session.hit(f"{size}.{i}", 0, 0)
                    time.sleep(0.001)  # like a waiting engine
            for i in range(n):
                session.finished(f"{size}.{i}")
            self.check(f"open {size} tokens", opened, 50)
            self.check(f"hit {size} tokens", asked, 50)

    def test_offer_of_a_decoded_block(self) -> None:
        """Another block costs the same at the start and at the end of a long request."""
        session = self.rig.session
        tokens = list(range(1000))
        session.open("a", 0, tokens)
        self.rig.hit("a")
        ids = self.rig.fill(tokens)
        while not session.computed("a", 0, len(ids), [ids]):
            self.rig.step()
        self.rig.drain()
        times = []
        for i in range(500):
            tokens += [i, i, i, i]
            block = self.rig.device_blocks(1)
            self.rig.worker.device[block[0]] = bytes(128)
            ids += block
            times += measure(lambda _: session.computed("a", 0, len(ids), [ids]), 1)
            self.rig.drain()
        session.finished("a")
        self.check("computed", times, 50)


if __name__ == "__main__":
    unittest.main()
