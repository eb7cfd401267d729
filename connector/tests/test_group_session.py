"""A session with KV groups and the model of an agent. The test delivers each frame."""

from __future__ import annotations

import unittest
from typing import Any
from unittest import mock

from blockyard import frames
from blockyard.frames import HelloFields
from blockyard.groupsession import GroupSession
from blockyard.handover import HandOver
from blockyard.packed import unpack_u32
from blockyard.settings import Settings
from blockyard.work import Done, Work
from tests.fakelink import SteppedPacker
from tests.groupworld import GROUPS
from tests.schedrig import NAMESPACE
from tests.test_scheduler import Desk
from tests.test_scheduler_faults import CLOCKS

# Groups 0: windows of five tokens, 1: full, both with blocks of two tokens; 2: states of four.
TOKENS = list(range(1, 14))
FITS = 12


class GroupDesk(Desk):
    """A Desk whose session has KV groups."""

    session: GroupSession

    def setUp(self) -> None:
        for module in (*CLOCKS, "fits"):  # the clock stands still
            patch = mock.patch(f"blockyard.{module}._now", lambda: 100.0)
            patch.start()
            self.addCleanup(patch.stop)
        super().setUp()
        self.session.close()
        self.agent.groups = GROUPS
        self.session = self.make_groups()

    def make_groups(self, **settings: Any) -> GroupSession:
        given = Settings(**{"socket": "/fake", "stats": False, **settings})
        with mock.patch("blockyard.scheduler.Packer", SteppedPacker):
            session = GroupSession(given, self.blocks, GROUPS)
        self.packer: SteppedPacker = session._packer  # type: ignore[assignment]
        self.keeper = session._keeper
        namespace = {**NAMESPACE, "groups": GROUPS.as_maps()}
        hello = HelloFields(engine="test", worker_id=1, namespace=namespace)
        with mock.patch.object(self.keeper, "start"):
            session.start(hello)
        self.keeper._hello = hello
        self.connect()
        session.take_work()
        session.mapped(self.mapped())
        return session

    def ask(self, rid: str) -> int:
        """The pages of a hit, once the agent has answered all questions."""
        for _ in range(20):
            self.flow()
            self.packer.pack_one()
            hit = self.session.hit(rid, 0, 0, spin=0)
            if hit is not None:
                return hit.blocks
        raise AssertionError(f"no answer for {rid}")

    def store_groups(self, rid: str, tokens: list[int], prefix: int) -> None:
        """Stores the blocks that a prefix needs, in every group. A block's id is 100 times its
        group plus its number plus one."""
        self.session.open(rid, 0, list(tokens))
        self.ask(rid)
        for group, member in enumerate(GROUPS):
            needs = member.needs(prefix)
            ids = [100 * group + block + 1 for block in needs]
            self.assertTrue(self.session.reserve(ids))
            self.assertTrue(self.session.offer_group(rid, 0, group, needs.start, ids))
        self.flow()
        while self.session.busy():  # a step takes one answer, and a hook settles one store
            self.copy_groups(self.session.take_work(), tokens)
            self.flow()
        self.session.take_work()
        self.session.finished(rid)
        self.flow()
        self.assertFalse(self.blocks.refs)

    def copy_groups(self, work: Work, tokens: list[int]) -> None:
        done = Done()
        for store in work.stores:
            for at, block in enumerate(unpack_u32(store.blocks)):
                slot = int.from_bytes(store.slots[16 * at + 4 : 16 * at + 8], "little")
                end = (block % 100) * GROUPS[store.group].block_size
                key = ("w1", "", "", f"group {store.group}", *tokens[:end])
                self.agent.slots[slot].content = key
            done.add(store.job, True)
        self.session.settle(done)

    def evict(self, group: int, block: int = -1) -> None:
        """Removes a group's longest block, or block number `block`, from the agent."""
        found = [m for m in self.agent.slots if m.key and m.key[3] == f"group {group}"]
        found.sort(key=lambda memory: len(memory.key))
        found[block].state, found[block].key = "free", None

    def pins(self) -> int:
        return sum(memory.pins.total() for memory in self.agent.slots)


