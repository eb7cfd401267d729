"""What end-to-end tests share: cases, the command line that chooses cases, and their lines."""

from __future__ import annotations

import argparse
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Skipped(Exception):
    """The case cannot run on this machine. The text is the reason."""


class Case(NamedTuple):
    """A test of one promise of the product.

    reason: the promise, for people. run: gets the test bed, returns a remark for the printed line,
    and raises on failure. copies: whether the result depends on the connector's copies, so that
    each of its data planes has to keep the promise.
    """

    name: str
    reason: str
    run: Callable[[Any], str]
    copies: bool = False


def case(name: str, reason: str) -> Callable[[Callable[[Any], str]], Case]:
    """A decorator that makes a Case of a function."""
    return lambda run: Case(name, reason, run)


def attempt(name: str, run: Callable[[Any], str], bed: Any) -> str:
    """Runs one case and prints its line. Returns "ok", "FAIL" or "skip".

    A failed case prints the error and bed.logs() before.
    """
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
    return result


def choose(
    name: str,
    description: str,
    cases: Sequence[Case],
    flags: dict[str, str] | None = None,
    options: dict[str, tuple[str, Sequence[str]]] | None = None,
) -> tuple[list[Case], argparse.Namespace]:
    """The cases that the command line chooses, and its arguments. --list prints them and exits.

    flags: further flags with their help. options: further options with their help and their values,
    the default first. SIGTERM and SIGHUP exit from now on.
    """
    parser = argparse.ArgumentParser(prog=name, description=description)
    parser.add_argument("--list", action="store_true", help="print the cases")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="run only these cases")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    for flag, text in (flags or {}).items():
        parser.add_argument(flag, action="store_true", help=text)
    for option, (text, values) in (options or {}).items():
        parser.add_argument(option, choices=values, default=values[0], help=text)
    args = parser.parse_args()
    if args.list:
        for each in cases:
            print(f"{each.name:<34} {each.reason}{' (both planes)' if each.copies else ''}")
        sys.exit(0)
    if unknown := set(args.only or ()) - {each.name for each in cases}:
        parser.error(f"--only {' '.join(sorted(unknown))}: want names that --list prints")
    # sys.exit() runs the finally blocks, which end the child processes.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    return [each for each in cases if not args.only or each.name in args.only], args
