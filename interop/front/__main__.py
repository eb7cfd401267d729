"""Runs the cases: python -m front [--list] [--only NAME...] [--keep].

Prints one line for each case, and before the line of a failed case the error and the ends of the
logs. The last line is

    test-front: cases=N passed=N mismatched_tokens=0

The exit status is 0 when every chosen case has passed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback

from front.bed import Bed, Case
from front.catalogue import CASES


def attempt(case: Case, bed: Bed) -> bool:
    """Runs one case and prints its line. Returns whether the case has passed."""
    started = time.monotonic()
    result = "FAIL"
    remark = ""
    try:
        remark = case.run(bed)
        result = "ok"
    except Exception:  # any exception is a failure of the case
        print(f"{traceback.format_exc().rstrip()}\n{bed.logs()}")
    print(f"{result:<5} {case.name:<22} {time.monotonic() - started:6.1f} s  {remark}", flush=True)
    if result == "ok":
        bed.close_doors()
    else:
        bed.clear()  # a failed case may leave the servers in any state
    return result == "ok"


def main() -> int:
    parser = argparse.ArgumentParser(prog="test-front", description="The front door, end to end.")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these cases")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    args = parser.parse_args()
    if args.list:
        for case in CASES:
            print(f"{case.name:<22} {case.reason}")
        return 0
    if unknown := set(args.only or ()) - {case.name for case in CASES}:
        parser.error(f"--only {' '.join(sorted(unknown))}: want names that --list prints")
    # sys.exit() runs the finally blocks, which end the child processes.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    return run([case for case in CASES if not args.only or case.name in args.only], args.keep)


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
    sys.exit(main())