class Asking(GroupDesk):
    def test_a_hit_is_a_prefix_that_every_group_serves(self) -> None:
        self.store_groups("a", TOKENS, FITS)
        self.session.open("b", 0, list(TOKENS))
        self.assertEqual(self.flow(), ["OPEN", "FIT"])
        self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
        self.assertEqual(self.flow(), ["LOOKUP"] * 3)
        for local, want in ((0, 6), (4, 2), (0, 6)):
            hit = self.session.hit("b", 0, local, spin=0)
            self.assertEqual((hit.blocks, hit.sources), (want, b"\1" * want))
        self.assertEqual(self.session.hit("b", 0, 6, spin=0).blocks, 0)
        self.assertEqual(self.pins(), sum(len(group.needs(FITS)) for group in GROUPS))
        self.session.finished("b")
        self.flow()
        self.assertEqual(self.pins(), 0)

    def test_the_last_token_is_left_to_the_engine(self) -> None:
        self.store_groups("a", TOKENS, FITS)
        self.session.open("b", 0, TOKENS[:FITS])
        self.flow()
        self.assertEqual(self.hit("b"), 0, "a hit of all tokens")
        self.session.open("short", 0, [1, 2, 3])
        self.assertEqual(self.flow(), ["OPEN"], "no group has so short a block")
        self.assertEqual(self.hit("short"), 0)

    def test_one_missing_group_shortens_the_hit(self) -> None:
        self.store_groups("a", TOKENS, FITS)
        self.store_groups("b", TOKENS, 8)
        for group in (2, 0):
            self.evict(group)
            self.session.open(f"c{group}", 0, list(TOKENS))
            self.assertEqual(self.ask(f"c{group}"), 4, "the prefix of 8 tokens")
        self.evict(1, 0)
        self.session.open("d", 0, list(TOKENS))
        self.assertEqual(self.hit("d"), 0, "full attention needs every block")

    def test_a_block_that_goes_between_fit_and_lookup_is_asked_for_again(self) -> None:
        self.store_groups("a", TOKENS, FITS)
        self.store_groups("b", TOKENS, 8)
        self.session.open("c", 0, list(TOKENS))
        self.flow()
        self.assertIsNone(self.session.hit("c", 0, 0, spin=0))
        self.evict(2)
        self.assertEqual(self.flow(), ["LOOKUP"] * 3)
        self.assertIsNone(self.session.hit("c", 0, 0, spin=0))
        names = self.flow()
        self.assertEqual(names, ["RELEASE"] * 3 + ["FIT"])
        self.assertIsNone(self.session.hit("c", 0, 0, spin=0))
        self.assertEqual(self.hit("c"), 4)
        self.assertEqual(self.pins(), sum(len(group.needs(8)) for group in GROUPS))

    def test_it_gives_up_after_three_fits(self) -> None:
        self.store_groups("a", TOKENS, FITS)
        self.session.open("b", 0, list(TOKENS))
        self.evict(0)
        with mock.patch("tests.fakelink.Open.fit", lambda *_: FITS):
            sent: list[str] = []
            for _ in range(12):
                sent += self.flow()
                hit = self.session.hit("b", 0, 0, spin=0)
                if hit is not None:
                    break
        self.assertEqual(sent.count("FIT"), 3)
        self.assertEqual(hit.blocks, 0)
        self.flow()
        self.assertEqual(self.pins(), 0)

    def test_blocks_on_disk_are_asked_for_with_a_wait(self) -> None:
        self.store_groups("a", TOKENS, FITS)
        self.session.open("b", 0, list(TOKENS))
        self.flow()
        self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
        self.agent.rng.random = lambda: 0.05  # all blocks are still on disk
        self.flow()
        self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
        self.assertEqual({body["wait_ms"] for _, _, body in self.link.sent}, {1000})
        self.assertEqual(self.hit("b"), 6)

    def test_an_old_agent_is_left_alone(self) -> None:
        self.agent.minor, links = 3, len(self.agent.links)
        with self.assertRaisesRegex(Exception, r"protocol 1\.3.* needs 1\.4"):
            self.connect()
        self.assertEqual(len(self.agent.links), links)

    def test_a_long_prompt_is_asked_about_by_the_packer(self) -> None:
        with mock.patch("blockyard.lookups.INLINE_TOKENS", 4):
            self.store_groups("a", TOKENS, FITS)
            self.session.open("b", 0, list(TOKENS))
            self.assertEqual(self.ask("b"), 6)


