"""Measures the connector in a real vLLM on CPU: `make bench-connector`.

    python -m bench [--quick] [--only PART...] [--dir DIR] [--keep]

Parts: `hooks` (the cost of every step), `load-start` (the delay of a load during another request's
prefill), `tokens` (time to the first token) and `ranks` (the same at an engine's other
data-parallel rank). The last line is for scripts. The exit status is 1 when a part could not run,
or a reloaded token differs from the computed token. A missed target is only printed, because
figures depend on the machine.
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

PARTS = ("hooks", "load-start", "tokens", "ranks")

STEP_US, HOOK_US, TO_PLAIN, LOAD_START_MS = 20.0, 50.0, 1.0, 0.5


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
    from . import engine

    native = "no" if engine.native_library() is None else "yes"
    figures = {"native": native}
    equal, began = True, time.monotonic()
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f} at the start\n", flush=True)
    if "hooks" in parts:
        figures |= _hooks(work, quick)
    if "load-start" in parts:
        figures |= _load_start(work, quick)
    if "tokens" in parts:
        more, equal = _tokens(work, quick)
        figures |= more
    if "ranks" in parts:
        more, right = _ranks(work, quick)
        figures |= more
        equal = equal and right
    print(f"{time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f} at the end")
    print("bench-connector: " + " ".join(f"{name}={value}" for name, value in figures.items()))
    return equal


def _hooks(work: pathlib.Path, quick: bool) -> dict[str, str]:
    from . import cost, report

    hooks = cost.hooks(work, steps=64 if quick else 320, prompts=10 if quick else 100)
    print(hooks.text, end="")
    figures = {}
    for running in cost.RUNNING:
        step, hook, ratio = hooks.step[running], hooks.hook[running], hooks.to_plain[running]
        what = f"{running} running: "
        print(report.verdict(f"{what}empty step of the worker, p99", step, STEP_US, " µs"))
        print(f"{what}the same of a connector that does nothing: {hooks.idle_step[running]:.1f} µs")
        print(report.verdict(f"{what}slowest hook of the scheduler, p99", hook, HOOK_US, " µs"))
        quiet = f"{what}all hooks to the plain connector's, no block completes, p50"
        print(report.verdict(quiet, ratio, TO_PLAIN, "x"))
        figures[f"step_us_p99_{running}"] = f"{step:.1f}"
        figures[f"step_us_p99_idle_{running}"] = f"{hooks.idle_step[running]:.1f}"
        figures[f"hook_us_p99_{running}"] = f"{hook:.1f}"
        figures[f"hooks_vs_plain_{running}"] = f"{ratio:.2f}"
    first = hooks.first_lookup
    print(report.verdict("first lookup of a long prompt, p99", first, HOOK_US, " µs"))
    print(flush=True)
    figures["hook_us_p99_lookup"] = f"{first:.1f}"
    return figures


def _load_start(work: pathlib.Path, quick: bool) -> dict[str, str]:
    from . import cost, report

    load = cost.load_start(work, loads=10 if quick else 120)
    print(load.text, end="")
    print(report.verdict("a load begins, p99", load.p99, LOAD_START_MS, " ms"))
    print(report.verdict("slowest hook meanwhile, p99", load.hook, HOOK_US, " µs"))
    print(flush=True)
    return {"hook_us_p99_loads": f"{load.hook:.1f}", "load_start_ms_p99": f"{load.p99:.2f}"}


def _tokens(work: pathlib.Path, quick: bool) -> tuple[dict[str, str], bool]:
    from . import tokens

    first = tokens.first_tokens(work, repeats=2 if quick else 5)
    print(first.text, flush=True)
    figures = {
        "reload_host_8k": f"{first.reload_host:.0f}x",
        "reload_disk_8k": f"{first.reload_disk:.0f}x",
    }
    for tier, ratios in (("host", first.host_to_native), ("disk", first.disk_to_native)):
        for length, ratio in ratios.items():
            figures[f"reload_{tier}_vs_native_{length // 1024}k"] = f"{ratio:.2f}"
    return figures, first.equal


def _ranks(work: pathlib.Path, quick: bool) -> tuple[dict[str, str], bool]:
    from . import ranks

    found = ranks.other_rank(work, rounds=1 if quick else 2)
    print(found.text, flush=True)
    return {"other_rank_8k": f"{found.speedup:.0f}x"}, found.right


if __name__ == "__main__":
    sys.exit(main())
