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


class SocketOfTheCopier(unittest.TestCase):
    """The copier reads the socket. The worker's thread takes it where a LOAD would do harm."""

    def setUp(self) -> None:
        self.session = WorkerSession(Settings(), WorkerIdentity(1, 0, "test"), CpuMover)
        self.addCleanup(self.session.close)
        self.link = mock.Mock(**{"service.return_value": [], "due.return_value": None})
        self.link.configure_mock(joined=False)
        self.copier = mock.Mock(busy=False, micros={})
        self.copier.configure_mock(**{"step.return_value": [], "pause.return_value": None})
        self.extents = mock.Mock(announced=0, changes=0, has_old=False)
        self.pinner = mock.Mock(all_pinned=True, **{"pause.return_value": None})

    def turn(self) -> None:
        pages = Kv(8).pages()
        self.session._turn(self.link, self.copier, self.extents, pages, self.pinner)

    def test_the_first_job_of_a_scheduler_stops_the_copier_which_discards_its_loads(self) -> None:
        for number, holds in ((9, 1), (10, 1), (7 << 32, 2)):
            store = Work(stores=[Store(number, bytes(16), bytes(4))])
            self.session._take(store, None, self.copier, Kv(8).pages())
            self.assertEqual(self.copier.hold.call_count, holds)
        before = [call[0] for call in self.copier.method_calls]
        self.assertEqual(before, ["hold", "add", "add", "hold", "add"])

    def test_no_extent_is_unmapped_while_a_load_may_begin(self) -> None:
        self.extents.has_old = True
        self.copier.hold.side_effect = lambda: setattr(self.copier, "busy", True)
        self.turn()  # a LOAD has begun just before the hold
        self.extents.release_old.assert_not_called()
        self.copier.busy, self.copier.hold.side_effect = False, None
        self.turn()
        self.extents.release_old.assert_called_once()

    def test_all_extents_that_have_arrived_are_mapped_before_the_copier_reads_on(self) -> None:
        def announce(*_: object) -> list[object]:
            self.extents.announced += 1
            return []

        self.link.service.side_effect = announce
        self.turn()
        self.copier.wait.assert_not_called()
        self.pinner.start.assert_not_called()
        self.link.service.side_effect = None
        self.turn()
        self.pinner.start.assert_called_once()
        self.copier.wait.assert_called_once()

    def test_the_socket_is_closed_only_without_the_copier(self) -> None:
        self.session._closing = True
        calls = mock.Mock()
        calls.attach_mock(self.copier.hold, "hold")
        calls.attach_mock(self.link.close, "close_link")
        calls.attach_mock(self.copier.close, "close_copier")
        self.copier.drop.return_value = []
        pages = Kv(8).pages()
        self.session._run(self.link, self.copier, self.extents, pages, self.pinner)
        names = [call[0] for call in calls.mock_calls]
        self.assertEqual(names, ["hold", "close_link", "close_copier"])


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
