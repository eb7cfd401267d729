"""WorkerSession with a real agent and a scripted scheduler. The tests compare every byte."""

from __future__ import annotations

import unittest
from unittest import mock

from blockyard import copying, frames, packed
from blockyard.native_plane import NativeCopier
from blockyard.packed import Slot
from blockyard.work import Load, Work
from tests import planes
from tests.agentproc import wait_until
from tests.workerrig import Rig, RigCase


class WorkerCase(RigCase):
    def pinned(self, tokens: list[int], count: int) -> tuple[int, list[Slot]]:
        """Opens a request with these tokens. Returns it and the slots of its blocks.

        Waits until a restarted agent has verified the blocks.
        """
        request = self.scheduler.open(tokens)
        slots: list[Slot] = []

        def found() -> bool:
            slots[:] = self.scheduler.lookup(request, count)
            return len(slots) == count

        wait_until(f"{count} blocks are resident", found)
        return request, slots

    def check(self, blocks: list[int], data: list[bytes]) -> None:
        for block, want in zip(blocks, data, strict=True):
            self.assertTrue(self.rig.kv.read(block) == want, f"block {block}")

    def loads(self) -> int:
        """The mover's calls of load()."""
        return sum(kind == "load" for kind, _ in self.rig.mover.calls)


@planes.both
class Loads(WorkerCase):
    def test_a_load_of_the_agents_puts_every_byte_in_its_place(self) -> None:
        tokens, data = self.stored(8)
        request, slots = self.pinned(tokens, 8)
        targets = [63, 10, 62, 11, 61, 12, 60, 13]
        others = {b: self.rig.kv.read(b) for b in range(64) if b not in targets}
        job = self.scheduler.claim(request, targets)
        wait_until("the copies", lambda: self.loads() == 2)
        self.assertTrue(self.rig.session.wait(10))
        self.check(targets, data)
        self.rig.collect()
        self.assertEqual(self.rig.done.keys() & {job}, set(), "the engine has not named it yet")
        self.rig.begin_load(job, "r", slots, targets)
        self.assertTrue(self.rig.wait_request("r"))
        self.assertTrue(self.rig.wait_job(job))
        self.assertEqual(self.loads(), 2, "the engine's record begins no second copy")
        for block, want in others.items():
            self.assertTrue(self.rig.kv.read(block) == want, f"block {block} was not named")

    def test_a_load_of_the_engines_needs_no_load_of_the_agents(self) -> None:
        tokens, data = self.stored(3)
        _, slots = self.pinned(tokens, 3)
        self.rig.begin_load(5, "r", slots, [20, 21, 22])
        self.assertTrue(self.rig.wait_request("r"))
        self.assertTrue(self.rig.wait_job(5))
        self.check([20, 21, 22], data)

    def test_a_load_that_comes_after_the_engines_is_not_copied_again(self) -> None:
        tokens, data = self.stored(2)
        request, slots = self.pinned(tokens, 2)
        job = self.scheduler.job()
        self.rig.begin_load(job, "r", slots, [20, 21])
        self.assertTrue(self.rig.wait_request("r"))
        self.rig.kv.write(20, bytes(len(data[0])))  # the engine uses the block again
        self.scheduler.claim(request, [20, 21], job)
        marker, marker_slots = self.pinned(tokens, 1)
        self.scheduler.claim(marker, [30])  # after this load, the worker has seen the first one
        wait_until("the later load", lambda: self.rig.kv.read(30) == data[0])
        self.assertEqual(self.loads(), 2)
        self.assertEqual(self.rig.kv.read(20), bytes(len(data[0])))

    def test_a_request_of_several_jobs_is_told_of_once_when_all_have_ended(self) -> None:
        tokens, data = self.stored(4)
        _, slots = self.pinned(tokens, 4)
        pack, ids = packed.pack_slots, packed.pack_u32
        loads = [
            Load(1, "r", b"", b""),
            Load(2, "r", pack(slots[:2]), ids([20, 21])),
            Load(3, "s", pack(slots[2:]), ids([22, 23])),
            Load(4, "r", pack(slots[2:]), ids([24, 25])),
        ]
        with self.assertLogs("blockyard.worker"):
            self.rig.session.begin(Work(loads=loads))
            self.assertFalse(self.rig.wait_request("r"), "one of its jobs could not begin")
        self.assertTrue(self.rig.wait_request("s"))
        for job, ok in [(1, False), (2, True), (3, True), (4, True)]:
            self.assertEqual(self.rig.wait_job(job), ok)
        self.check([20, 21, 24, 25], data)
        self.assertEqual(self.rig.finished, {"r": True, "s": False})

    def test_a_request_may_come_again(self) -> None:
        tokens, _ = self.stored(1)
        _, slots = self.pinned(tokens, 1)
        for job in (1, 2):
            self.rig.begin_load(job, "r", slots, [20])
            self.assertTrue(self.rig.wait_request("r"))
            del self.rig.finished["r"]

    def test_a_thousand_small_jobs_are_all_reported_once(self) -> None:
        tokens, data = self.stored(4)
        request, slots = self.pinned(tokens, 4)
        for n in range(1000):
            block = 4 + n % 60
            job = self.scheduler.job()
            if n % 3:
                body = frames.encode_claim(request, 0, n % 4, 1, job, packed.pack_u32([block]))
                self.assertEqual(self.scheduler.ask(frames.CLAIM, body).type, frames.CLAIMED)
            self.rig.begin_load(job, f"r{n}", [slots[n % 4]], [block])
            self.rig.collect()
        wait_until(
            "all requests", lambda: self.rig.collect() or len(self.rig.finished) == 1000, 30
        )
        self.assertFalse(any(self.rig.finished.values()))
        self.assertEqual(sum(ok for ok, _ in self.rig.done.values()), 1001)
        for block in range(4, 64):
            last = max(n for n in range(1000) if 4 + n % 60 == block)
            self.assertEqual(self.rig.kv.read(block), data[last % 4])


