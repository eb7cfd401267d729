"""Real vLLM servers on CPU, served by every router with every cache tier: `make bench-serve`.

The same conversations go through each pair of router and tier, run after run, interleaved by seed.
Every tier has the same bytes of host memory in all; the devices are the same everywhere. A run
begins with the caches that the one before has filled with other conversations. Routers are to be
compared within a tier, and tiers within a router.

A run that fails is named, and the others go on. Then the exit status is 1.

With --out the figures of each run are kept in the directory: runs that are there already are not
repeated, and the table and the picture are written after each tier.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

from serve import client, picture, report
from serve.fleet import TIERS, Fleet, Sizes
from serve.kept import Kept
from serve.routers import ROUTERS, router
from serve.workload import Infinite, plan


def main() -> int:
    """Runs the chosen pairs and prints their figures."""
    parser = argparse.ArgumentParser(
        prog="bench-serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tiers", nargs="+", choices=TIERS, default=TIERS, metavar="TIER")
    parser.add_argument("--routers", nargs="+", choices=ROUTERS, default=ROUTERS, metavar="ROUTER")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each pair")
    parser.add_argument("--size", type=int, default=8, help="interleaved conversations")
    parser.add_argument("--servers", type=int, default=2, help="vLLM servers")
    parser.add_argument("--device-blocks", type=int, default=40, help="of each server")
    parser.add_argument("--host-mib", type=int, default=192, help="host memory of all servers")
    parser.add_argument(
        "--eviction", choices=("adaptive", "lru"), default="adaptive", help="of the agent"
    )
    parser.add_argument("--peers", default="", help="directory of vllm-router and smg")
    parser.add_argument("--lmcache", default="", help="directory of LMCache's packages")
    parser.add_argument("--out", type=pathlib.Path, help="directory for figures, table and picture")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    directory = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-serve-"))
    try:
        runs, failures = _run(args, directory)
        args.keep |= bool(failures)
    except BaseException:
        args.keep = True
        raise
    finally:
        if args.keep:
            print(f"logs: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(report.table(runs))
    for failure in failures:
        print(f"failed: {failure}")
    print(report.last_line(runs))
    return 1 if failures else 0


def _run(args: argparse.Namespace, directory: pathlib.Path) -> tuple[report.Runs, list[str]]:
    """The figures of the pairs, and what has failed."""
    sizes = Sizes(args.servers, args.device_blocks, args.host_mib << 20, args.eviction)
    kept = Kept(args.out, {**sizes._asdict(), "size": args.size})
    failures: list[str] = []
    runs: report.Runs = {}
    for tier in args.tiers:
        try:
            _serve_tier(args, tier, sizes, directory, kept, failures)
        except (AssertionError, OSError) as err:
            failures.append(f"{tier}: {err}")
            print(failures[-1], flush=True)
        runs = _found(args, kept)
        if args.out and runs:
            (args.out / "table.txt").write_text(report.table(runs) + "\n")
            (args.out / "bench-serve.svg").write_text(picture.draw(runs))
    return runs, failures


def _found(args: argparse.Namespace, kept: Kept) -> report.Runs:
    """The kept runs by pair, in the order of the arguments."""
    runs: report.Runs = {}
    for tier in args.tiers:
        for name in args.routers:
            found = [kept.get(tier, name, seed) for seed in range(args.seeds)]
            if any(found):
                runs[tier, name] = [f for f in found if f]
    return runs


def _serve_tier(
    args: argparse.Namespace,
    tier: str,
    sizes: Sizes,
    directory: pathlib.Path,
    kept: Kept,
    failures: list[str],
) -> None:
    """Makes the runs of a tier that are not kept. Adds what fails to `failures`."""
    if all(kept.get(tier, name, seed) for name in args.routers for seed in range(args.seeds)):
        return
    fleet = Fleet(tier, directory, sizes, args.lmcache)
    try:
        infinite = Infinite(fleet.model)
        for seed in range(args.seeds):
            # The order changes, so that no router always meets the caches of the same other.
            for name in _rotated(args.routers, seed):
                if kept.get(tier, name, seed):
                    continue
                try:
                    found = _one(args, fleet, infinite, name, seed, directory)
                except (AssertionError, OSError, ValueError, client.ClientError) as err:
                    failures.append(f"{tier} {name} seed {seed}: {err}")
                    print(failures[-1], flush=True)
                    continue
                kept.add(tier, name, seed, found)
    finally:
        fleet.close()


def _rotated(names: list[str], by: int) -> list[str]:
    cut = by % len(names)
    return [*names[cut:], *names[:cut]]


def _one(
    args: argparse.Namespace,
    fleet: Fleet,
    infinite: Infinite,
    name: str,
    seed: int,
    directory: pathlib.Path,
) -> report.Figures:
    """One run: the conversations of a seed through one router."""
    requests = plan(f"{fleet.tier}{ROUTERS.index(name)}", seed, args.size)
    ideal = infinite.serve(requests)
    with router(name, fleet, args.peers, directory) as running:
        before = fleet.served()
        began, load = time.monotonic(), os.getloadavg()[0]
        results = client.run(running.url, requests)
        took = time.monotonic() - began
        fleet.idle()
        served = [b - a for a, b in zip(before, fleet.served(), strict=True)]
        lookups = running.lookups(name)
    found = report.figures(results, ideal, served)
    print(
        f"{fleet.tier:<8} {name:<24} seed {seed}  {took:5.1f} s  cached {100 * found.share:5.1f} % "
        f"of {100 * found.infinite:.1f} %  TTFT {found.first:5.0f} ms  load {load:.1f}"
        f"{f'  its lookups: {lookups}' if lookups else ''}",
        flush=True,
    )
    return found


if __name__ == "__main__":
    sys.exit(main())
