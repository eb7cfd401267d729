"""Extents: mappings, refusals, generation words, replaced mappings."""

from __future__ import annotations

import ctypes
import os
import pathlib
import struct
import tempfile
import unittest
from typing import Any

from blockyard.extents import Extent, Extents, ExtentError, Slot, pack_slots, unpack_slots

SLOT = 4096 * 2
DATA = 4096


def ready(number: int = 0, slots: int = 4, **changes: int) -> dict[str, Any]:
    body = {
        "extent": number,
        "slots": slots,
        "slot_bytes": SLOT,
        "data_offset": DATA,
        "file_bytes": DATA + slots * SLOT,
    }
    return {**body, **changes}


def mappings(path: str) -> int:
    return sum(path in line for line in pathlib.Path("/proc/self/maps").read_text().splitlines())


class ExtentsCase(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory(prefix="blockyard-test-")
        self.addCleanup(directory.cleanup)
        self.path = str(pathlib.Path(directory.name) / "extent")
        self.file = open(self.path, "w+b", buffering=0)
        self.addCleanup(self.file.close)
        self.file.truncate(DATA + 4 * SLOT)
        self.extents = Extents()
        self.addCleanup(self.extents.close)

    def set_word(self, index: int, generation: int) -> None:
        os.pwrite(self.file.fileno(), struct.pack("<Q", generation), 8 * index)

    def fd(self) -> int:
        return os.dup(self.file.fileno())


class Mapping(ExtentsCase):
    def test_a_slots_address_is_its_place_in_the_file(self) -> None:
        os.pwrite(self.file.fileno(), b"hello", DATA + 2 * SLOT)
        self.extents.add(ready(), self.fd())
        address = self.extents.address(0, 2)
        self.assertEqual(ctypes.string_at(address, 5), b"hello")
        ctypes.memmove(address, b"there", 5)
        self.assertEqual(os.pread(self.file.fileno(), 5, DATA + 2 * SLOT), b"there")
        self.assertEqual(address % 4096, 0)

    def test_the_descriptor_is_closed_and_none_is_kept(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        self.extents.add(ready(), self.fd())
        with self.assertRaises(ExtentError):
            self.extents.add(ready(1, file_bytes=2**30), self.fd())
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_what_does_not_fit_the_file_is_refused_and_nothing_is_mapped(self) -> None:
        size = DATA + 4 * SLOT
        for change in [
            {"file_bytes": size + 1},
            {"slots": 5, "file_bytes": size},
            {"data_offset": 8},
            {"slot_bytes": SLOT + 1},
        ]:
            with self.subTest(change), self.assertRaises(ExtentError):
                self.extents.add({**ready(), **change}, self.fd())
        self.assertEqual(mappings(self.path), 0)
        self.assertEqual(len(self.extents), 0)

    def test_slots_of_another_size_than_the_sessions_are_refused(self) -> None:
        extents = Extents(slot_bytes=4096)
        with self.assertRaisesRegex(ExtentError, "slot_bytes"):
            extents.add(ready(), self.fd())

    def test_unknown_extents_and_slots_are_named(self) -> None:
        self.extents.add(ready(), self.fd())
        for extent, index in [(1, 0), (0, 4), (0, -1)]:
            with self.assertRaisesRegex(ExtentError, f"slot {index} of extent {extent}"):
                self.extents.address(extent, index)

    def test_a_forked_child_does_not_have_the_memory(self) -> None:
        self.extents.add(ready(), self.fd())
        child = os.fork()
        if not child:
            os._exit(mappings(self.path))
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)

    def test_what_is_announced_again_stays_as_it_is(self) -> None:
        """A restarted agent announces all its extents again. None needs a new mapping or pin."""
        mapped: list[int] = []
        extents = Extents(on_map=lambda extent: mapped.append(extent.file_bytes))
        self.addCleanup(extents.close)
        before = len(os.listdir("/proc/self/fd"))
        for announced in (1, 2):
            extents.begin_session(SLOT)
            extents.add(ready(), self.fd())
            self.assertEqual(extents.announced, announced, "jobs that wait for it look again")
        self.assertEqual(len(mapped), 1)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_a_file_that_has_shrunk_is_not_taken_for_the_mapped_one(self) -> None:
        self.extents.add(ready(), self.fd())
        self.file.truncate(DATA)
        with self.assertRaisesRegex(ExtentError, "file_bytes"):
            self.extents.add(ready(), self.fd())

    def test_another_geometry_is_mapped_anew_and_the_old_stays_a_while(self) -> None:
        self.extents.add(ready(), self.fd())
        old = self.extents.address(0, 0)
        self.extents.add(ready(slots=3), self.fd())
        new = self.extents.address(0, 0)
        self.assertNotEqual(old, new)
        ctypes.memmove(old, b"same", 4)
        self.assertEqual(ctypes.string_at(new, 4), b"same")
        self.assertEqual(mappings(self.path), 2)
        self.extents.release_old()
        self.assertEqual(mappings(self.path), 1)
        self.assertEqual(ctypes.string_at(new, 4), b"same")
        self.extents.close()
        self.assertEqual(mappings(self.path), 0)


class Sessions(ExtentsCase):
    def test_an_extent_goes_two_sessions_after_the_last_that_had_it(self) -> None:
        self.extents.begin_session(SLOT)
        self.extents.add(ready(), self.fd())
        self.extents.begin_session(SLOT)
        self.extents.release_old()
        self.assertEqual(mappings(self.path), 1, "jobs of the last session may still come")
        self.announce_another()
        self.extents.begin_session(SLOT)
        self.extents.release_old()
        self.assertEqual(mappings(self.path), 0)

    def announce_another(self) -> None:
        with tempfile.TemporaryFile() as other:
            other.truncate(DATA + 4 * SLOT)
            self.extents.add(ready(1), os.dup(other.fileno()))

    def test_sessions_that_end_before_they_announce_anything_take_nothing_away(self) -> None:
        self.extents.begin_session(SLOT)
        self.extents.add(ready(), self.fd())
        for _ in range(3):
            self.extents.begin_session(SLOT)
            self.extents.release_old()
        self.extents.address(0, 3)

    def test_extents_of_sessions_that_were_left_go_when_no_job_comes_any_more(self) -> None:
        self.extents.begin_session(SLOT)
        self.extents.add(ready(), self.fd())
        self.assertFalse(self.extents.stale)
        self.extents.begin_session(SLOT)
        self.announce_another()
        self.assertTrue(self.extents.stale)
        self.extents.retire()
        self.assertFalse(self.extents.stale)
        self.extents.release_old()
        self.assertEqual(mappings(self.path), 0)
        self.extents.address(1, 0)

    def test_memory_that_a_session_has_left_is_not_touched(self) -> None:
        """The agent may have freed the memory. A touch would allocate it again."""
        self.extents.begin_session(SLOT)
        self.extents.add(ready(), self.fd())
        self.extents.begin_session(SLOT)
        self.assertFalse(self.extents.populate(4096))
        self.assertEqual(os.fstat(self.file.fileno()).st_blocks, 0)

    def test_an_extent_that_every_session_announces_stays(self) -> None:
        for _ in range(4):
            self.extents.begin_session(SLOT)
            self.extents.add(ready(), self.fd())
            self.extents.release_old()
            self.assertEqual(mappings(self.path), 1)
        self.extents.address(0, 3)

    def test_a_session_with_slots_of_another_size_is_not_mixed_up(self) -> None:
        self.extents.begin_session(4096)
        with self.assertRaisesRegex(ExtentError, "slot_bytes"):
            self.extents.add(ready(), self.fd())

    def test_another_file_under_a_known_number_is_never_taken_for_it(self) -> None:
        self.extents.add(ready(), self.fd())
        with tempfile.TemporaryFile() as other:
            other.truncate(DATA + 4 * SLOT)
            with self.assertRaisesRegex(ExtentError, "another file"):
                self.extents.add(ready(), os.dup(other.fileno()))
            with self.assertRaises(ExtentError):
                self.extents.address(0, 0)
            self.extents.add(ready(), os.dup(other.fileno()))  # announced by the next connection

    def test_all_of_an_extent_is_touched_once_in_pieces(self) -> None:
        self.assertFalse(self.extents.populate(4096))
        self.extents.add(ready(), self.fd())
        pieces = 0
        while self.extents.populate(3 * 4096):
            pieces += 1
        self.assertIn(pieces, (1, 3), "36 KiB in pieces of 12, or at once on an old kernel")

    def test_addresses_need_room_for_the_share(self) -> None:
        self.extents.add(ready(), self.fd())
        slots = [Slot(0, 3, 0), Slot(0, 1, 0)]
        wanted = [self.extents.address(0, 3), self.extents.address(0, 1)]
        self.assertEqual(self.extents.addresses(slots, SLOT), wanted)
        with self.assertRaisesRegex(ExtentError, "want"):
            self.extents.addresses(slots, SLOT + 1)


class Generations(ExtentsCase):
    def test_the_number_of_leading_slots_that_match_is_returned(self) -> None:
        for index in range(4):
            self.set_word(index, 10 + index)
        self.extents.add(ready(), self.fd())
        slots = [Slot(0, index, 10 + index) for index in range(4)]
        self.assertEqual(self.extents.generations_match(slots), 4)
        self.set_word(2, 99)
        self.assertEqual(self.extents.generations_match(slots), 2)
        self.assertEqual(self.extents.generations_match([]), 0)

    def test_slots_that_are_not_mapped_do_not_match(self) -> None:
        self.set_word(0, 1)
        self.extents.add(ready(), self.fd())
        self.assertEqual(self.extents.generations_match([Slot(0, 0, 1), Slot(1, 0, 1)]), 1)
        self.assertEqual(self.extents.generations_match([Slot(0, 4, 0)]), 0)

    def test_generations_of_64_bits_are_compared_whole(self) -> None:
        self.set_word(0, 2**64 - 1)
        self.extents.add(ready(), self.fd())
        self.assertEqual(self.extents.generations_match([Slot(0, 0, 2**64 - 1)]), 1)
        self.assertEqual(self.extents.generations_match([Slot(0, 0, 2**32 - 1)]), 0)

    def test_slots_pack_and_unpack(self) -> None:
        slots = [Slot(1, 2, 3)]
        self.assertEqual(unpack_slots(pack_slots(slots)), slots)


class Devices(ExtentsCase):
    def test_every_mapping_is_shown_to_the_device_once_and_taken_back_once(self) -> None:
        calls: list[tuple[str, Extent]] = []

        def unmap(extent: Extent) -> None:
            calls.append(("unmap", extent))
            extent.unmap()

        extents = Extents(on_map=lambda e: calls.append(("map", e)), on_unmap=unmap)
        extents.add(ready(), self.fd())
        extents.add(ready(slots=3), self.fd())
        extents.release_old()
        extents.close()
        self.assertEqual([c[0] for c in calls], ["map", "map", "unmap", "unmap"])
        self.assertEqual([c[1] for c in calls[:2]], [c[1] for c in calls[2:]])
        self.assertEqual(mappings(self.path), 0)

    def test_who_is_given_a_mapping_back_may_end_it_later(self) -> None:
        given: list[Extent] = []
        extents = Extents(on_unmap=given.append)
        extents.add(ready(), self.fd())
        extents.close()
        self.assertEqual((len(extents), mappings(self.path)), (0, 1))
        given[0].unmap()
        self.assertEqual(mappings(self.path), 0)

    def test_an_extent_that_the_device_refuses_is_not_mapped(self) -> None:
        def refuse(extent: Extent) -> None:
            raise OSError("no")

        extents = Extents(on_map=refuse)
        with self.assertRaises(OSError):
            extents.add(ready(), self.fd())
        self.assertEqual(len(extents), 0)
        self.assertEqual(mappings(self.path), 0)


if __name__ == "__main__":
    unittest.main()