@planes.both
class Faults(WorkerCase):
    def test_a_generation_that_differs_fails_the_load(self) -> None:
        tokens, _ = self.stored(2)
        _, slots = self.pinned(tokens, 2)
        wrong = [slots[0], slots[1]._replace(generation=slots[1].generation + 1)]
        with self.assertLogs("blockyard.copying"):
            self.rig.begin_load(1, "r", wrong, [20, 21])
            self.assertFalse(self.rig.wait_request("r"))
        self.assertEqual(self.loads(), 0)
        self.assertFalse(self.rig.wait_job(1))

    def test_a_generation_that_changes_during_the_copy_fails_the_load(self) -> None:
        tokens, _ = self.stored(2)
        _, slots = self.pinned(tokens, 2)
        self.rig.mover.close_gate()
        with self.assertLogs("blockyard.copying"):
            self.rig.begin_load(1, "r", slots, [20, 21])
            self.assertTrue(self.rig.mover.waiting.wait(10))
            self.scheduler.change_generation(slots[1], slots[1].generation + 1)
            self.rig.mover.gate.set()
            self.assertFalse(self.rig.wait_request("r"))

    def test_slots_and_blocks_that_do_not_exist_fail_and_nothing_else_does(self) -> None:
        tokens, data = self.stored(1)
        _, slots = self.pinned(tokens, 1)
        before = [self.rig.kv.read(block) for block in range(64)]
        with self.assertLogs("blockyard"), mock.patch.object(copying, "EXTENT_SECONDS", 0.05):
            for job, (slot, block) in enumerate(
                [
                    (slots[0]._replace(extent=slots[0].extent + 1), 20),
                    (slots[0]._replace(index=2**32 - 1), 20),
                    (slots[0], 64),
                    (slots[0], 2**32 - 1),
                ]
            ):
                self.rig.begin_load(job, f"r{job}", [slot], [block])
                self.assertFalse(self.rig.wait_request(f"r{job}"))
            self.rig.begin_load(8, "two", slots, [1, 2])
            self.assertFalse(self.rig.wait_request("two"))
        self.assertEqual([self.rig.kv.read(block) for block in range(64)], before)
        self.rig.begin_load(9, "good", slots, [20])
        self.assertTrue(self.rig.wait_request("good"))
        self.check([20], data)

    def test_a_store_into_a_slot_of_another_generation_writes_nothing(self) -> None:
        request = self.scheduler.open(self.rig.fresh_tokens(1))
        slots = self.scheduler.grant(request, 1)
        self.rig.kv.fill(0)
        with self.assertLogs("blockyard.copying"):
            self.rig.begin_store(1, [slots[0]._replace(generation=99)], [0])
            self.assertFalse(self.rig.wait_job(1))
        self.assertEqual(self.rig.mover.calls, [])


