"""Runs the cases: python -m e2e [--list] [--only NAME...] [--keep].

Prints one line for each case, before that of a failed one why and the ends of the logs, then

    test-vllm: cases=19 passed=19 skipped=0 loads=N stores=N control=detected
    19 passed, 0 failed

where loads and stores are blocks. Cases that were not asked for count as skipped, and so do
those that say why they cannot be run here. The exit status is 0 when every case that ran has
passed and the control, which is part of every run, has seen that damaged blocks change the tokens.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable

from e2e.case import Case, Skipped, Yard
from e2e.cases_faults import control
from e2e.catalogue import CASES


def attempt(name: str, run: Callable[[Yard], str], yard: Yard) -> str:
    """Runs one case, prints its line and says "ok", "FAIL" or "skip"."""
    started = time.monotonic()
    result, remark = "ok", ""
    try:
        remark = run(yard)
    except Skipped as reason:
        result, remark = "skip", str(reason)
    except Exception:  # whatever a case raises is its failure
        result = "FAIL"
        print(f"{traceback.format_exc().rstrip()}\n{yard.logs()}")
    print(f"{result:<5} {name:<34} {time.monotonic() - started:6.1f} s  {remark}", flush=True)
    if result != "ok":
        yard.clear()  # what such a case leaves is no ground for others
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-vllm", description="A real vLLM, end to end.")
    parser.add_argument("--list", action="store_true", help="print the cases and what they show")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run these cases alone")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    args = parser.parse_args()
    if args.list:
        for case in CASES:
            print(f"{case.name:<34} {case.reason}")
        return 0
    known = {case.name for case in CASES}
    if unknown := set(args.only or ()) - known:
        parser.error(f"--only {' '.join(sorted(unknown))}: want names that --list prints")
    # Who is asked to stop ends his children first.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    return run([case for case in CASES if not args.only or case.name in args.only], args.keep)


def run(chosen: list[Case], keep: bool) -> int:
    """Runs the control and the chosen cases, and prints the result."""
    yard = Yard(keep)
    try:
        detected = attempt("control", control, yard) == "ok"
        results = [attempt(case.name, case.run, yard) for case in chosen if detected]
    finally:
        yard.close()
        if keep:
            print(f"kept: {yard.dir}")
    passed = results.count("ok")
    skipped = results.count("skip") + len(CASES) - len(chosen)
    failed = len(CASES) - passed - skipped
    print(
        f"test-vllm: cases={len(CASES)} passed={passed} skipped={skipped} "
        f"loads={yard.loads} stores={yard.stores} control={'detected' if detected else 'blind'}"
    )
    print(f"{passed} passed, {failed} failed")
    return 0 if detected and not failed else 1


if __name__ == "__main__":
    sys.exit(main())
