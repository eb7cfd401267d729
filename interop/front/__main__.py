"""Runs the cases: python -m front [--list] [--only NAME...] [--keep].

Prints one line for each case, and before the line of a failed case the error and the ends of the
logs. The last line is

    test-front: cases=N passed=N mismatched_tokens=0

The exit status is 0 when every chosen case has passed.
"""

from __future__ import annotations

import sys

from e2e import runner
from e2e.runner import Case
from front.bed import Bed
from front.catalogue import CASES


def attempt(case: Case, bed: Bed) -> bool:
    """runner.attempt with a fresh bed after a failed case. Returns whether the case has passed."""
    passed = runner.attempt(case.name, case.run, bed) == "ok"
    if passed:
        bed.close_doors()
    else:
        bed.clear()  # a failed case may leave the servers in any state
    return passed


def run(chosen: list[Case], keep: bool) -> int:
    """Runs the cases and prints the result."""
    bed = Bed(keep)
    try:
        passed = sum(attempt(case, bed) for case in chosen)
    finally:
        bed.close()
        if keep:
            print(f"kept: {bed.dir}")
    print(f"test-front: cases={len(chosen)} passed={passed} mismatched_tokens={bed.mismatched}")
    return 0 if passed == len(chosen) and not bed.mismatched else 1


if __name__ == "__main__":
    cases, arguments = runner.choose("test-front", "The front door, end to end.", CASES)
    sys.exit(run(cases, arguments.keep))