@planes.both
class Order(WorkerCase):
    def test_loads_overtake_the_rest_of_a_store_under_way(self) -> None:
        tokens, data = self.stored(2)
        _, slots = self.pinned(tokens, 2)
        request = self.scheduler.open(self.rig.fresh_tokens(8))
        granted = self.scheduler.grant(request, 8)
        self.rig.mover.calls.clear()
        self.rig.mover.close_gate()
        self.rig.begin_store(1, granted, range(30, 38))
        self.assertTrue(self.rig.mover.waiting.wait(10))
        self.rig.begin_load(2, "r", slots, [20, 21])
        if planes.in_c:  # elsewhere the thread that queues the load is at the gate
            wait_until("the load is queued", lambda: 2 in self.rig.session._ended._waiting)
        self.rig.mover.gate.set()
        self.assertTrue(self.rig.wait_request("r"))
        self.assertTrue(self.rig.wait_job(1))
        kinds = [kind for kind, _ in self.rig.mover.calls]
        self.assertEqual(kinds, ["store", "load", "store", "store", "store"])
        self.check([20, 21], data)

    def test_wait_tells_whether_copies_are_left(self) -> None:
        self.assertTrue(self.rig.session.wait(0))
        request = self.scheduler.open(self.rig.fresh_tokens(1))
        granted = self.scheduler.grant(request, 1)
        self.rig.mover.close_gate()
        self.rig.begin_store(1, granted, [0])
        self.assertFalse(self.rig.session.wait(0))
        self.rig.mover.gate.set()
        self.assertTrue(self.rig.session.wait(10))
        self.assertTrue(self.rig.wait_job(1))

    def test_a_step_without_copies_costs_the_thread_nothing(self) -> None:
        self.rig.session.begin(Work())
        self.assertTrue(self.rig.session.wait(0))
        self.assertIsNone(self.rig.session.done())
        self.assertEqual(self.rig.session.finished_loads(), (set(), set()))

    def test_close_fails_what_has_not_begun_and_ends_the_thread(self) -> None:
        request = self.scheduler.open(self.rig.fresh_tokens(8))
        granted = self.scheduler.grant(request, 8)
        self.rig.mover.close_gate()
        self.rig.begin_store(1, granted, range(8))
        self.assertTrue(self.rig.mover.waiting.wait(10))
        drop, gate = NativeCopier.drop, self.rig.mover.gate

        def drop_and_open(copier: NativeCopier, problem: str) -> list[tuple[int, bool]]:
            ended = drop(copier, problem)
            gate.set()
            return ended

        with (
            self.assertLogs("blockyard.copying"),
            mock.patch.object(NativeCopier, "drop", drop_and_open),
        ):
            self.rig.session._closing = True
            if not planes.in_c:  # there the thread that drops the job is at the gate
                gate.set()
            self.rig.session.close()
        self.assertFalse(self.rig.wait_job(1))
        self.rig.session.close()


