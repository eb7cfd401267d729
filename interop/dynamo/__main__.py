"""Runs the cases: python interop/dynamo [--list] [--only NAME...] [--keep].

Prints one line for each case, and before the line of a failed case the error and the ends of the
logs. The last line is

    N passed, 0 failed

The exit status is 0 when no case failed. A case that cannot run with these binaries prints the
reason, and counts as failed without --allow-skips.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback

from live import cases_ours, cases_selection, cases_worker
from live.case import Case
from live.testbed import TestBed, Skipped, default_binaries

CASES = [*cases_worker.CASES, *cases_ours.CASES, *cases_selection.CASES]


def attempt(case: Case, keep: bool) -> str:
    """Runs one case and prints its line. Returns "ok", "FAIL" or "skip"."""
    started = time.monotonic()
    bed = TestBed(*default_binaries())
    result, remark = "ok", ""
    try:
        remark = case.run(bed)
    except Skipped as reason:
        result, remark = "skip", str(reason)
    except Exception:  # any exception is a failure of the case
        result = "FAIL"
        print(f"{traceback.format_exc().rstrip()}\n{bed.logs()}")
    finally:
        bed.close(keep)
    print(f"{result:<5} {case.name:<28} {time.monotonic() - started:6.1f} s  {remark}", flush=True)
    if keep:
        print(f"      kept: {bed.dir}")
    return result


def main() -> int:
    """Runs the cases of the command line."""
    parser = argparse.ArgumentParser(prog="test-dynamo", description="Test with a real Dynamo.")
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these cases")
    parser.add_argument("--keep", action="store_true", help="keep the directories with the logs")
    parser.add_argument("--allow-skips", action="store_true", help="a skipped case is no failure")
    args = parser.parse_args()
    if args.list:
        for case in CASES:
            print(f"{case.name:<28} {case.reason}")
        return 0
    if unknown := set(args.only or ()) - {case.name for case in CASES}:
        parser.error(f"--only {' '.join(sorted(unknown))}: want names that --list prints")
    # sys.exit() runs the finally blocks, which end the child processes.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    results = [attempt(c, args.keep) for c in CASES if not args.only or c.name in args.only]
    skipped = results.count("skip")
    failed = results.count("FAIL") + (0 if args.allow_skips else skipped)
    if skipped:
        print(f"{skipped} could not run")
    print(f"{results.count('ok')} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
