"""Copier: the order of copies, and the end of jobs."""

from __future__ import annotations

import collections
import os
import struct
import tempfile
import unittest
from collections.abc import Sequence
from unittest import mock

from blockyard import copying, native
from blockyard.copying import DEVICE_POLL_SECONDS, MAX_FLYING, CopyJob
from blockyard.extents import Extent
from blockyard.mover import Pages
from blockyard.native_plane import NativeCopier, NativePlane, Plan
from blockyard.packed import Slot, pack_slots, pack_u32
from blockyard.plane import JobCopier, PythonCopier, PythonPlane
from tests import planes
from tests.agentproc import wait_until

SLOT = 4096
SLOTS = 32
DATA = 4096


class FakeCopy:
    """A copy of a device. The test ends it."""

    def __init__(self) -> None:
        self.ended = False
        self.error = False

    def done(self) -> bool:
        if self.error:
            raise RuntimeError("the device failed")
        return self.ended


class FakeMover:
    """A mover that records its calls. asynchronous: the copies are a device's."""

    load_bytes = 4 * 64
    store_bytes = 2 * 64
    needs_fence = False

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[int]]] = []
        self.copies: list[FakeCopy] = []
        self.fences: list[object | None] = []
        self.asynchronous = False
        self.error: Exception | None = None

    def load(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> FakeCopy | None:
        self.fences.append(fence)
        return self._copy("load", slots, blocks)

    def store(
        self, slots: Sequence[int], blocks: Sequence[Sequence[int]], fence: object | None
    ) -> FakeCopy | None:
        self.fences.append(fence)
        return self._copy("store", slots, blocks)

    def _copy(
        self, kind: str, slots: Sequence[int], blocks: Sequence[Sequence[int]]
    ) -> FakeCopy | None:
        assert len(slots) == len(blocks[0])
        if self.error is not None:
            raise self.error
        self.calls.append((kind, list(blocks[0])))
        if not self.asynchronous:
            return None
        self.copies.append(FakeCopy())
        return self.copies[-1]

    def fence(self) -> None:
        pass

    def on_map(self, address: int, size: int) -> None:
        pass

    def on_unmap(self, address: int, size: int) -> None:
        pass


class CopierCase(unittest.TestCase):
    def setUp(self) -> None:
        self.file = tempfile.TemporaryFile()
        self.addCleanup(self.file.close)
        self.file.truncate(DATA + SLOTS * SLOT)
        self.plane = NativePlane(native.library()) if planes.in_c else PythonPlane()
        self.extents = self.plane.extents(lambda extent: None, Extent.unmap)
        self.addCleanup(self.extents.close)
        self.announce(0)
        for index in range(SLOTS):
            self.set_word(index, 7)
        self.mover = FakeMover()
        pages = Pages([(4096, 64, 64, 0, 0, 4096 + 64 * 100)], 100)
        self.counters: collections.Counter[str] = collections.Counter()
        if planes.in_c:
            plan = Plan(native.library(), pages)
            self.copier: JobCopier = NativeCopier(
                plan, self.mover, self.extents, self.counters, -1, 0
            )
        else:
            self.copier = PythonCopier(self.mover, pages, self.extents, self.counters, -1)
        self.addCleanup(self.close)

    def close(self) -> None:
        for copy in self.mover.copies:
            copy.ended = True
        self.copier.close()

    def announce(self, number: int) -> None:
        ready = {
            "extent": number,
            "slots": SLOTS,
            "slot_bytes": SLOT,
            "data_offset": DATA,
            "file_bytes": DATA + SLOTS * SLOT,
        }
        self.extents.add(ready, os.dup(self.file.fileno()))

    def set_word(self, index: int, generation: int) -> None:
        os.pwrite(self.file.fileno(), struct.pack("<Q", generation), 8 * index)

    def job(self, number: int, store: bool, blocks: Sequence[int], generation: int = 7) -> CopyJob:
        slots = pack_slots([Slot(0, n, generation) for n in range(len(blocks))])
        return CopyJob(number, store, slots, pack_u32(blocks), 1, f"fence {number}")

    def check_pause(self, seconds: float) -> None:
        """Checks pause(). In C the copier's threads wait instead of the caller."""
        pause = self.copier.pause()
        if planes.in_c:
            self.assertIsNone(pause)
        else:
            assert pause is not None
            self.assertAlmostEqual(pause, seconds, delta=seconds / 2)

    def run_all(self) -> dict[int, bool]:
        ended: dict[int, bool] = {}
        for _ in range(1000):
            ended.update(self.copier.step())
            if not self.copier.busy:
                return ended
        self.fail("the copier does not end")


@planes.both
class Order(CopierCase):
    def test_jobs_are_copied_in_pieces_of_the_movers_size(self) -> None:
        self.copier.add(self.job(1, False, range(6)))
        self.copier.add(self.job(2, True, range(10, 13)))
        self.assertEqual(self.run_all(), {1: True, 2: True})
        self.assertEqual(
            self.mover.calls,
            [("load", [0, 1, 2, 3]), ("load", [4, 5]), ("store", [10, 11]), ("store", [12])],
        )
        self.assertEqual(self.mover.fences, ["fence 1", "fence 1", "fence 2", "fence 2"])

    def test_a_load_overtakes_a_store_that_has_begun(self) -> None:
        self.copier.add(self.job(1, True, range(6)))
        self.assertEqual(self.copier.step(), [])
        self.copier.add(self.job(2, False, [20]))
        self.run_all()
        kinds = [kind for kind, _ in self.mover.calls]
        self.assertEqual(kinds, ["store", "load", "store", "store"])

    def test_what_was_copied_is_counted(self) -> None:
        self.copier.add(self.job(1, False, range(3)))
        self.copier.add(self.job(2, True, range(2)))
        self.copier.add(self.job(3, False, [1], generation=8))
        self.copier.add(self.job(4, True, [1, 2], generation=8))
        with self.assertLogs("blockyard.copying"):
            self.run_all()
        self.counters.pop("copy_us")
        self.assertEqual(
            self.counters,
            {
                "loads": 1,
                "loaded_blocks": 3,
                "failed_loads": 1,
                "stores": 2,
                "stored_blocks": 2,
                "dropped_stores": 2,
                "copied_bytes": 5 * 64,
            },
        )


@planes.both
class Failures(CopierCase):
    def test_a_generation_that_is_wrong_before_the_copy_copies_nothing(self) -> None:
        self.set_word(2, 8)
        for number, store in ((1, False), (2, True)):
            self.copier.add(self.job(number, store, range(6)))
        with self.assertLogs("blockyard.copying") as logs:
            self.assertEqual(self.run_all(), {1: False, 2: False})
        self.assertEqual(self.mover.calls, [])
        self.assertIn("index=2", logs.output[0])

    def test_a_generation_that_changes_during_a_load_fails_it(self) -> None:
        self.copier.add(self.job(1, False, range(6)))
        self.assertEqual(self.copier.step(), [])
        self.set_word(0, 8)
        with self.assertLogs("blockyard.copying"):
            self.assertEqual(self.run_all(), {1: False})

    def elsewhere(self, number: int) -> CopyJob:
        """A job with a slot in an unmapped extent."""
        return CopyJob(number, False, pack_slots([Slot(5, 0, 7)]), pack_u32([1]), 1)

    def test_an_extent_that_never_comes_fails_the_job(self) -> None:
        with mock.patch.object(copying, "EXTENT_SECONDS", 0.02):
            self.copier.add(self.elsewhere(1))
            with self.assertLogs("blockyard.copying"):
                ended = wait_until("the job fails", self.copier.step)
        self.assertEqual(ended, [(1, False)])
        self.assertFalse(self.copier.busy)

    def test_a_job_waits_for_its_extent_and_others_go_first(self) -> None:
        self.copier.add(self.elsewhere(1))
        self.copier.add(self.job(2, True, [4]))
        ended = self.copier.step()  # a plane may pass over the first job in the same step
        self.assertEqual(ended or self.copier.step(), [(2, True)])
        self.assertTrue(self.copier.busy)
        self.check_pause(copying.EXTENT_SECONDS)
        self.announce(6)
        self.assertEqual(self.copier.step(), [])
        self.announce(5)
        self.assertEqual(self.copier.step(), [(1, True)])
        self.assertIsNone(self.copier.pause())

    def test_drop_fails_what_waits_for_its_extent(self) -> None:
        self.copier.add(self.elsewhere(1))
        self.copier.step()
        with self.assertLogs("blockyard.copying"):
            self.assertEqual([ok for _, ok in self.copier.drop("end")], [False])
        self.assertFalse(self.copier.busy)

    def test_an_error_of_the_mover_fails_the_job_and_the_next_one_goes_on(self) -> None:
        self.copier.add(self.job(1, False, range(6)))
        self.copier.add(self.job(2, False, range(2)))
        self.mover.error = RuntimeError("out of order")
        with self.assertLogs("blockyard.copying") as logs:
            ended = dict(self.copier.step())
        self.assertEqual(ended, {1: False})
        self.assertIn("out of order", logs.output[0])
        self.mover.error = None
        self.assertEqual(self.run_all(), {2: True})

    def test_lists_that_do_not_fit_each_other_are_refused(self) -> None:
        for slots, blocks, groups in [
            (b"", b"", 1),
            (bytes(16), pack_u32([1, 2]), 1),
            (bytes(16), pack_u32([1]), 2),
            (bytes(15), pack_u32([1]), 1),
            (bytes(16), b"123", 1),
        ]:
            with self.assertRaises(ValueError):
                CopyJob(1, False, slots, blocks, groups)

    def test_drop_fails_what_is_queued_but_not_what_a_device_copies(self) -> None:
        self.mover.asynchronous = True
        self.copier.add(self.job(1, True, range(2)))
        self.copier.step()
        self.copier.add(self.job(2, True, range(2)))
        with self.assertLogs("blockyard.copying"):
            self.assertEqual(self.copier.drop("end"), [(2, False)])
        self.assertTrue(self.copier.busy)
        self.mover.copies[0].ended = True
        self.assertEqual(self.run_all(), {1: True})


@planes.both
class Devices(CopierCase):
    def setUp(self) -> None:
        super().setUp()
        self.mover.asynchronous = True

    def test_a_job_ends_when_the_device_has_ended_all_its_copies(self) -> None:
        self.copier.add(self.job(1, False, range(6)))
        for _ in range(3):
            self.assertEqual(self.copier.step(), [])
        self.check_pause(DEVICE_POLL_SECONDS)
        self.mover.copies[1].ended = True
        self.assertEqual(self.copier.step(), [])
        self.mover.copies[0].ended = True
        self.assertEqual([ok for _, ok in self.copier.step()], [True])
        self.assertFalse(self.copier.busy)

    def test_the_time_counts_in_which_the_device_copies(self) -> None:
        if planes.in_c:
            self.skipTest("the clock of the copier in C cannot be set")
        clock = mock.Mock(return_value=10.0)
        with mock.patch.object(copying.time, "perf_counter", clock):
            self.copier.add(self.job(1, False, range(8)))
            self.copier.step()
            clock.return_value = 10.5
            self.copier.step()  # the second copy starts during the first
            clock.return_value = 12.0
            for copy in self.mover.copies:
                copy.ended = True
            self.copier.step()
            clock.return_value = 20.0
            self.copier.step()
        self.assertAlmostEqual(self.counters["copy_us"], 2_000_000, delta=2)

    def test_generations_are_compared_after_the_device_has_ended(self) -> None:
        self.copier.add(self.job(1, False, [1]))
        self.copier.step()
        self.set_word(0, 8)
        self.mover.copies[0].ended = True
        with self.assertLogs("blockyard.copying"):
            self.assertEqual(self.run_all(), {1: False})

    def test_a_copy_that_the_device_fails_fails_the_job_once(self) -> None:
        self.copier.add(self.job(1, False, range(8)))
        self.copier.step()
        self.copier.step()
        self.mover.copies[0].error = True
        self.mover.copies[1].error = True
        with self.assertLogs("blockyard.copying"):
            self.assertEqual(self.run_all(), {1: False})

    def test_a_failed_job_is_not_reported_while_the_device_still_copies_for_it(self) -> None:
        self.copier.add(self.job(1, False, range(8)))
        self.copier.step()
        self.mover.error = RuntimeError("no")
        self.assertEqual(self.copier.step(), [])
        self.assertTrue(self.copier.busy)
        self.mover.copies[0].ended = True
        with self.assertLogs("blockyard.copying"):
            self.assertEqual(self.run_all(), {1: False})

    def test_the_copies_of_a_device_are_bounded(self) -> None:
        for number in range(MAX_FLYING + 5):
            self.copier.add(self.job(number, True, [number]))
        for _ in range(2 * MAX_FLYING):
            self.copier.step()
        self.assertEqual(len(self.mover.copies), MAX_FLYING)
        self.check_pause(DEVICE_POLL_SECONDS)
        self.mover.copies[0].ended = True
        self.copier.step()
        self.assertEqual(len(self.mover.copies), MAX_FLYING + 1)


if __name__ == "__main__":
    unittest.main()
