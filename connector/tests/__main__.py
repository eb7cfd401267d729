"""Runs the connector's tests with the standard library alone.

    python3 connector/tests [--tally FILE] [PATTERN...]

Prints one line for each test module, every failure in full, and every reason for skipped tests.
The last line is "N passed, N failed". --tally appends the counts to FILE as "PASSED FAILED", for
scripts/test.sh. A module that cannot be imported is a failure. The exit status is 1 when a test
failed or none ran.
"""

from __future__ import annotations

import argparse
import collections
import fnmatch
import logging
import pathlib
import sys
import time
import unittest
from collections.abc import Iterator

HERE = pathlib.Path(__file__).resolve().parent


class ModuleResult(unittest.TestResult):
    """Counts the results of one module's tests."""

    def __init__(self) -> None:
        super().__init__()
        self.passed = 0

    def addSuccess(self, test: unittest.TestCase) -> None:
        super().addSuccess(test)
        self.passed += 1

    def addExpectedFailure(self, test: unittest.TestCase, err: object) -> None:
        super().addExpectedFailure(test, err)  # type: ignore[arg-type]
        self.passed += 1

    @property
    def failed(self) -> int:
        return len(self.failures) + len(self.errors) + len(self.unexpectedSuccesses)

    def faults(self) -> Iterator[str]:
        """Every failure as text."""
        for test, trace in [*self.failures, *self.errors]:
            yield f"FAIL  {test.id()}\n{trace.rstrip()}"
        for test in self.unexpectedSuccesses:
            yield f"FAIL  {test.id()}: succeeded, but was expected to fail"


def run_module(name: str) -> ModuleResult:
    """Runs one test module and prints its line."""
    started = time.monotonic()
    result = ModuleResult()
    unittest.defaultTestLoader.loadTestsFromName(f"tests.{name}").run(result)
    took = time.monotonic() - started
    word = "FAIL" if result.failed else "ok"
    print(f"{word:<5} connector {name:<42}  {result.passed:>4} passed  {took:>5.1f}s", flush=True)
    for fault in result.faults():
        print(fault, flush=True)
    return result


def modules(patterns: list[str]) -> list[str]:
    """The names of the test modules that match a pattern. Without patterns: all modules."""
    names = sorted(path.stem for path in HERE.glob("test_*.py"))
    if not patterns:
        return names
    return [name for name in names if any(fnmatch.fnmatch(name, f"*{p}*") for p in patterns)]


def main() -> int:
    parser = argparse.ArgumentParser(description="Run the connector's tests.")
    parser.add_argument("--tally", metavar="FILE", help="append the counts to FILE")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN", help="part of a module's name")
    args = parser.parse_args()
    logging.lastResort = None  # the tests provoke warnings
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "kvbm")]
    passed = failed = 0
    skipped: collections.Counter[str] = collections.Counter()
    for name in modules(args.patterns):
        result = run_module(name)
        passed += result.passed
        failed += result.failed
        skipped.update(reason for _, reason in result.skipped)
    for reason, count in sorted(skipped.items()):
        print(f"skip  {count} of the connector's tests: {reason}")
    if args.tally:
        with open(args.tally, "a", encoding="ascii") as tally:
            print(passed, failed, file=tally)
    else:
        print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
