"""Threads on the processors near a GPU, with a copy of sysfs and real affinities."""

from __future__ import annotations

import logging
import os
import pathlib
import tempfile
import threading
import unittest
from unittest import mock

from blockyard import near
from blockyard.frames import RegisterFields
from blockyard.mover import CpuMover
from blockyard.settings import Settings
from blockyard.worker import WorkerIdentity, WorkerSession
from tests import planes
from tests.workerrig import Kv

ADDRESS = "0000:3b:00.0"
OWN = os.sched_getaffinity(0)
ONE = max(OWN)


class Near(unittest.TestCase):
    def setUp(self) -> None:
        held = tempfile.TemporaryDirectory()
        self.addCleanup(held.cleanup)
        self.root = held.name
        self.list_of(str(ONE))

    def list_of(self, text: str) -> None:
        """Writes the list of the processors near the device."""
        directory = pathlib.Path(self.root, "bus/pci/devices", ADDRESS)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "local_cpulist").write_text(text + "\n")

    def affinity(self, device: str = "cuda:0", address: str = ADDRESS) -> set[int]:
        """The processors of a thread that starts near a device."""
        found: list[set[int]] = []
        with near.near(device, self.root, lambda number: address):
            thread = threading.Thread(target=lambda: found.append(os.sched_getaffinity(0)))
            thread.start()
            thread.join()
        self.assertEqual(os.sched_getaffinity(0), OWN, "the caller's own processors")
        return found[0]

    def test_lists_of_processors(self) -> None:
        for text, want in (("0", {0}), ("0-2,8", {0, 1, 2, 8}), ("3,5-6", {3, 5, 6})):
            self.list_of(text)
            self.assertEqual(near.processors_near(ADDRESS, self.root), want)

    @unittest.skipIf(len(OWN) < 2, "one processor")
    def test_a_thread_runs_near_its_device_and_one_line_says_so(self) -> None:
        with self.assertLogs("blockyard.near", "INFO") as logs:
            self.assertEqual(self.affinity(), {ONE})
        self.assertEqual(len(logs.output), 1)
        self.assertIn(f"near cuda:0: {ONE}", logs.output[0])

    @unittest.skipIf(len(OWN) < 2, "one processor")
    def test_a_system_that_refuses_the_change_costs_one_line(self) -> None:
        refused = PermissionError(1, "refused")
        with (
            mock.patch.object(os, "sched_setaffinity", side_effect=refused),
            self.assertLogs("blockyard.near", "INFO") as logs,
        ):
            self.assertEqual(self.affinity(), OWN)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("refused", logs.output[0])

    def test_nothing_changes_and_at_most_one_line_says_why(self) -> None:
        everywhere = ",".join(map(str, OWN))
        for text, device, address, lines in (
            (everywhere, "cuda:0", ADDRESS, 0),  # one memory node
            (str(max(OWN) + 1), "cuda:0", ADDRESS, 1),  # the process has no processor there
            ("", "cuda:0", ADDRESS, 1),  # not a list
            (str(ONE), "cuda:0", "0000:00:00.0", 1),  # a device without an entry
            (str(ONE), "cpu", ADDRESS, 0),
        ):
            with self.subTest(text=text, device=device, address=address):
                self.list_of(text)
                with self.assertLogs("blockyard.near", "INFO") as logs:
                    logging.getLogger("blockyard.near").info("first")
                    self.assertEqual(self.affinity(device, address), OWN)
                self.assertEqual(len(logs.output) - 1, lines, logs.output)

    def test_without_a_driver_nothing_changes(self) -> None:
        with (
            mock.patch.object(near, "DRIVER", "libno-such-driver.so.1"),
            self.assertLogs("blockyard.near", "INFO") as logs,
            near.near("cuda:0", self.root),
        ):
            self.assertEqual(os.sched_getaffinity(0), OWN)
        self.assertIn("libno-such-driver", logs.output[0])

    def test_the_callers_processors_come_back_after_an_exception(self) -> None:
        with (
            self.assertRaisesRegex(ValueError, "x"),
            near.near("cuda:0", self.root, lambda number: ADDRESS),
        ):
            raise ValueError("x")
        self.assertEqual(os.sched_getaffinity(0), OWN)


@unittest.skipIf(len(OWN) < 2, "one processor")
class Sessions(unittest.TestCase):
    """The threads of a WorkerSession, whichever plane makes them."""

    def threads(self, native: bool) -> list[set[int]]:
        """The processors of each thread that a session near one processor starts."""
        kv = Kv(8)
        before = set(os.listdir("/proc/self/task"))
        session = WorkerSession(
            Settings(socket="/no/agent.sock", native=native, copy_threads=2),
            WorkerIdentity(1, 0, "test"),
            None if native else CpuMover,
        )
        self.addCleanup(session.close)
        with mock.patch.object(near, "_wanted", lambda *args: {ONE}):
            pages = kv.pages()
            session.start(RegisterFields(8, pages.share_bytes, 0), pages)
        new = set(os.listdir("/proc/self/task")) - before
        self.assertEqual(os.sched_getaffinity(0), OWN)
        return [os.sched_getaffinity(int(thread)) for thread in new]

    def test_python(self) -> None:
        self.assertEqual(self.threads(native=False), [{ONE}])

    @planes.needs_c
    def test_c(self) -> None:
        # The session's thread, two that copy, and one that begins LOADs.
        self.assertEqual(self.threads(native=True), [{ONE}] * 4)


if __name__ == "__main__":
    unittest.main()
