"""Runs the cases: python -m e2e [--list] [--only NAME...] [--keep] [--plane c|python|both].

Prints one line for each case, and before the line of a failed case the error and the ends of the
logs. The last lines are

    test-vllm: plane=c cases=N passed=N skipped=0 loads=N stores=N control=detected hybrid_models=4
    N passed, 0 failed

--plane: the connector's data plane, in C or in Python. With `both` all cases run in C, and then
those that depend on the copies run in Python, so there are two such lines. A case fails when its
engine copies on another plane.

Loads and stores are blocks. Cases that --only omits count as skipped, and so do cases that cannot
run on this machine. Every run begins with the control. The exit status is 0 when the control has
detected damaged blocks and every other case has passed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from e2e import planes, runner
from e2e.case import SharedTestBed
from e2e.cases_faults import control
from e2e.catalogue import CASES
from e2e.planes import Plane
from e2e.runner import Case

_PLANE_HELP = "the data plane; both: in Python the cases that depend on the copies"


def attempt(name: str, run: Callable[[SharedTestBed], str], bed: SharedTestBed) -> str:
    """runner.attempt with a fresh bed after a case that is not ok."""
    result = runner.attempt(name, run, bed)
    if result != "ok":
        bed.clear()  # a failed case may leave the shared engines in any state
    return result


def run(plane: Plane, cases: Sequence[Case], chosen: Sequence[Case], keep: bool) -> tuple[int, int]:
    """Runs the control and the chosen ones of the cases on a plane, and prints the plane's line.

    Returns how many have passed and failed. The control counts when it has failed.
    """
    print(f"plane {plane.name}", flush=True)
    bed = SharedTestBed(keep, plane)
    running = [case for case in cases if case in chosen]
    try:
        detected = attempt("control", control, bed) == "ok"
        results = [attempt(case.name, case.run, bed) for case in running if detected]
    finally:
        bed.close()
        if keep:
            print(f"kept: {bed.dir}")
    passed = results.count("ok")
    skipped = results.count("skip") + len(cases) - len(running)
    print(
        f"test-vllm: plane={plane.name} cases={len(cases)} passed={passed} skipped={skipped} "
        f"loads={bed.loads} stores={bed.stores} control={'detected' if detected else 'blind'} "
        f"hybrid_models={len(bed.hybrid_models)}",
        flush=True,
    )
    return passed, len(cases) - passed - skipped + (not detected)


def main() -> int:
    """Runs the cases of the command line."""
    options = {"--plane": (_PLANE_HELP, planes.CHOICES)}
    chosen, arguments = runner.choose(
        "test-vllm", "A real vLLM, end to end.", CASES, options=options
    )
    results = [
        run(plane, cases, chosen, arguments.keep)
        for plane, cases in planes.runs(arguments.plane, CASES)
    ]
    passed, failed = map(sum, zip(*results, strict=True))
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
