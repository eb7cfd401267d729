"""WorkerSession with a real agent, and a device that pins memory slowly."""

from __future__ import annotations

import threading
import unittest
from typing import Any
from unittest import mock

from blockyard import worker as worker_module
from blockyard import workerlink
from blockyard.mover import Pages
from blockyard.readable import pack_runs
from blockyard.work import Mapped
from tests import planes
from tests.agentproc import wait_until
from tests.workerrig import GatedMover, RigCase, ScriptedScheduler


class PinningMover(GatedMover):
    """A mover whose pins and unpins wait at gates."""

    pins = True

    def __init__(self, pages: Pages) -> None:
        super().__init__(pages)
        self.may_pin = threading.Event()
        self.may_unpin = threading.Event()
        self.pinning = threading.Event()  # a piece waits to be pinned
        self.unpinning = threading.Event()  # a piece waits to be unpinned
        self.pinned: set[int] = set()
        self.threads: set[str] = set()

    def on_map(self, address: int, size: int) -> bool:
        self.threads.add(threading.current_thread().name)
        self.pinning.set()
        if not self.may_pin.wait(30):
            raise AssertionError("never allowed to pin")
        self.pinned.add(address)
        return True

    def on_unmap(self, address: int, size: int) -> None:
        self.threads.add(threading.current_thread().name)
        self.unpinning.set()
        if not self.may_unpin.wait(30):
            raise AssertionError("never allowed to unpin")
        self.pinned.remove(address)

    def release(self) -> None:
        self.may_pin.set()
        self.may_unpin.set()


@planes.both
class Plain(RigCase):
    """A device that needs no pinned memory."""

    def test_every_report_says_that_all_is_pinned(self) -> None:
        self.rig.store(self.rig.fresh_tokens(1), [0])
        told = self.rig.session.mapped()
        assert told is not None
        self.assertTrue(told.pinned)
        self.assertTrue(told.extents)


class PinningCase(RigCase):
    options: dict[str, Any] = {"mover": PinningMover}

    def setUp(self) -> None:
        super().setUp()
        mover = self.rig.mover
        assert isinstance(mover, PinningMover)
        self.mover = mover
        self.addCleanup(mover.release)


