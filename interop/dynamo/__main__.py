"""Runs the cases: PYTHONPATH=connector python interop/dynamo [--list] [--only NAME...] [--keep].

Prints one line for each case, and before the line of a failed case the error and the ends of the
logs. The last line is

    N passed, 0 failed

The exit status is 0 when no case failed. A case that cannot run with these binaries prints the
reason, and counts as failed without --allow-skips.
"""

from __future__ import annotations

import sys

from e2e import runner
from live import cases_ours, cases_selection, cases_worker
from live.testbed import TestBed, default_binaries

CASES = [*cases_worker.CASES, *cases_ours.CASES, *cases_selection.CASES]


def attempt(case: runner.Case, keep: bool) -> str:
    """runner.attempt with a bed of its own."""
    bed = TestBed(*default_binaries())
    try:
        result = runner.attempt(case.name, case.run, bed)
    finally:
        bed.close(keep)
    if keep:
        print(f"      kept: {bed.dir}")
    return result


def main() -> int:
    """Runs the cases of the command line."""
    flags = {"--allow-skips": "a skipped case is no failure"}
    cases, args = runner.choose("test-dynamo", "Test with a real Dynamo.", CASES, flags)
    results = [attempt(case, args.keep) for case in cases]
    skipped = results.count("skip")
    failed = results.count("FAIL") + (0 if args.allow_skips else skipped)
    if skipped:
        print(f"{skipped} could not run")
    print(f"{results.count('ok')} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
