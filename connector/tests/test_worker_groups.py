"""Copies of one KV group's blocks: a slot has a block of one group."""

from __future__ import annotations

import ctypes
import os
import tempfile
import unittest
from unittest import mock

from blockyard import native
from blockyard.copying import CopyJob
from blockyard.extents import Extent
from blockyard.groups import ALL_GROUPS
from blockyard.mover import CpuMover, Pages
from blockyard.native_plane import MemoryMover, NativeCopier, NativePlane
from blockyard.packed import Slot, pack_slots, pack_u32
from blockyard.pinner import Pinner
from blockyard.plane import JobCopier, PythonCopier, PythonPlane
from blockyard.settings import Settings
from blockyard.work import Load, Store, Work
from blockyard.worker import WorkerIdentity, WorkerSession
from tests import planes

SLOT, SLOTS, DATA, BLOCKS = 4096, 4, 4096, 8
PAGE = 64  # bytes of a block in each of the three layers
NUMBER = 5 << 32  # the scheduler's job numbers


@planes.both
class Groups(unittest.TestCase):
    """Group 0 has one layer, group 1 two. The groups share their device blocks' memory."""

    def setUp(self) -> None:
        self.jobs = 0
        self.file = tempfile.TemporaryFile()
        self.addCleanup(self.file.close)
        self.file.truncate(DATA + SLOTS * SLOT)
        for index in range(SLOTS):
            os.pwrite(self.file.fileno(), (7).to_bytes(8, "little"), 8 * index)
        plane = NativePlane(native.library()) if planes.in_c else PythonPlane()
        self.extents = plane.extents(lambda extent: None, Extent.unmap)
        self.addCleanup(self.extents.close)
        ready = {
            "extent": 0,
            "slots": SLOTS,
            "slot_bytes": SLOT,
            "data_offset": DATA,
            "file_bytes": DATA + SLOTS * SLOT,
        }
        self.extents.add(ready, os.dup(self.file.fileno()))
        self.memory = [ctypes.create_string_buffer(BLOCKS * PAGE) for _ in range(2)]
        first, second = map(ctypes.addressof, self.memory)
        end = BLOCKS * PAGE
        self.pages = Pages(
            [
                (first, PAGE, PAGE, 0, 0, first + end),
                (first, PAGE, PAGE, 0, 1, first + end),
                (second, PAGE, PAGE, PAGE, 1, second + end),
            ],
            BLOCKS,
            share_offset=256,
            grouped=True,
        )
        self.counters = dict.fromkeys(
            "stores stored_blocks dropped_stores loads loaded_blocks failed_loads copied_bytes"
            " copy_us errors".split(),
            0,
        )
        if planes.in_c:
            memory = MemoryMover(native.library(), self.pages)
            self.copier: JobCopier = NativeCopier(
                memory.plan, memory, self.extents, self.counters, -1, 0
            )
        else:
            mover = CpuMover(self.pages)
            self.copier = PythonCopier(mover, self.pages, self.extents, self.counters, -1)
        self.addCleanup(self.copier.close)

    def fill(self, block: int, letter: bytes) -> None:
        for memory in self.memory:
            memory[block * PAGE : (block + 1) * PAGE] = letter * PAGE

    def block(self, block: int) -> bytes:
        at = block * PAGE
        return b"".join(memory.raw[at : at + 1] for memory in self.memory)

    def slot(self, index: int) -> bytes:
        return os.pread(self.file.fileno(), 3 * PAGE, DATA + index * SLOT + 256)

    def copy(self, group: int, is_store: bool, slot: int, block: int) -> None:
        slots = pack_slots([Slot(0, slot, 7)])
        self.jobs += 1
        self.copier.add(CopyJob(self.jobs, is_store, slots, pack_u32([block]), 2, None, group))
        ended = self.copier.step()
        self.assertEqual([ok for _, ok in ended], [True])

    def test_only_the_jobs_group_is_copied(self) -> None:
        self.fill(3, b"x")
        self.copy(0, True, 0, 3)
        self.assertEqual(self.slot(0), b"x" * PAGE + bytes(2 * PAGE))
        self.copy(1, True, 1, 3)
        self.assertEqual(self.slot(1), b"x" * 2 * PAGE + bytes(PAGE))
        self.assertEqual(self.counters["copied_bytes"], 3 * PAGE)
        self.copy(0, False, 1, 4)
        self.assertEqual(self.block(4), b"x\0", "the second layer is another group's")
        self.copy(1, False, 1, 5)
        self.assertEqual(self.block(5), b"xx")
        self.assertEqual([self.block(n) for n in (0, 1, 2, 6, 7)], [b"\0\0"] * 5)

    def test_a_job_of_an_unknown_group_or_of_all_groups_fails(self) -> None:
        slots, blocks = pack_slots([Slot(0, 0, 7)]), pack_u32([1, 2])
        with self.assertRaises(ValueError):
            CopyJob(1, True, slots, pack_u32([1]), 2, None, 2)
        session = WorkerSession(Settings(), WorkerIdentity(1, 0, "test"))
        self.addCleanup(session.close)
        with self.assertLogs("blockyard.worker"):
            session._take(Work([], [Store(9, slots, blocks)]), None, self.copier, self.pages)
        done = session.done()
        self.assertEqual(done.jobs if done else None, {9: [0, 1]})

    def test_load_names_the_group_before_the_engine_does(self) -> None:
        """The agent's LOAD begins the copy. The engine's record begins no second one."""
        self.fill(3, b"y")
        self.copy(1, True, 2, 3)
        session = WorkerSession(Settings(), WorkerIdentity(1, 0, "test"))
        self.addCleanup(session.close)
        session._scheduler = NUMBER >> 32
        slots, blocks = pack_slots([Slot(0, 2, 7)]), pack_u32([6])
        body = {"job": NUMBER + 1, "group": 1, "slots": slots, "blocks": blocks}
        link = mock.Mock(joined=False)
        link.service.return_value, link.due.return_value, link.fileno.return_value = [body], 0.0, -1
        pinner = Pinner(lambda *piece: False, lambda *piece: None)
        with mock.patch.object(self.copier, "wait"):
            session._turn(link, self.copier, self.extents, self.pages, pinner)
        self.assertEqual(self.block(6), b"yy")
        self.fill(6, b"z")
        link.service.return_value = []
        session.begin(Work([Load(NUMBER + 1, "r", slots, blocks, 1)]))
        with mock.patch.object(self.copier, "wait"):
            session._turn(link, self.copier, self.extents, self.pages, pinner)
        self.assertEqual((self.block(6), session.finished_loads()), (b"zz", ({"r"}, set())))

    def test_records_carry_their_group_between_processes(self) -> None:
        import pickle

        work = Work([Load(1, "r", b"s", b"b", 3)], [Store(2, b"s", b"b", 4), Store(3, b"s", b"b")])
        again = pickle.loads(pickle.dumps(work))
        self.assertEqual([load.group for load in again.loads], [3])
        self.assertEqual([store.group for store in again.stores], [4, ALL_GROUPS])


if __name__ == "__main__":
    unittest.main()
