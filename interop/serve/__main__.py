"""Real vLLM servers on CPU, served by every router with every cache tier: `make bench-serve`.

The same conversations go through each pair of router and tier, run after run, interleaved by seed.
Every tier has the same bytes of host memory in all; the devices are the same everywhere. A run
begins with the caches that the one before has filled with other conversations. Routers are to be
compared within a tier, and tiers within a router.
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

from serve import client, report
from serve.fleet import TIERS, Fleet, Sizes
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
    parser.add_argument("--size", type=int, default=24, help="interleaved conversations")
    parser.add_argument("--servers", type=int, default=2, help="vLLM servers")
    parser.add_argument("--device-blocks", type=int, default=128, help="of each server")
    parser.add_argument("--host-mib", type=int, default=768, help="host memory of all servers")
    parser.add_argument("--peers", default="", help="directory of vllm-router and smg")
    parser.add_argument("--lmcache", default="", help="directory of LMCache's packages")
    parser.add_argument("--keep", action="store_true", help="keep the directory with the logs")
    args = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    directory = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-serve-"))
    try:
        runs = _run(args, directory)
    except BaseException:
        args.keep = True
        raise
    finally:
        if args.keep:
            print(f"logs: {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    print(report.table(runs))
    print(report.last_line(runs))
    return 0


def _run(args: argparse.Namespace, directory: pathlib.Path) -> report.Runs:
    sizes = Sizes(args.servers, args.device_blocks, args.host_mib << 20)
    runs: report.Runs = {}
    infinite: Infinite | None = None
    for tier in args.tiers:
        fleet = Fleet(tier, directory, sizes, args.lmcache)
        try:
            infinite = infinite or Infinite(fleet.model)
            for seed in range(args.seeds):
                # The order changes, so that no router always meets the caches of the same other.
                for name in _rotated(args.routers, seed):
                    found = _one(args, fleet, infinite, name, seed, directory)
                    runs.setdefault((tier, name), []).append(found)
        finally:
            fleet.close()
    order = [(tier, name) for tier in args.tiers for name in args.routers]
    return {pair: runs[pair] for pair in order}


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
