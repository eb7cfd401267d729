"""The data planes that a run tests, and the check that an engine copies on the plane of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from e2e.runner import Case

#: Pattern of the line that every worker logs at its start, see blockyard/plane.py.
LOGGED = r"copies run in "


class Plane(NamedTuple):
    """A data plane. native: BLOCKYARD_NATIVE of its engines. said: part of the worker's line."""

    name: str
    native: str
    said: str

    def check(self, lines: Sequence[str], workers: int) -> None:
        """AssertionError unless `workers` workers have logged that they copy on this plane.

        lines: the log lines of one engine that match LOGGED.
        """
        other = [line for line in lines if self.said not in line]
        assert not other, f"not on the plane {self.name}: {other}"
        assert len(lines) == workers, f"{len(lines)} lines of {workers} workers: {list(lines)}"


C = Plane("c", "1", "copies run in C ")
PYTHON = Plane("python", "0", "copies run in Python: ")
BOTH = "both"
CHOICES = (C.name, PYTHON.name, BOTH)  # of --plane, the default first


def runs(choice: str, cases: Sequence[Case]) -> list[tuple[Plane, list[Case]]]:
    """The planes of a choice, and the cases that run on each.

    One plane runs all cases. With BOTH, the plane in C runs all, and the plane in Python those that
    depend on the copies.
    """
    if choice == BOTH:
        return [(C, list(cases)), (PYTHON, [case for case in cases if case.copies])]
    return [(plane, list(cases)) for plane in (C, PYTHON) if plane.name == choice]
