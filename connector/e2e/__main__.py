"""Runs the cases: python -m e2e [--list] [--only NAME...] [--keep].

Prints one line for each case, and before the line of a failed case the error and the ends of the
logs. The last lines are

    test-vllm: cases=N passed=N skipped=0 loads=N stores=N control=detected hybrid_models=4
    N passed, 0 failed

Loads and stores are blocks. Cases that --only omits count as skipped, and so do cases that cannot
run on this machine. Every run begins with the control. The exit status is 0 when the control has
detected damaged blocks and every other case has passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from e2e import runner
from e2e.case import SharedTestBed
from e2e.cases_faults import control
from e2e.catalogue import CASES
from e2e.runner import Case


def attempt(name: str, run: Callable[[SharedTestBed], str], bed: SharedTestBed) -> str:
    """runner.attempt with a fresh bed after a case that is not ok."""
    result = runner.attempt(name, run, bed)
    if result != "ok":
        bed.clear()  # a failed case may leave the shared engines in any state
    return result


def run(chosen: list[Case], keep: bool) -> int:
    """Runs the control and the chosen cases, and prints the result."""
    bed = SharedTestBed(keep)
    try:
        detected = attempt("control", control, bed) == "ok"
        results = [attempt(case.name, case.run, bed) for case in chosen if detected]
    finally:
        bed.close()
        if keep:
            print(f"kept: {bed.dir}")
    passed = results.count("ok")
    skipped = results.count("skip") + len(CASES) - len(chosen)
    failed = len(CASES) - passed - skipped
    print(
        f"test-vllm: cases={len(CASES)} passed={passed} skipped={skipped} "
        f"loads={bed.loads} stores={bed.stores} control={'detected' if detected else 'blind'} "
        f"hybrid_models={len(bed.hybrid_models)}"
    )
    print(f"{passed} passed, {failed} failed")
    return 0 if detected and not failed else 1


if __name__ == "__main__":
    cases, arguments = runner.choose("test-vllm", "A real vLLM, end to end.", CASES)
    sys.exit(run(cases, arguments.keep))
