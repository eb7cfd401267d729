"""Pinner: pieces, waits, released memory and failures."""

from __future__ import annotations

import mmap
import os
import pathlib
import tempfile
import threading
import unittest
from unittest import mock

from blockyard import pinner as pinner_module
from blockyard.extents import Extents
from blockyard.pinner import Pinner, pieces_of

PAGE = mmap.PAGESIZE
SLOTS = 5
SECONDS = 20.0


class Device:
    """A device with a gate. `at_gate` has one permit for each piece that waits at the gate."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, int, int]] = []
        self.pinned: dict[int, int] = {}
        self.gate = threading.Semaphore(0)
        self.at_gate = threading.Semaphore(0)
        self.refused: set[int] = set()  # on_map raises
        self.unpinnable: set[int] = set()  # on_map returns False

    def _pass(self, kind: str, address: int, size: int) -> None:
        self.at_gate.release()
        if not self.gate.acquire(timeout=SECONDS):
            raise AssertionError("the gate was never opened")
        self.calls.append((kind, address, size))

    def on_map(self, address: int, size: int) -> bool:
        self._pass("pin", address, size)
        if address in self.refused:
            raise RuntimeError("refused by the test")
        if address in self.unpinnable:
            return False
        assert address not in self.pinned
        self.pinned[address] = size
        return True

    def on_unmap(self, address: int, size: int) -> None:
        self._pass("unpin", address, size)
        assert self.pinned.pop(address) == size

    def open(self, pieces: int = 100) -> None:
        self.gate.release(pieces)

    def arrived(self) -> bool:
        return self.at_gate.acquire(timeout=SECONDS)


class PinnerCase(unittest.TestCase):
    piece_bytes = 2 * PAGE  # two slots

    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="blockyard-test-")
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        patch = mock.patch.object(pinner_module, "PIECE_BYTES", self.piece_bytes)
        patch.start()
        self.addCleanup(patch.stop)
        self.device = Device()
        self.pinner = Pinner(self.device.on_map, self.device.on_unmap)
        self.extents = Extents(on_map=self.pinner.add, on_unmap=self.pinner.release)
        self.addCleanup(self.end)

    def end(self) -> None:
        self.device.open()
        self.extents.close()
        self.assertTrue(self.pinner.close(SECONDS))
        self.assertEqual((self.device.pinned, self.mapped()), ({}, 0))

    def mapped(self) -> int:
        """The number of extents that this process has mapped."""
        maps = pathlib.Path("/proc/self/maps").read_text()
        return sum(self.directory in line for line in maps.splitlines())

    def add(self, number: int, slot: int = PAGE) -> None:
        size = PAGE + SLOTS * slot
        path = f"{self.directory}/{number}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.truncate(fd, size)
        ready = {"extent": number, "slots": SLOTS, "slot_bytes": slot}
        self.extents.add({**ready, "data_offset": PAGE, "file_bytes": size}, fd)

    def wait_pinned(self) -> None:
        self.pinner.start()
        self.assertTrue(self.pinner._idle.wait(SECONDS))


class Pieces(PinnerCase):
    def test_a_piece_has_whole_slots_and_the_pieces_have_all(self) -> None:
        self.add(0)
        data = self.extents.address(0, 0)
        want = [(data, 2 * PAGE), (data + 2 * PAGE, 2 * PAGE), (data + 4 * PAGE, PAGE)]
        self.assertEqual(pieces_of(self.extents.find(0, 0)), want)
        self.device.open()
        self.wait_pinned()
        self.assertEqual(self.device.calls, [("pin", *piece) for piece in want])

    def test_a_slot_larger_than_a_piece_is_a_piece(self) -> None:
        self.add(0, slot=3 * PAGE)
        sizes = [size for _, size in pieces_of(self.extents.find(0, 0))]
        self.assertEqual(sizes, [3 * PAGE] * SLOTS)

    def test_slots_that_share_pages_are_one_piece_with_the_header(self) -> None:
        self.add(0, slot=PAGE // 2)
        extent = self.extents.find(0, 0)
        self.assertEqual(pieces_of(extent), [(extent.address, extent.file_bytes)])


class Waiting(PinnerCase):
    def test_an_extent_is_there_before_it_is_pinned(self) -> None:
        self.add(0)
        self.pinner.start()
        self.assertTrue(self.device.arrived())
        self.add(1)  # returns while the device pins a piece of the first
        self.assertEqual((len(self.extents), self.device.pinned), (2, {}))

    def test_nothing_is_pinned_before_all_is_mapped(self) -> None:
        self.device.open()
        for number in range(3):
            self.add(number)
        self.assertEqual((self.mapped(), self.device.calls), (3, []))
        self.wait_pinned()
        self.assertEqual(sum(self.device.pinned.values()), 3 * SLOTS * PAGE)

    def test_there_is_no_thread_while_there_is_nothing_to_do(self) -> None:
        self.device.open()
        self.add(0)
        self.wait_pinned()
        names = [thread.name for thread in threading.enumerate()]
        self.assertLessEqual(names.count("blockyard-pin"), 1)  # the thread may be ending
        self.assertFalse(self.pinner._running)


class AllPinned(PinnerCase):
    def test_all_is_pinned_with_the_last_piece(self) -> None:
        self.assertTrue(self.pinner.all_pinned)
        self.assertIsNone(self.pinner.pause())
        self.add(0)
        self.assertFalse(self.pinner.all_pinned)
        self.pinner.start()
        for _ in range(3):
            self.assertTrue(self.device.arrived())
            self.assertFalse(self.pinner.all_pinned)
            self.assertGreater(self.pinner.pause(), 0)
            self.device.open(1)
        self.wait_pinned()
        self.assertTrue(self.pinner.all_pinned)
        self.assertIsNone(self.pinner.pause())

    def test_an_extent_that_is_mapped_later_counts_at_once(self) -> None:
        self.device.open(3)
        self.add(0)
        self.wait_pinned()
        self.add(1)
        self.assertFalse(self.pinner.all_pinned)
        self.device.open(3)
        self.wait_pinned()
        self.assertTrue(self.pinner.all_pinned)

    def test_a_released_extent_does_not_count(self) -> None:
        self.device.open(3)
        self.add(0)
        self.wait_pinned()
        self.add(1)
        self.pinner.start()
        self.assertTrue(all(self.device.arrived() for _ in range(4)))
        self.extents.close()  # the thread waits in on_map for a piece of extent 1
        self.assertTrue(self.pinner.all_pinned)
        self.device.open()
        self.assertTrue(self.pinner.close(SECONDS))
        self.assertTrue(self.pinner.all_pinned)
        self.add(2)
        self.assertFalse(self.pinner.all_pinned)

    def test_an_extent_with_a_piece_that_cannot_be_pinned_counts_until_its_release(self) -> None:
        self.device.open()
        for failure, logs in (
            (self.device.refused, self.assertLogs),
            (self.device.unpinnable, self.assertNoLogs),  # the mover has said it
        ):
            self.add(0)
            failure.add(self.extents.address(0, 0) + 2 * PAGE)
            with logs("blockyard.pinner", "ERROR"):
                self.wait_pinned()
            self.assertFalse(self.pinner.all_pinned)
            self.extents.close()
            self.assertTrue(self.pinner.close(SECONDS))
            self.assertTrue(self.pinner.all_pinned)
            failure.clear()

    def test_a_device_that_needs_no_pinned_memory_never_waits(self) -> None:
        pinner = Pinner(self.device.on_map, self.device.on_unmap, pins=False)
        self.pinner = pinner
        self.extents = Extents(on_map=pinner.add, on_unmap=pinner.release)
        self.add(0)
        pinner.start()
        self.assertTrue(self.device.arrived())
        self.assertTrue(pinner.all_pinned)
        self.assertIsNone(pinner.pause())


class Release(PinnerCase):
    def test_who_lets_go_does_not_wait_and_memory_goes_when_it_is_unpinned(self) -> None:
        self.add(0)
        self.device.open(3)
        self.wait_pinned()
        self.extents.close()
        self.assertFalse(self.pinner.close(0.0))
        self.assertEqual((len(self.extents), self.mapped()), (0, 1))
        self.device.open()
        self.assertTrue(self.pinner.close(SECONDS))
        self.assertEqual((self.device.pinned, self.mapped()), ({}, 0))

    def test_what_was_not_pinned_yet_is_not_pinned_any_more(self) -> None:
        self.add(0)
        self.add(1)
        self.pinner.start()
        self.assertTrue(self.device.arrived())
        self.extents.close()
        self.device.open()
        self.assertTrue(self.pinner.close(SECONDS))
        self.assertEqual([call[0] for call in self.device.calls], ["pin", "unpin"])
        self.assertEqual(self.mapped(), 0)

    def test_memory_that_is_let_go_is_unpinned_before_more_is_pinned(self) -> None:
        """Both count toward the limit of locked memory."""
        self.device.open(3)
        self.add(0)
        self.wait_pinned()
        self.extents.begin_session(PAGE)
        self.extents.begin_session(PAGE)
        self.add(1)
        self.extents.retire()
        self.extents.release_old()
        self.device.open()
        self.wait_pinned()
        kinds = [call[0] for call in self.device.calls]
        self.assertEqual(kinds, ["pin"] * 3 + ["unpin"] * 3 + ["pin"] * 3)


class Failures(PinnerCase):
    def test_a_piece_that_cannot_be_pinned_ends_it_for_its_extent_alone(self) -> None:
        self.device.open()
        self.add(0)
        self.add(1)
        first = self.extents.address(0, 0)
        self.device.refused = {first + 2 * PAGE}
        with self.assertLogs("blockyard.pinner", "ERROR") as logs:
            self.wait_pinned()
        self.assertEqual(len(logs.output), 1)
        self.assertIn("extent 0", logs.output[0])
        self.assertEqual(sum(self.device.pinned.values()), 2 * PAGE + SLOTS * PAGE)

    def test_a_piece_that_was_not_pinned_is_not_unpinned(self) -> None:
        """The driver would refuse, and the extent would stay mapped."""
        self.device.open()
        self.add(0)
        first, middle, last = pieces_of(self.extents.find(0, 0))
        self.device.unpinnable = {middle[0]}
        self.wait_pinned()
        self.extents.close()
        self.assertTrue(self.pinner.close(SECONDS))
        pins = [("pin", *piece) for piece in (first, middle, last)]
        self.assertEqual(self.device.calls, [*pins, ("unpin", *last), ("unpin", *first)])
        self.assertEqual(self.mapped(), 0)

    def test_an_extent_with_a_piece_that_cannot_be_unpinned_stays_mapped(self) -> None:
        """The device has pins at its addresses, so no other memory may get these addresses."""
        self.device.open()
        self.add(0)
        self.add(1)
        self.wait_pinned()
        stuck = self.extents.find(0, 0)
        pinned = self.device.pinned

        def on_unmap(address: int, size: int) -> None:
            pinned.pop(address)
            if stuck.data <= address < stuck.data + SLOTS * PAGE:
                raise RuntimeError("refused by the test")

        self.pinner._on_unmap = on_unmap
        with self.assertLogs("blockyard.pinner", "ERROR") as logs:
            self.extents.close()
            self.assertTrue(self.pinner.close(SECONDS))
        self.assertEqual((pinned, self.mapped()), ({}, 1))
        self.assertEqual(len(logs.output), 1, "one reason is said once")
        stuck.unmap()

    def test_a_process_without_room_for_a_thread_pins_later(self) -> None:
        self.device.open()
        self.add(0)
        with (
            mock.patch("threading.Thread.start", side_effect=RuntimeError("no thread")),
            self.assertLogs("blockyard.pinner", "WARNING"),
        ):
            self.pinner.start()
        self.assertEqual(self.device.calls, [])
        self.wait_pinned()
        self.assertEqual(len(self.device.calls), 3)


if __name__ == "__main__":
    unittest.main()