@planes.both
class Pinning(PinningCase):
    def load(self, rid: str, tokens: list[int], data: bytes) -> None:
        """Loads a block and compares its bytes."""
        slots = self.scheduler.lookup(self.scheduler.open(tokens), 1)
        self.rig.kv.write(20, bytes(len(data)))
        self.rig.begin_load(self.scheduler.job(), rid, slots, [20])
        self.assertTrue(self.rig.wait_request(rid))
        self.assertEqual(self.rig.kv.read(20), data)

    def test_blocks_are_stored_and_loaded_while_their_memory_is_being_pinned(self) -> None:
        tokens, data = self.rig.fresh_tokens(1), self.rig.kv.fill(0)
        self.rig.store(tokens, [0])
        self.assertTrue(self.mover.pinning.wait(30))
        self.load("r", tokens, data)
        self.assertEqual(self.mover.pinned, set())
        self.mover.may_pin.set()
        wait_until("the memory is pinned", lambda: self.mover.pinned)
        self.assertEqual(self.mover.threads, {"blockyard-pin"})
        self.load("s", tokens, data)

    def test_what_is_mapped_is_told_before_it_is_pinned_and_once(self) -> None:
        self.rig.store(self.rig.fresh_tokens(1), [0])
        welcome = self.scheduler.welcome
        told = self.rig.session.mapped()
        assert told is not None
        self.assertEqual((told.nonce, told.session), (welcome["agent_nonce"], welcome["session"]))
        self.assertEqual(told.extents, pack_runs(self.scheduler.extents.mapped()[1]))
        self.assertIsNone(self.rig.session.mapped())
        self.assertEqual((told.pinned, self.mover.pinned), (False, set()))
        self.scheduler.close()
        wait_until("the session has ended", lambda: not self.rig.session.joined)
        self.rig.scheduler = ScriptedScheduler(self.rig.agent, self.rig.worker_id)
        self.rig.wait_joined()
        self.rig.store(self.rig.fresh_tokens(1), [0])
        again = self.rig.session.mapped()
        assert again is not None
        self.assertEqual(again.session, self.scheduler.welcome["session"])
        self.assertEqual((again.worker, again.extents), (told.worker, told.extents))

    def test_no_copy_waits_for_memory_that_is_unpinned(self) -> None:
        """A sleeping engine waits for copies, and does not wait for unpinning."""
        self.mover.may_pin.set()
        self.rig.store(self.rig.fresh_tokens(1), [0])
        wait_until("the memory is pinned", lambda: self.mover.pinned)
        namespace = {**(self.scheduler.hello.namespace or {}), "weights": "w2"}
        self.scheduler.close()
        wait_until("the session has ended", lambda: not self.rig.session.joined)
        with (
            mock.patch.object(workerlink, "_IDLE_SECONDS", 0.05),
            mock.patch("tests.workerrig.NAMESPACE", namespace),
        ):
            self.rig.scheduler = ScriptedScheduler(self.rig.agent, self.rig.worker_id)
            self.rig.wait_joined()
            tokens, data = self.rig.fresh_tokens(1), self.rig.kv.fill(0)
            self.rig.store(tokens, [0])
            self.assertTrue(self.mover.unpinning.wait(30), "the former session's memory goes")
        self.assertTrue(self.rig.session.wait(10))
        self.load("r", tokens, data)

    def test_close_does_not_take_unpinning_for_a_copy_that_hangs(self) -> None:
        self.mover.may_pin.set()
        self.rig.store(self.rig.fresh_tokens(1), [0])
        wait_until("the memory is pinned", lambda: self.mover.pinned)
        with (
            mock.patch.object(worker_module, "_UNPIN_SECONDS", 0.01),
            self.assertLogs("blockyard.worker", "INFO") as logs,
        ):
            self.rig.session.close()
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], "INFO:.*still being unpinned")
        self.assertTrue(self.mover.pinned)
        self.mover.may_unpin.set()
        wait_until("the memory is unpinned", lambda: not self.mover.pinned)


@planes.both
class Reports(PinningCase):
    """Small extents, so that a few hundred blocks need another one."""

    options = {"mover": PinningMover, "flags": ("--extent-size=1MiB",)}

    def reported(self, pinned: bool) -> Mapped:
        """The next report whose `pinned` is this."""
        session, seen = self.rig.session, -1

        def next_report() -> Mapped | None:
            nonlocal seen
            if session.news == seen:
                return None  # without news the engine does not ask
            seen = session.news
            report = session.mapped()
            return report if report is not None and report.pinned is pinned else None

        return wait_until(f"a report with pinned={pinned}", next_report)

    def test_a_report_says_when_all_is_pinned_and_when_more_is_mapped(self) -> None:
        self.rig.store(self.rig.fresh_tokens(1), [0])
        self.reported(False)
        self.assertTrue(self.mover.pinning.wait(30))
        self.mover.may_pin.set()
        first = self.reported(True)
        self.mover.may_pin.clear()
        self.more_memory()
        more = self.reported(False)
        self.assertEqual(more.worker, first.worker)
        self.assertNotEqual(more.extents, first.extents)
        self.mover.may_pin.set()
        self.reported(True)

    def more_memory(self) -> None:
        """Stores blocks until the worker has mapped another extent."""
        before = self.rig.session._extents.announced
        for _ in range(1000):
            if self.rig.session._extents.announced > before:
                return
            self.rig.store(self.rig.fresh_tokens(32), range(32))
        self.fail("the agent announces no other extent")


if __name__ == "__main__":
    unittest.main()
