"""Runs the cases: python -m e2e [--list] [--only NAME...] [--keep].

Prints one line for each case, and before the line of a failed case the error and the ends of the
logs. The last lines are

    test-vllm: cases=25 passed=25 skipped=0 loads=N stores=N control=detected hybrid_models=3
    25 passed, 0 failed

Loads and stores are blocks. Cases that --only omits count as skipped, and so do cases that cannot
run on this machine. Every run begins with the control. The exit status is 0 when the control has
detected damaged blocks and every other case has passed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable

from e2e.case import Case, Skipped, SharedTestBed
from e2e.cases_faults import control
from e2e.catalogue import CASES


def attempt(name: str, run: Callable[[SharedTestBed], str], bed: SharedTestBed) -> str:
    """Runs one case and prints its line. Returns "ok", "FAIL" or "skip"."""
    started = time.monotonic()
    result, remark = "ok", ""
    try:
        remark = run(bed)
    except Skipped as reason:
        result, remark = "skip", str(reason)
    except Exception:  # any exception is a failure of the case
        result = "FAIL"
        print(f"{traceback.format_exc().rstrip()}\n{bed.logs()}")
    print(f"{result:<5} {name:<34} {time.monotonic() - started:6.1f} s  {remark}", flush=True)
    if result != "ok":
        bed.clear()  # a failed case may leave the shared engines in any state
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-vllm", description="A real vLLM, end to end.")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these cases")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    args = parser.parse_args()
    if args.list:
        for case in CASES:
            print(f"{case.name:<34} {case.reason}")
        return 0
    known = {case.name for case in CASES}
    if unknown := set(args.only or ()) - known:
        parser.error(f"--only {' '.join(sorted(unknown))}: want names that --list prints")
    # sys.exit() runs the finally blocks, which end the child processes.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    return run([case for case in CASES if not args.only or case.name in args.only], args.keep)


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
    sys.exit(main())
