"""The scheduler side with a simple model of the agent, in random order.

The engine has its own block table. Workers copy at any time. The agent answers late, refuses, dies
and restarts. BLOCKYARD_MODEL_STEPS sets the number of steps, BLOCKYARD_MODEL_SEED the random seed.
"""

from __future__ import annotations

import logging
import os
import unittest
from collections import Counter
from unittest import mock

from blockyard import attachment, connection, lookups, packer, stores
from tests.groupworld import GroupWorld
from tests.schedworld import World

STEPS = int(os.environ.get("BLOCKYARD_MODEL_STEPS", "150000"))
SEED = int(os.environ.get("BLOCKYARD_MODEL_SEED", "1"))


class Model(unittest.TestCase):
    def setUp(self) -> None:
        logging.disable(logging.CRITICAL)
        self.addCleanup(logging.disable, logging.NOTSET)

    world: type[World] = World

    def play(self, seed: int, steps: int, faults: float, fullness: float) -> World:
        world = self.world(seed)
        world.agent.faults, world.agent.fullness = faults, fullness
        with (
            mock.patch.object(attachment, "_now", world.now),
            mock.patch.object(connection, "_now", world.now),
            mock.patch.object(lookups, "_now", world.now),
            mock.patch.object(packer, "_now", world.now),
            mock.patch.object(stores, "_now", world.now),
            mock.patch("blockyard.trust._now", world.now),
            mock.patch("blockyard.fits._now", world.now),
            mock.patch("blockyard.fits._BLOCKS", 3),
            mock.patch("blockyard.lookups.INLINE_TOKENS", 6),
            mock.patch("blockyard.packer.SLICE_TOKENS", 4),
            mock.patch("blockyard.loads._BLOCKS", 2),
            mock.patch("blockyard.lookups._BLOCKS", 3),
            mock.patch("blockyard.stores._BLOCKS", 3),
            mock.patch("blockyard.packer._FULL_SECONDS", -1.0),
        ):
            for step in range(steps):
                try:
                    world.random_step()
                except Exception as err:
                    raise AssertionError(f"seed {seed}, step {step}: {err}") from err
            world.settle_down()
            self.check_end(world, seed)
        return world

    def check_end(self, world: World, seed: int) -> None:
        with self.subTest(seed=seed):
            self.assertFalse(world.session.busy(), "busy() does not end")
            self.assertEqual(+world.blocks.refs, Counter(), "references are left")
            self.assertEqual(world.session.stats()["held_blocks"], 0)
            for link in world.agent.links:
                if link.session is not None and not link.session.bye and not link.closed:
                    for r in link.session.all():
                        self.assertFalse(r.pins, "pins are left")
                        self.assertFalse(r.grants, "grants are left")
                    self.assertFalse(link.session.requests, "requests are left open")

    def total(self, faults: float, fullness: float, seeds: int) -> Counter[str]:
        total: Counter[str] = Counter()
        for seed in range(SEED, SEED + seeds):
            world = self.play(seed, max(1, STEPS // seeds), faults, fullness)
            total += world.seen
            total["commits"] += world.agent.commits
            total["stored"] += world.session.stats()["stored_blocks"]
            total["resumed"] += world.session.stats()["resumed_blocks"]
        return total

    def test_nothing_is_lost_or_done_twice(self) -> None:
        """The agent dies and restarts, but answers every frame."""
        total = self.total(faults=0.0, fullness=0.0, seeds=20)
        for what in ("load", "loaded", "commits", "resumed", "died", "drained", "reset"):
            self.assertGreater(total[what], 0, f"the run had no {what}: {total}")

    def test_refusals_and_a_full_socket_cost_hits_alone(self) -> None:
        """The agent refuses frames at random, and the socket is full at random."""
        total = self.total(faults=0.03, fullness=0.03, seeds=20)
        self.assertGreater(total["loaded"], 0)
        self.assertGreater(total["commits"], 0)


class GroupModel(Model):
    """The same with KV groups: hits are prefixes that all groups serve."""

    world = GroupWorld


if __name__ == "__main__":
    unittest.main()
