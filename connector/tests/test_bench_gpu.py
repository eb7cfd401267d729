"""bench.gpu (`make test-gpu`) with the fake CUDA driver, in small."""

from __future__ import annotations

import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import unittest
from typing import Any
from unittest import mock

from bench import gpu_kill
from bench.gpu_driver import Driver, Wrong
from bench.gpu_memory import random_bytes
from blockyard import native
from blockyard.native_plane import NativePlane
from tests import fakedriver, planes

CONNECTOR = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = CONNECTOR.parent / "scripts" / "test-gpu.sh"
SMALL = "--mib 1 --layers 4 --pages 4 16 --rounds 1 --patience 0.02".split()
SECONDS = 300
LAYOUTS = [
    "layer first",
    "layer first, with gaps",
    "block first",
    "block first, with gaps",
    "two groups in a slot",
    "two groups apart",
]


@planes.needs_c
class Program(unittest.TestCase):
    def setUp(self) -> None:
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.json = pathlib.Path(directory.name) / "out.json"

    def run_it(self, *arguments: str, fault: str = "", **env: str) -> Any:
        """Runs the program with the fake driver."""
        given = {**os.environ, "PYTHONPATH": str(CONNECTOR), **env}
        given.pop("FAKECUDA_FAULT", None)
        if fault:
            given["FAKECUDA_FAULT"] = fault
        return subprocess.run(
            [sys.executable, "-m", "bench.gpu", "--json", str(self.json)]
            + ["--driver", fakedriver.path(), *SMALL, *arguments],
            env=given,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )

    def test_every_row_is_equal_and_the_fake_is_named(self) -> None:
        done = self.run_it()
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        lines = done.stdout.splitlines()
        self.assertEqual(lines[0], "fake libcuda.so.1 without a GPU")
        self.assertEqual(lines[-1], "fake libcuda.so.1 without a GPU: 12 rows equal, 0 failed")
        found = json.loads(self.json.read_text())
        self.assertEqual((found["device"], found["failed"]), (lines[0], []))
        self.assertEqual(
            [(row["page_kib"], row["layout"], row["bytes"]) for row in found["bandwidth"]],
            [(n, layout, "equal") for n in (4, 16) for layout in ("layer first", "block first")],
        )
        for row in found["bandwidth"]:
            for key in ("store", "load", "unpinned_load", "pin"):
                self.assertGreater(row[key], 0, key)
        self.assertGreater(min(found["plain"].values()), 0)
        checked = [
            {"layout": name, "unpinned": "equal", "pinned": "equal", "behind_a_step": "equal"}
            for name in LAYOUTS
        ]
        self.assertEqual(found["contents"], checked)
        self.assertEqual(
            found["kills"], [{"killed": side, "bytes": "equal"} for side in ("engine", "agent")]
        )
        for name in (*LAYOUTS, "the engine", "the agent"):
            self.assertTrue(any(line.startswith(name) for line in lines), name)

    def test_a_driver_that_copies_wrongly_fails_every_row(self) -> None:
        done = self.run_it(fault="damages")
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
        self.assertIn("0 rows equal, 12 failed", done.stdout)
        self.assertEqual(done.stdout.count("wrong from byte"), 12, done.stdout)
        self.assertEqual(len(json.loads(self.json.read_text())["failed"]), 12)

    def test_copies_that_do_not_wait_for_their_step_are_found(self) -> None:
        # The step does not run for so long, unless a copy ends first.
        done = self.run_it("--patience", "60", fault="overtakes")
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
        failed = json.loads(self.json.read_text())["failed"]
        self.assertEqual(
            [text.split(": ")[0] for text in failed], [f"contents, {name}" for name in LAYOUTS]
        )
        for text in failed:
            self.assertIn("ended before the step", text)

    def test_one_line_says_what_is_missing(self) -> None:
        done = self.run_it("--driver", "/nowhere/libcuda.so.1")
        self.assertEqual(done.returncode, 0)
        self.assertRegex(done.stdout, r"^skip  make test-gpu: no CUDA driver \(.*nowhere.*\)\n$")
        with tempfile.TemporaryDirectory() as empty:
            done = self.run_it(PATH=empty, XDG_CACHE_HOME=empty, CC="")
        self.assertEqual(
            (done.returncode, done.stdout), (0, "skip  make test-gpu: no C compiler\n")
        )
        self.assertFalse(self.json.exists())

    def test_sizes_that_are_too_small_are_refused(self) -> None:
        done = self.run_it("--layers", "256")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertIn("--mib must have two blocks of each page size: at least 16", done.stderr)

    def test_the_script_says_that_there_is_no_python(self) -> None:
        with tempfile.TemporaryDirectory() as empty:
            done = subprocess.run(
                ["/bin/bash", str(SCRIPT)],
                env={"PATH": empty},
                capture_output=True,
                text=True,
                timeout=SECONDS,
                check=False,
            )
        self.assertEqual(
            (done.returncode, done.stdout), (0, "skip  make test-gpu: no python3\n"), done.stderr
        )


class Content(unittest.TestCase):
    def test_there_are_random_bytes_for_the_default_size(self) -> None:
        self.assertEqual(len(random_bytes(random.Random(1), 256 << 20)), 256 << 20)


@planes.needs_c
class Kills(unittest.TestCase):
    """Children that do what they must not."""

    def setUp(self) -> None:
        self.driver = Driver(fakedriver.path())
        self.addCleanup(self.driver.call, "cuStreamDestroy_v2", self.driver.stream)
        self.plane = NativePlane(native.library())
        self.sizes = gpu_kill.Sizes(4, 4096, 1 << 17)

    def use(self, program: str) -> None:
        """Replaces the children's program. It begins with the arguments in `given`."""
        begin = "import os, socket, sys\n_, role, *given = sys.argv\n"
        command = (sys.executable, "-c", begin + program)
        patch = mock.patch.object(gpu_kill, "COMMAND", command)
        patch.start()
        self.addCleanup(patch.stop)

    def test_an_engine_that_writes_where_it_only_reads_is_found(self) -> None:
        self.use(
            "os.pwrite(int(given[1]), b'x' * 8, 4096 + 100)\n"
            "print('copying', flush=True)\nsys.stdin.read()"
        )
        with self.assertRaisesRegex(Wrong, "slots that the engine only read: wrong from byte 100 "):
            gpu_kill.killed_engine(self.driver, self.plane, self.sizes)

    def test_an_agent_with_other_bytes_is_found(self) -> None:
        self.use(
            "from bench.gpu_kill import agent\n"
            "to, slots, size, seed = map(int, given)\n"
            "agent(to, slots, size, seed + 1)"
        )
        with self.assertRaisesRegex(Wrong, "the KV: wrong from byte"):
            gpu_kill.killed_agent(self.driver, self.plane, self.sizes)

    def test_children_that_end_by_themselves_are_found(self) -> None:
        self.use("")
        for run in (gpu_kill.killed_engine, gpu_kill.killed_agent):
            with self.assertRaisesRegex(RuntimeError, "has ended by itself"):
                run(self.driver, self.plane, self.sizes)


if __name__ == "__main__":
    unittest.main()