class Waiting(GroupDesk):
    def test_a_hand_over_ends_with_the_longest_prefix_that_a_hit_can_have(self) -> None:
        now = [0.0]
        for module in ("handover", "lookups", "fits"):
            patch = mock.patch(f"blockyard.{module}._now", lambda: now[0])
            patch.start()
            self.addCleanup(patch.stop)
        self.session.open("b", 0, list(TOKENS), hand_over=HandOver(6, 10.0))
        for _ in range(3):
            now[0] += 0.05
            self.flow()
            self.assertIsNone(self.session.hit("b", 0, 0, spin=0))
        self.store_groups("a", TOKENS, FITS)
        for _ in range(6):
            now[0] += 0.05
            self.flow()
            hit = self.session.hit("b", 0, 0, spin=0)
        self.assertEqual(hit.blocks, 6)
        self.assertEqual((self.count("hand_overs"), self.count("hand_over_missing")), (1, 0))


class Loading(GroupDesk):
    def opened(self) -> None:
        self.store_groups("a", TOKENS, FITS)
        self.session.open("b", 0, list(TOKENS))
        self.flow()
        self.session.hit("b", 0, 0, spin=0)
        self.assertEqual(self.hit("b"), 6)

    def test_each_group_is_a_job_and_a_claim_of_its_own(self) -> None:
        self.opened()
        targets = [(0, 4, [11, 12]), (1, 2, [13, 14, 15, 16]), (2, 2, [17])]
        self.assertTrue(self.session.load_groups("b", 0, targets))
        claims = [body for kind, _, body in self.link.sent if kind == frames.CLAIM]
        self.assertEqual([body.get("group", 0) for body in claims], [0, 1, 2])
        ranges = [(body["first"], body["count"]) for body in claims]
        self.assertEqual(ranges, [(4, 2), (2, 4), (2, 1)])
        self.flow()
        work = self.session.take_work()
        self.assertEqual([load.group for load in work.loads], [0, 1, 2])
        self.assertEqual(unpack_u32(work.loads[1].blocks), [13, 14, 15, 16])
        for load in work.loads:
            self.assertEqual(self.session.stats()["requests"], 1)
            self.session.settle(Done({load.job: [1, 0]}))
        self.flow()
        self.assertEqual(self.pins(), 0, "released after the last group")
        self.assertEqual(self.session.hit("b", 0, 0, spin=0).blocks, 0)

    def test_a_failed_group_fails_the_load(self) -> None:
        self.opened()
        self.session.load_groups("b", 0, [(0, 4, [11, 12]), (2, 2, [17])])
        first, second = self.session.take_work().loads
        self.session.settle(Done({first.job: [0, 1], second.job: [1, 0]}))
        self.flow()
        self.assertEqual((self.count("failed_loads"), self.pins()), (1, 0))

    def test_blocks_outside_of_the_prefix_are_refused(self) -> None:
        self.opened()
        for target in ((0, 3, [1]), (0, 4, [1, 2, 3]), (1, 5, [1, 2]), (2, 1, [1]), (2, 2, [])):
            with self.assertRaises(ValueError):
                self.session.load_groups("b", 0, [target])
        self.assertFalse(self.session.load_groups("unknown", 0, [(0, 4, [1])]))


class Storing(GroupDesk):
    def test_blocks_that_are_not_offered_lose_their_references_and_are_counted(self) -> None:
        self.session.open("a", 0, list(TOKENS))
        self.hit("a")
        self.session.reserve([1, 2])
        self.session.drop([1, 2])
        self.session.reserve([3])
        self.assertFalse(self.session.offer_group("a", 1, 0, 0, [3]), "another generation")
        self.session.reserve([4])
        self.assertFalse(self.session.offer_group("a", 0, 0, 6, [4]), "not all tokens are known")
        self.assertEqual(self.count("tails_lost"), 4)
        self.assertFalse(self.blocks.refs)
        self.assertEqual(self.count("held_blocks"), 0)

    def test_references_are_bounded(self) -> None:
        self.session._stores.limit = 3
        self.assertTrue(self.session.reserve([1, 2]))
        self.assertFalse(self.session.reserve([3, 4]))
        self.assertEqual((self.count("deferred"), self.count("held_blocks")), (1, 2))

    def test_what_is_freed_before_its_copy_is_never_committed(self) -> None:
        self.session.open("a", 0, list(TOKENS))
        self.hit("a")
        self.session.reserve([5, 6])
        self.session.offer_group("a", 0, 0, 4, [5, 6])
        self.flow()
        work = self.session.take_work()
        self.session.yield_blocks()
        self.assertFalse(self.blocks.refs, "vLLM has them back")
        self.session.settle(Done({work.stores[0].job: [1, 0]}))
        self.assertEqual(self.flow(), ["ABORT"])
        self.assertEqual((self.count("dropped_stores"), self.agent.commits), (2, 0))


if __name__ == "__main__":
    unittest.main()
