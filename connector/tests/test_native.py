"""The library of the plane in C: its build, its frames, and copies on its threads."""

from __future__ import annotations

import ctypes
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

from blockyard import frames, native, native_plane, plane
from blockyard.frames import FrameError, RegisterFields
from blockyard.mover import CpuMover
from blockyard.packed import Slot, pack_u32
from blockyard.replies import decode_body
from blockyard.settings import Settings
from blockyard.worker import WorkerIdentity, WorkerSession
from tests import planes, vectors
from tests.agentproc import AgentProcess, needs_agent, wait_until
from tests.workerrig import BLOCK, Kv, ScriptedScheduler

CONNECTOR = pathlib.Path(__file__).resolve().parent.parent
needs_compiler = unittest.skipUnless(native.compiler(), "no C compiler")


class Building(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = pathlib.Path(directory.name)
        for patch in (
            mock.patch.dict(os.environ, {"XDG_CACHE_HOME": directory.name}),
            mock.patch.object(native, "_found", None),
        ):
            patch.start()
            self.addCleanup(patch.stop)

    def test_without_a_compiler_copies_run_in_python(self) -> None:
        with (
            mock.patch.object(native, "compiler", return_value=None),
            mock.patch.object(native, "_built", return_value=None),
            self.assertLogs("blockyard.plane", "INFO") as logs,
        ):
            self.assertIsInstance(plane.plane_for(Settings()), plane.PythonPlane)
        self.assertEqual(len(logs.output), 1)
        self.assertIn("copies run in Python: no C compiler", logs.output[0])

    @needs_compiler
    def test_without_room_for_the_library_copies_run_in_python(self) -> None:
        with (
            mock.patch.object(native, "_built", return_value=None),
            mock.patch.object(native.tempfile, "mkstemp", side_effect=OSError("disk full")),
            self.assertLogs("blockyard.plane", "INFO") as logs,
        ):
            self.assertIsInstance(plane.plane_for(Settings()), plane.PythonPlane)
        self.assertIn("OSError: disk full", logs.output[0])

    @needs_compiler
    def test_a_library_that_was_cut_short_is_built_again(self) -> None:
        sources = native.source_directory()
        assert sources is not None
        path = native.cache_directory() / native.file_name(sources)
        path.write_bytes(b"")
        with mock.patch.object(native, "_built", return_value=None):
            self.assertEqual(native.library().path, path)
        self.assertGreater(path.stat().st_size, 0)

    def test_the_setting_keeps_copies_in_python(self) -> None:
        with self.assertLogs("blockyard.plane", "INFO") as logs:
            self.assertIsInstance(plane.plane_for(Settings(native=False)), plane.PythonPlane)
        self.assertIn("the setting `native` is false", logs.output[0])

    @planes.needs_c
    def test_one_line_says_that_copies_run_in_c(self) -> None:
        with self.assertLogs("blockyard.plane", "INFO") as logs:
            chosen = plane.plane_for(Settings(copy_threads=3))
        self.assertIsInstance(chosen, native_plane.NativePlane)
        self.assertEqual(len(logs.output), 1)
        self.assertRegex(logs.output[0], r"copies run in C \(.+\.so\), on 3 threads")

    @needs_compiler
    def test_processes_that_build_at_once_get_one_whole_library(self) -> None:
        program = (
            "import sys; sys.path.insert(0, sys.argv[1]); from blockyard import native;"
            "native._built = lambda directory: None; print(native.library().path)"
        )
        running = [
            subprocess.Popen(
                [sys.executable, "-c", program, str(CONNECTOR)], stdout=subprocess.PIPE, text=True
            )
            for _ in range(2)
        ]
        paths = {process.communicate(timeout=120)[0].strip() for process in running}
        self.assertEqual([process.returncode for process in running], [0, 0])
        self.assertEqual(len(paths), 1)
        (path,) = paths
        self.assertEqual(os.listdir(self.directory / "blockyard"), [pathlib.Path(path).name])

    def test_a_directory_that_others_may_write_to_is_refused(self) -> None:
        (self.directory / "blockyard").mkdir()
        (self.directory / "blockyard").chmod(0o777)
        with self.assertRaisesRegex(native.NativeError, "other users may write"):
            native.cache_directory()

    def test_a_compiler_that_fails_says_why(self) -> None:
        directory = self.directory / "sources"
        directory.mkdir()
        for name, text in (("a.c", "not C"), ("blockyard.h", ""), ("blockyard.map", "")):
            (directory / name).write_text(text)
        cc = native.compiler()
        if cc is None:
            self.skipTest("no C compiler")
        with self.assertRaisesRegex(native.NativeError, "error"):
            native.build(directory, self.directory / "out.so", cc)
        self.assertEqual(os.listdir(self.directory), ["sources"])

    def test_another_source_makes_another_name(self) -> None:
        for text in ("1", "2"):
            (self.directory / "a.c").write_text(text)
            names = {native.file_name(self.directory)}
        names.add(native.file_name(self.directory, "other"))
        (self.directory / "a.c").write_text("1")
        names.add(native.file_name(self.directory))
        self.assertEqual(len(names), 3)

    @planes.needs_c
    def test_a_library_of_another_interface_is_refused(self) -> None:
        path, has = native._load().path, native.ABI
        with (
            mock.patch.object(native, "ABI", 999),
            self.assertRaisesRegex(native.NativeError, f"interface {has}, want 999"),
        ):
            native.Library(path)

    @planes.needs_c
    def test_python_names_every_function_of_the_header(self) -> None:
        directory = native.source_directory()
        assert directory is not None
        text = (directory / "blockyard.h").read_text()
        for name in native._FUNCTIONS:
            self.assertIn(f"{name}(", text)


@planes.needs_c
class Frames(unittest.TestCase):
    """by_frame_load() accepts nothing that replies.py refuses, and reads the same values."""

    def read(self, frame: bytes) -> tuple[int, bytes, bytes] | None:
        """Job, slots and blocks of a LOAD. None: refused."""
        load = native.LoadFrame()
        if native.library().by_frame_load(frame, len(frame), ctypes.byref(load)):
            return None
        slots = ctypes.string_at(load.slots, 16 * load.count)
        return load.job, slots, ctypes.string_at(load.blocks, 4 * load.block_count)

    def reference(self, frame: bytes) -> tuple[int, bytes, bytes] | None:
        try:
            header = frames.parse_header(frame)
            body = decode_body(header.type, frame[frames.HEADER_BYTES :])
        except FrameError:
            return None
        if header.type != frames.LOAD or body is None:
            return None
        return body["job"], body["slots"], body["blocks"]

    def golden(self) -> list[bytes]:
        found = [frame for name, frame in vectors.printed() + vectors.frozen() if name == "LOAD"]
        self.assertGreater(len(found), 1)
        return found

    def test_every_golden_load_is_read(self) -> None:
        for frame in self.golden():
            self.assertEqual(self.read(frame), self.reference(frame))
            self.assertIsNotNone(self.read(frame))

    def test_other_frames_are_left_to_python(self) -> None:
        library = native.library()
        for name, frame in vectors.printed() + vectors.frozen():
            self.assertEqual(
                library.by_frame_type(frame, len(frame)), frames.parse_header(frame).type
            )
            if name != "LOAD":
                self.assertIsNone(self.read(frame), name)

    def test_mutated_loads_read_as_python_reads_them_or_not_at_all(self) -> None:
        rng = random.Random(8)
        accepted = refused = 0
        for _ in range(20_000):
            frame = bytearray(rng.choice(self.frames))
            for _ in range(rng.randrange(1, 4)):
                at = rng.randrange(len(frame))
                if rng.random() < 0.5:
                    frame[at] ^= 1 << rng.randrange(8)
                else:
                    frame[at:at] = rng.choice(
                        [b"\xa1x\x01", b"\xc0", b"\xd0\x05", b"\x91", b"\xa3job\x07", b"\xcf"]
                    )
            if rng.random() < 0.9:
                frame[12:16] = (len(frame) - 16).to_bytes(4, "little")
            got, want = self.read(bytes(frame)), self.reference(bytes(frame))
            if got is not None:
                self.assertEqual(got, want, bytes(frame).hex())
                accepted += 1
            refused += got is None
        self.assertGreater(accepted, 500)
        self.assertGreater(refused, 500)

    def setUp(self) -> None:
        self.frames = self.golden()


@planes.needs_c
@needs_agent
class Serving(unittest.TestCase):
    """A worker with the plane in C and its own mover, beside a real agent."""

    def setUp(self) -> None:
        self.agent = AgentProcess()
        self.addCleanup(self.agent.close)
        worker_id = random.SystemRandom().randrange(1, 2**63)
        self.scheduler = ScriptedScheduler(self.agent, worker_id)
        self.addCleanup(self.scheduler.close)
        self.kv = Kv(64)
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(0.005)
        settings = Settings(socket=self.agent.socket, copy_threads=2)
        self.session = WorkerSession(settings, WorkerIdentity(worker_id, 0, "test 1"))
        self.addCleanup(self.session.close)
        self.session.start(RegisterFields(64, BLOCK), self.kv.pages())
        wait_until("the worker joins", lambda: self.session.joined)

    def finish(self, job: int) -> list[int]:
        found: list[list[int]] = []

        def reported() -> bool:
            done = self.session.done()
            if done is not None and job in done.jobs:
                found.append(done.jobs[job])
            return bool(found)

        wait_until(f"job {job}", reported)
        return found[0]

    def stored(self) -> tuple[int, list[Slot], list[bytes]]:
        from blockyard.packed import pack_slots
        from blockyard.work import Store, Work

        data = [self.kv.fill(block) for block in range(24)]
        request = self.scheduler.open(range(24 * 4))
        slots = self.scheduler.grant(request, 24)
        job = self.scheduler.job()
        self.session.begin(
            Work(stores=[Store(job, pack_slots(slots), pack_u32(list(range(24))))])
        )
        self.assertEqual(self.finish(job), [1, 0])
        self.scheduler.commit(request, slots)
        return request, slots, data

    def test_engines_hooks_are_not_interrupted_for_a_load(self) -> None:
        """Loads begin without Python's lock, so the switch interval stays as it was."""
        self.assertAlmostEqual(sys.getswitchinterval(), 0.005)

    def test_the_mover_is_the_librarys(self) -> None:
        self.assertIsInstance(self.session._mover, native_plane.MemoryMover)
        self.assertIsInstance(self.session._mover, CpuMover)

    def test_a_load_begins_with_its_frame_and_every_byte_arrives(self) -> None:
        _, _, data = self.stored()
        request = self.scheduler.open(range(24 * 4))
        self.assertEqual(len(self.scheduler.lookup(request, 24)), 24)
        targets = list(range(63, 39, -1))
        self.scheduler.claim(request, targets)
        # No Work names the load, so session.wait() does not cover it.
        # The counters of bytes and time come last.
        copied = 48 * BLOCK
        wait_until("the end of the load", lambda: self.session.stats()["copied_bytes"] == copied)
        for block, want in zip(targets, data, strict=True):
            self.assertTrue(self.kv.read(block) == want, f"block {block}")
        counters = self.session.stats()
        self.assertEqual((counters["loads"], counters["loaded_blocks"]), (1, 24))
        self.assertGreater(counters["copy_us"], 0)


logging.getLogger("blockyard").addHandler(logging.NullHandler())

if __name__ == "__main__":
    unittest.main()
