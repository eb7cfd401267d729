"""The work of the scheduler side's calls in the engine's thread, with a real agent.

The bounds are about twice today's figures. They catch work that grows with the length of a prompt
or request. The unit is Python instructions, which take about 10 ns each.
"""

from __future__ import annotations

import statistics
import time
import unittest
from collections.abc import Callable

from blockyard.packer import INLINE_TOKENS
from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.effort import Items, instructions
from tests.schedrig import Rig


@needs_agent
class Costs(unittest.TestCase):
    def setUp(self) -> None:
        self.agent = AgentProcess()
        self.addCleanup(self.agent.close)
        self.rig = Rig(self.agent)
        self.addCleanup(self.rig.close)
        self.rig.connect()

    def check(self, what: str, calls: list[Callable[[], object]], limit: int) -> None:
        """The median call: a few calls also take frames that have just arrived."""
        got = statistics.median(instructions(call) for call in calls)
        self.assertLessEqual(got, limit, what)

    def test_steps_with_nothing_to_do(self) -> None:
        session = self.rig.session
        self.rig.store("a", list(range(100, 140)))
        wait_until("COMMIT is answered", lambda: self.stored(10))
        step = lambda: (session.take_work(), session.settle(None), session.busy())  # noqa: E731
        self.check("an empty step", [step] * 99, 150)

    def stored(self, blocks: int) -> bool:
        self.rig.session.take_work()
        return self.rig.session.stats()["stored_blocks"] >= blocks

    def test_hooks_of_short_and_long_prompts(self) -> None:
        """A hook of a prompt of 100,000 tokens costs as much as one of 1,000 tokens."""
        session = self.rig.session
        for size, n in ((1000, 50), (100_000, 10)):
            prompts = [Items((i + k) % 50000 for k in range(size)) for i in range(n)]
            names = [f"{size}.{i}" for i in range(n)]
            opens = [
                lambda name=name, prompt=prompt: session.open(name, 0, prompt)
                for name, prompt in zip(names, prompts)
            ]
            self.check(f"open {size} tokens", opens, 2500)
            hits = [lambda name=name: session.hit(name, 0, 0, spin=0) for name in names]
            self.check(f"hit {size} tokens", hits, 2500)
            for name, prompt in zip(names, prompts):
                while session.hit(name, 0, 0) is None:
                    time.sleep(0.001)  # like a waiting engine
                session.finished(name)
                self.assertLessEqual(prompt.read, INLINE_TOKENS)

    def test_a_hook_that_may_rest_has_the_answer_in_its_first_call(self) -> None:
        """Also for a prompt in the packer, which needs Python's lock."""
        session = self.rig.session
        for size in (200, 4096):
            session.open(f"{size}", 0, [(i + size) % 50000 for i in range(size)])
            self.assertIsNotNone(session.hit(f"{size}", 0, 0, rest=60.0))
            session.finished(f"{size}")

    def test_offer_of_a_decoded_block(self) -> None:
        """Another block costs the same at the start and at the end of a long request."""
        session = self.rig.session
        tokens = Items(range(1000))
        session.open("a", 0, tokens)
        self.rig.hit("a")
        ids = Items(self.rig.fill(tokens))
        while not session.computed("a", 0, len(ids), [ids]):
            self.rig.step()
        self.rig.drain()
        offers, read = [], 0
        for i in range(100):
            tokens += [i, i, i, i]
            block = self.rig.device_blocks(1)
            self.rig.worker.device[block[0]] = bytes(128)
            ids += block
            before = tokens.read + ids.read
            offers.append(instructions(lambda: session.computed("a", 0, len(ids), [ids])))
            read = max(read, tokens.read + ids.read - before)
            self.rig.drain()
        session.finished("a")
        self.assertLessEqual(statistics.median(offers), 2500)
        self.assertLessEqual(read, 8)


if __name__ == "__main__":
    unittest.main()
