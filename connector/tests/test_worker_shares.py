"""Several workers of one session with their shares of a block, and deaths of the agent."""

from __future__ import annotations

import ctypes
import random
import unittest

from blockyard import frames, packed
from blockyard.frames import RegisterFields
from blockyard.mover import Pages
from blockyard.packed import Slot
from blockyard.settings import Settings
from blockyard.work import Load, Store, Work
from blockyard.worker import WorkerIdentity, WorkerSession
from tests import planes
from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.workerrig import PAGE, Kv, Rig, RigCase, ScriptedScheduler

BLOCKS = 16


class Rank:
    """A worker with a part of the layers."""

    def __init__(self, agent: AgentProcess, worker_id: int, layers: int, offset: int) -> None:
        self.kv = Kv(BLOCKS, layers)
        identity = WorkerIdentity(worker_id, 0, "test 1")
        self.session = WorkerSession(Settings(socket=agent.socket), identity)
        self.session.start(
            RegisterFields(BLOCKS, layers * PAGE, offset), self.kv.pages(share_offset=offset)
        )

    def copied(self, job: int) -> bool:
        done = self.session.done()
        return done is not None and done.jobs == {job: [1, 0]}


@planes.both
@needs_agent
class Shares(unittest.TestCase):
    def test_each_rank_copies_its_share_and_they_make_up_the_block(self) -> None:
        with AgentProcess() as agent:
            worker_id = 77
            scheduler = ScriptedScheduler(agent, worker_id)
            self.addCleanup(scheduler.close)
            ranks = [Rank(agent, worker_id, 2, 0), Rank(agent, worker_id, 1, 2 * PAGE)]
            for rank in ranks:
                self.addCleanup(rank.session.close)
                wait_until("a worker joins", lambda rank=rank: rank.session.joined)
            data = [[rank.kv.fill(block) for block in range(2)] for rank in ranks]
            request = scheduler.open(range(8))
            slots = scheduler.grant(request, 2)
            store = Store(1, packed.pack_slots(slots), packed.pack_u32([0, 1]))
            for rank in ranks:
                rank.session.begin(Work(stores=[store]))
                wait_until("the store", lambda rank=rank: rank.copied(1))
            scheduler.commit(request, slots)
            for n, slot in enumerate(slots):
                address = scheduler.extents.address(slot.extent, slot.index)
                self.assertEqual(ctypes.string_at(address, 3 * PAGE), data[0][n] + data[1][n])
            request = scheduler.open(range(8))
            slots = scheduler.lookup(request, 2)
            blocks = packed.pack_u32([9, 8])
            claim = frames.encode_claim(request, 0, 0, 2, 2, blocks)
            self.assertEqual(scheduler.ask(frames.CLAIM, claim).body["workers"], 2)
            load = Load(2, "r", packed.pack_slots(slots), blocks)
            for rank, want in zip(ranks, data):
                rank.session.begin(Work(loads=[load]))
                wait_until("the load", lambda rank=rank: rank.copied(2))
                self.assertEqual(rank.session.finished_loads(), ({"r"}, set()))
                self.assertEqual([rank.kv.read(9), rank.kv.read(8)], want)

    def test_what_is_registered_must_be_what_the_pages_have(self) -> None:
        kv = Kv(BLOCKS)
        session = WorkerSession(Settings(socket="/nowhere"), WorkerIdentity(1, 0, "test 1"))
        for register in (
            RegisterFields(BLOCKS, PAGE),
            RegisterFields(BLOCKS, 3 * PAGE, PAGE),
            RegisterFields(BLOCKS + 1, 3 * PAGE),
        ):
            with self.assertRaises(ValueError):
                session.start(register, kv.pages())
        session.close()

    def test_several_groups_are_loaded_when_the_engine_has_named_their_blocks(self) -> None:
        rig = Rig()
        self.addCleanup(rig.close)
        scheduler = rig.scheduler
        tokens = rig.fresh_tokens(1)
        data = rig.kv.fill(5)
        rig.store(tokens, [5])
        kv = Kv(BLOCKS)
        described = [
            (ctypes.addressof(layer), PAGE, PAGE, n * PAGE, int(n > 0), 2**63)
            for n, layer in enumerate(kv.layers)
        ]
        identity = WorkerIdentity(rig.worker_id, 0, "test 1")
        session = WorkerSession(Settings(socket=rig.agent.socket), identity)
        self.addCleanup(session.close)
        session.start(RegisterFields(BLOCKS, 3 * PAGE), Pages(described, BLOCKS))
        wait_until("the second worker joins", lambda: session.joined)
        request = scheduler.open(tokens)
        slots = scheduler.lookup(request, 1)
        claim = frames.encode_claim(request, 0, 0, 1, 9, packed.pack_u32([3]))
        self.assertEqual(scheduler.ask(frames.CLAIM, claim).body["workers"], 2)
        load = Load(9, "r", packed.pack_slots(slots), packed.pack_u32([3, 4]))
        session.begin(Work(loads=[load]))
        wait_until("the load", lambda: session.finished_loads() == ({"r"}, set()))
        self.assertEqual(kv.read(3)[:PAGE], data[:PAGE])
        self.assertEqual(kv.read(4)[PAGE:], data[PAGE:])
        self.assertEqual(kv.read(3)[PAGE:], bytes(2 * PAGE), "the other group's block")


@planes.both
class Deaths(RigCase):
    def test_no_load_of_pinned_slots_fails_or_is_wrong_because_the_agent_dies(self) -> None:
        rng = random.Random(8)
        rig = self.rig
        prompts = [self.stored(4) for _ in range(6)]
        wait_until("all is sealed", lambda: rig.agent.stats()["quiet"])
        loaded = 0
        for turn in range(8):
            loaded += self.turn(rig, rng, turn, prompts)
            self.assertTrue(rig.session.wait(10))
            rig.agent.restart()
            rig.start_scheduler()
        self.assertGreaterEqual(loaded, 16, "two in each turn at least")

    def turn(
        self, rig: Rig, rng: random.Random, turn: int, prompts: list[tuple[list[int], list[bytes]]]
    ) -> int:
        """Runs loads, and kills the agent during the last ones. Returns the number of loads."""
        scheduler = rig.scheduler
        death = rng.randrange(1, 6)
        begun: list[tuple[str, list[int], list[bytes]]] = []
        for n, (tokens, data) in enumerate(prompts):
            blocks = [8 + 4 * n + i for i in range(4)]
            request = scheduler.open(tokens)
            slots: list[Slot] = []

            def found() -> bool:  # a new agent verifies the blocks of the dead agent first
                slots[:] = scheduler.lookup(request, 4)
                return len(slots) == 4

            wait_until("the blocks are resident", found)
            rid, job = f"{turn}.{n}", scheduler.job()
            if rng.random() < 0.5:
                body = frames.encode_claim(request, 0, 0, 4, job, packed.pack_u32(blocks))
                scheduler.link.call(frames.CLAIM, body)
            rig.begin_load(job, rid, slots, blocks)
            begun.append((rid, blocks, data))
            if n == death:
                rig.agent.kill9()
                break
        for rid, blocks, data in begun:
            self.assertTrue(rig.wait_request(rid))
            for block, want in zip(blocks, data):
                self.assertTrue(rig.kv.read(block) == want, f"block {block} of {rid}")
        return len(begun)


if __name__ == "__main__":
    unittest.main()
