"""WorkerSession under faults, with a real agent: LOADs of another engine, failed fences, and memory
of ended sessions."""

from __future__ import annotations

import pathlib
import unittest
from unittest import mock

from blockyard import frames, packed, workerlink
from blockyard.frames import RegisterFields
from blockyard.mover import CpuMover
from blockyard.settings import Settings
from blockyard.work import Load, Store, Work
from blockyard.worker import WorkerIdentity, WorkerSession
from tests import planes
from tests.agentproc import wait_until
from tests.workerrig import BLOCK, Kv, RigCase, ScriptedScheduler


class Refused(unittest.TestCase):
    def test_a_job_that_the_copier_cannot_take_is_reported(self) -> None:
        """Otherwise a request waits for the load for ever, and the engine for a short one."""
        session = WorkerSession(Settings(), WorkerIdentity(1, 0, "test"), CpuMover)
        self.addCleanup(session.close)
        work = Work([Load(9, "a", bytes(16), bytes(4)), Load(10, "b", bytes(16), bytes(4))])
        session._ended.begin(work.loads)
        copier = mock.Mock(**{"add.side_effect": [MemoryError("copier"), True]})
        with self.assertLogs("blockyard.worker", "WARNING"):
            session._take(work, None, copier, Kv(8).pages())
        self.assertEqual(session.finished_loads(), ({"a"}, {"a"}))
        self.assertTrue(session.expects("b"))
        self.assertEqual(session.done().jobs, {9: [0, 1]})


@planes.both
class Foreign(RigCase):
    def second_worker(self) -> tuple[WorkerSession, Kv]:
        """The worker of another engine with the same worker_id."""
        kv = Kv(64)
        identity = WorkerIdentity(self.rig.worker_id, 0, "another engine")
        session = WorkerSession(Settings(socket=self.rig.agent.socket), identity, CpuMover)
        session.start(RegisterFields(64, BLOCK), kv.pages())
        self.addCleanup(session.close)
        wait_until("the other engine's worker joins", lambda: session.joined)
        return session, kv

    def claim(self, request: int, job: int, blocks: bytes) -> None:
        """Claims a request's first four blocks. Both workers get the LOAD."""
        body = frames.encode_claim(request, 0, 0, 4, job, blocks)
        self.assertEqual(self.scheduler.ask(frames.CLAIM, body).body["workers"], 2)

    def test_a_load_of_another_engines_scheduler_is_not_copied(self) -> None:
        tokens, data = self.stored(4)
        session, kv = self.second_worker()
        for block in range(64):
            kv.fill(block)
        before = [kv.read(block) for block in range(64)]
        request = self.scheduler.open(tokens)
        slots = self.scheduler.lookup(request, 4)
        body = packed.pack_u32([40, 41, 42, 43])
        self.claim(request, self.scheduler.job(), body)
        wait_until("the load", lambda: self.rig.kv.read(43) == data[3])
        # After a copy of its own, the worker has seen that LOAD.
        own = 5 << 32
        session.begin(Work(loads=[Load(own, "r", packed.pack_slots(slots[:1]), body[:4])]))
        wait_until("its own load", lambda: session.finished_loads()[0])
        self.assertEqual(kv.read(40), data[0])
        self.assertTrue([kv.read(b) for b in range(41, 44)] == before[41:44], "its blocks")
        self.claim(request, self.scheduler.job(), body)
        session.begin(Work(loads=[Load(own + 1, "s", packed.pack_slots(slots[:1]), body[:4])]))
        wait_until("its own load", lambda: session.finished_loads()[0])
        self.assertTrue([kv.read(b) for b in range(41, 44)] == before[41:44], "its blocks")


@planes.both
class Errors(RigCase):
    def test_a_fence_that_fails_fails_the_jobs_of_its_step(self) -> None:
        request = self.scheduler.open(self.rig.fresh_tokens(1))
        slots = packed.pack_slots(self.scheduler.grant(request, 1))
        work = Work([Load(5, "r", slots, packed.pack_u32([3]))])
        work.stores.append(Store(6, slots, packed.pack_u32([4])))
        with (
            mock.patch.object(self.rig.mover, "fence", side_effect=RuntimeError("device lost")),
            self.assertLogs("blockyard.worker", "WARNING") as logs,
        ):
            self.rig.session.begin(work)
            self.assertFalse(self.rig.wait_request("r"))
            self.assertFalse(self.rig.wait_job(5))
            self.assertFalse(self.rig.wait_job(6))
        self.assertIn("device lost", logs.output[0])
        self.assertEqual(self.rig.mover.calls, [])
        self.assertEqual(self.rig.session.stats()["dropped_stores"], 1)

    def test_a_job_that_cannot_be_understood_fails_alone(self) -> None:
        tokens, data = self.stored(1)
        slots = packed.pack_slots(self.scheduler.lookup(self.scheduler.open(tokens), 1))
        loads = [
            Load(1, "r", slots, None),  # type: ignore[arg-type]
            Load(2, "s", slots, packed.pack_u32([20])),
        ]
        with self.assertLogs("blockyard.worker", "WARNING"):
            self.rig.session.begin(Work(loads=loads))
            self.assertFalse(self.rig.wait_request("r"))
        self.assertTrue(self.rig.wait_request("s"))
        self.assertEqual(self.rig.kv.read(20), data[0])


@planes.both
class LeftSessions(RigCase):
    def extents(self) -> int:
        """The number of extents that this process has mapped."""
        maps = pathlib.Path("/proc/self/maps").read_text()
        return sum(str(self.rig.agent.host_dir) in line for line in maps.splitlines())

    def test_memory_of_a_session_that_was_left_is_unmapped_when_the_worker_is_idle(self) -> None:
        self.stored(1)
        scheduler = self.scheduler
        scheduler.extents.close()
        former = self.extents()
        self.assertGreater(former, 0)
        hello = scheduler.hello
        assert hello.namespace is not None
        other = {**hello.namespace, "weights": "w2"}
        with mock.patch.object(workerlink, "_IDLE_SECONDS", 0.2):
            scheduler.close()
            wait_until("the session has ended", lambda: not self.rig.session.joined)
            with mock.patch("tests.workerrig.NAMESPACE", other):
                self.rig.scheduler = ScriptedScheduler(self.rig.agent, self.rig.worker_id)
            self.rig.wait_joined()
            self.rig.store(self.rig.fresh_tokens(1), [0])
            # Only the new session's memory is mapped: by the worker and by the scripted scheduler.
            want = 2 * len(self.rig.scheduler.extents)
            wait_until("the former's are unmapped", lambda: self.extents() == want)


if __name__ == "__main__":
    unittest.main()
