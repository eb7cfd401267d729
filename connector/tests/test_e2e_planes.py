"""Runs of test-vllm on both data planes: the check of a plane, and the cases of each."""

from __future__ import annotations

import unittest
from collections import Counter

from blockyard.plane import plane_for
from blockyard.settings import Settings
from e2e import planes
from e2e.planes import BOTH, C, PYTHON
from e2e.runner import case
from tests.planes import needs_c

try:
    from e2e.catalogue import CASES
except ImportError:  # the cases need numpy, pyzmq and msgspec, as vLLM does
    CASES = ()


class Check(unittest.TestCase):
    def line(self, **settings: bool) -> str:
        """What a worker with these settings logs about its plane."""
        with self.assertLogs("blockyard.plane", "INFO") as logs:
            plane_for(Settings(**settings))
        (line,) = [line for line in logs.output if planes.LOGGED in line]
        return line

    def test_the_line_of_a_worker_in_python(self) -> None:
        line = self.line(native=False)
        PYTHON.check([line], 1)
        with self.assertRaisesRegex(AssertionError, "not on the plane c"):
            C.check([line], 1)

    @needs_c
    def test_the_line_of_a_worker_in_c(self) -> None:
        line = self.line()
        C.check([line, line], 2)
        with self.assertRaisesRegex(AssertionError, "not on the plane python"):
            PYTHON.check([line], 1)
        with self.assertRaisesRegex(AssertionError, "not on the plane c"):
            C.check([line, self.line(native=False)], 2)

    def test_a_worker_without_a_line_is_noticed(self) -> None:
        line = self.line(native=False)
        for lines, workers in (([], 1), ([line], 2), ([line, line], 1)):
            with self.assertRaisesRegex(AssertionError, f"{len(lines)} lines of {workers}"):
                PYTHON.check(lines, workers)

    def test_the_environment_of_each_plane(self) -> None:
        for plane, native in ((C, True), (PYTHON, False)):
            settings = Settings.read(environ={"BLOCKYARD_NATIVE": plane.native})
            self.assertEqual(settings.native, native)


class Runs(unittest.TestCase):
    def test_each_choice_has_its_cases(self) -> None:
        other = case("other", "")(lambda bed: "")
        copying = case("copying", "")(lambda bed: "")._replace(copies=True)
        both = [other, copying]
        self.assertEqual(planes.CHOICES[0], C.name)
        self.assertEqual(planes.runs(C.name, both), [(C, both)])
        self.assertEqual(planes.runs(PYTHON.name, both), [(PYTHON, both)])
        self.assertEqual(planes.runs(BOTH, both), [(C, both), (PYTHON, [copying])])

    @unittest.skipUnless(CASES, "the cases need numpy, pyzmq and msgspec; make test-vllm has them")
    def test_the_cases_that_depend_on_the_copies(self) -> None:
        names = [one.name for one in CASES]
        self.assertEqual([name for name, count in Counter(names).items() if count > 1], [])
        copying = {one.name for one in CASES if one.copies}
        for name in ("reset-reload", "first-block-fails", "flipped-byte-disk", "engine-restart"):
            self.assertIn(name, copying)
        for shape in ("gptoss", "qwen3next"):
            for check in ("reload", "control", "load-fails", "eviction", "engine-kill"):
                self.assertIn(f"{shape}-{check}", copying)
        self.assertNotIn("events-list", copying)


if __name__ == "__main__":
    unittest.main()
