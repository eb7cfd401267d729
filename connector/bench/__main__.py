"""Measures the connector in a real vLLM on CPU: `make bench-connector`.

    python -m bench [--quick] [--only PART...] [--dir DIR] [--keep]

Parts: `hooks` (the cost of every step), `load-start` (the delay of a load during another request's
prefill) and `tokens` (time to the first token). The last line is for scripts. The exit status is 1
when a part could not run, or a reloaded token differs from the computed token. A missed target is
only printed, because figures depend on the machine.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import sys
import tempfile
import time

from .child import ChildFailed

PARTS = ("hooks", "load-start", "tokens")

STEP_US, HOOK_US, LOAD_START_MS = 20.0, 50.0, 1.0


def main() -> int:
    """Runs the chosen parts and prints their figures."""
    parser = argparse.ArgumentParser(prog="bench-connector", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer rounds, for a smoke test")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--dir", help="directory of models and disk tier; on a disk, not tmpfs")
    parser.add_argument("--keep", action="store_true", help="keep the engines' logs")
    options = parser.parse_args()
    # Agents and children make their temporary directories in this directory.
    work = pathlib.Path(tempfile.mkdtemp(prefix="bench-connector-", dir=options.dir))
    os.environ["TMPDIR"] = tempfile.tempdir = str(work)
    failed = True
    try:
        failed = not _run(work, tuple(options.only), options.quick)
    except (ChildFailed, RuntimeError) as err:
        print(f"blockyard: {err}", file=sys.stderr)
    finally:
        if options.keep or failed:
            print(f"logs: {work}", file=sys.stderr)
        else:
            shutil.rmtree(work, ignore_errors=True)
    return 1 if failed else 0


def _run(work: pathlib.Path, parts: tuple[str, ...], quick: bool) -> bool:
    from . import cost, report, tokens

    figures: dict[str, str] = {}
    slowest, equal, began = 0.0, True, time.monotonic()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start\n", flush=True)
    if "hooks" in parts:
        hooks = cost.hooks(work, steps=64 if quick else 320, prompts=10 if quick else 100)
        print(hooks.text, end="")
        print(report.verdict("empty step of the worker, p99", hooks.step, STEP_US, " µs"))
        print(report.verdict("slowest hook of the scheduler, p99", hooks.hook, HOOK_US, " µs"))
        print(flush=True)
        slowest = hooks.hook
        figures["step_us_p99"] = f"{hooks.step:.1f}"
        figures["hook_us_p99"] = f"{slowest:.1f}"
    if "load-start" in parts:
        load = cost.load_start(work, loads=10 if quick else 120)
        print(load.text, end="")
        print(report.verdict("a load begins, p99", load.p99, LOAD_START_MS, " ms"))
        print(report.verdict("slowest hook meanwhile, p99", load.hook, HOOK_US, " µs"))
        print(flush=True)
        figures["hook_us_p99"] = f"{max(slowest, load.hook):.1f}"
        figures["load_start_ms_p99"] = f"{load.p99:.2f}"
    if "tokens" in parts:
        first = tokens.first_tokens(work, repeats=2 if quick else 5)
        print(first.text, flush=True)
        figures["reload_host_8k"] = f"{first.reload_host:.0f}x"
        figures["reload_disk_8k"] = f"{first.reload_disk:.0f}x"
        equal = first.equal
    print(f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    print("bench-connector: " + " ".join(f"{name}={value}" for name, value in figures.items()))
    return equal


if __name__ == "__main__":
    sys.exit(main())
