"""Runs the same tests on both data planes: in Python, and in C where a compiler is."""

from __future__ import annotations

import sys
import unittest
from unittest import mock

from blockyard import native

in_c = False  # whether the running test is on the plane in C


def why_not() -> str:
    """Why the plane in C cannot run here. Empty when it can."""
    try:
        native.library()
    except native.NativeError as err:
        return str(err)
    return ""


needs_c = unittest.skipIf(why_not(), f"the data plane in C: {why_not()}")


def both(case: type[unittest.TestCase]) -> type[unittest.TestCase]:
    """Adds a class with the same tests on the plane in C to the module of a test class."""

    def set_up(self: unittest.TestCase) -> None:
        patch = mock.patch(f"{__name__}.in_c", True)
        patch.start()
        self.addCleanup(patch.stop)
        case.setUp(self)

    name = f"{case.__name__}InC"
    made = type(name, (case,), {"setUp": set_up, "__module__": case.__module__})
    setattr(sys.modules[case.__module__], name, needs_c(made))
    return case