@planes.both
class Connections(WorkerCase):
    def restart(self) -> None:
        self.rig.agent.restart()
        self.rig.start_scheduler()
        self.rig.wait_joined()

    def test_a_copy_that_is_under_way_when_the_agent_dies_ends_and_counts(self) -> None:
        tokens, data = self.stored(6)
        request, slots = self.pinned(tokens, 6)
        self.rig.mover.close_gate()
        job = self.scheduler.claim(request, [20, 21, 22, 23, 24, 25])
        self.assertTrue(self.rig.mover.waiting.wait(10))
        self.rig.agent.kill9()
        self.rig.mover.gate.set()
        self.rig.begin_load(job, "r", slots, [20, 21, 22, 23, 24, 25])
        self.assertTrue(self.rig.wait_request("r"))
        self.check([20, 21, 22, 23, 24, 25], data)

    def test_a_load_of_pinned_slots_begins_although_the_agent_is_dead(self) -> None:
        tokens, data = self.stored(2)
        _, slots = self.pinned(tokens, 2)
        self.rig.agent.kill9()
        wait_until("the loss is noticed", lambda: not self.rig.session.joined)
        self.rig.begin_load(1, "r", slots, [20, 21])
        self.assertTrue(self.rig.wait_request("r"))
        self.check([20, 21], data)

    def test_extents_are_mapped_anew_after_a_restart_and_hold_the_same_blocks(self) -> None:
        tokens, data = self.stored(5)
        wait_until("the blocks are sealed", lambda: self.rig.agent.stats()["quiet"])
        for _ in range(2):
            self.restart()
            request, slots = self.pinned(tokens, 5)
            blocks = [40, 41, 42, 43, 44]
            for block in blocks:
                self.rig.kv.fill(block)
            job = self.scheduler.claim(request, blocks)
            self.rig.begin_load(job, f"r{job}", slots, blocks)
            self.assertTrue(self.rig.wait_request(f"r{job}"))
            self.check(blocks, data)

    def test_a_store_after_a_restart_can_be_looked_up(self) -> None:
        self.restart()
        tokens, data = self.stored(3)
        _, slots = self.pinned(tokens, 3)
        self.rig.begin_load(1, "r", slots, [20, 21, 22])
        self.assertTrue(self.rig.wait_request("r"))
        self.check([20, 21, 22], data)

    def test_close_says_bye_so_that_no_worker_counts_as_lost(self) -> None:
        self.rig.session.close()
        self.assertEqual(self.rig.agent.stats()["engines"]["workers_lost"], 0)


@planes.both
class OverlappingSteps(RigCase):
    options = {"early_loads": False}

    def test_no_copy_begins_before_the_engine_has_named_it(self) -> None:
        rig, scheduler = self.rig, self.scheduler
        tokens, (data,) = self.stored(1)
        request = scheduler.open(tokens)
        slots = scheduler.lookup(request, 1)
        first, second = scheduler.claim(request, [8]), scheduler.claim(request, [9])
        rig.kv.write(8, bytes(len(data)))  # an earlier step zeroes the block
        rig.begin_load(second, "second", slots, [9])
        self.assertTrue(rig.wait_request("second"))
        self.assertEqual(rig.mover.calls[1:], [("load", [9])])
        rig.begin_load(first, "first", slots, [8])
        self.assertTrue(rig.wait_request("first"))
        self.assertEqual([rig.kv.read(8), rig.kv.read(9)], [data, data])


@planes.both
class LateScheduler(RigCase):
    options = {"connect": False}

    def refused_twice(self) -> Rig:
        """The rig, whose worker was refused twice: there is no scheduler."""
        rig = self.rig
        wait_until("two refused tries", lambda: rig.agent.stats()["engines"]["refused"] >= 2)
        return rig

    def test_a_worker_waits_for_its_session_and_joins_it(self) -> None:
        rig = self.refused_twice()
        self.assertFalse(rig.session.joined)
        scheduler = rig.start_scheduler()
        rig.wait_joined()
        tokens, data = self.stored(2)
        request = scheduler.open(tokens)
        scheduler.lookup(request, 2)
        scheduler.claim(request, [8, 9])
        wait_until("the bytes", lambda: [rig.kv.read(8), rig.kv.read(9)] == data)

    def test_work_that_comes_before_the_worker_has_joined_is_done(self) -> None:
        rig = self.refused_twice()
        rig.start_scheduler()
        tokens, data = self.stored(2)
        slots = rig.scheduler.lookup(rig.scheduler.open(tokens), 2)
        rig.begin_load(1, "r", slots, [8, 9])
        self.assertTrue(rig.wait_request("r"))
        self.assertEqual([rig.kv.read(8), rig.kv.read(9)], data)

    def test_without_an_agent_the_engine_gets_its_answer(self) -> None:
        rig = self.rig
        rig.agent.kill9()
        with mock.patch.object(copying, "EXTENT_SECONDS", 0.05):
            with self.assertLogs("blockyard.copying"):
                rig.begin_load(1, "r", [Slot(0, 0, 1)], [3])
                self.assertFalse(rig.wait_request("r"))


if __name__ == "__main__":
    unittest.main()
