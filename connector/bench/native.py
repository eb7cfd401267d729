"""The plane in C beside the plane in Python: planning and copying one load in plain memory.

    python -m bench.native [--rounds N]      (from connector/)

The load has 8,192 tokens: 512 blocks. `70B of 8`: 80 layers of 2 pages (K and V), as one of eight
workers of a 70B model has them. `8B`: 32 layers of 2 pages. Prints the median milliseconds for the
plan alone, and for plan and copy in one thread. In C only the copy of the ids needs Python's lock.
"""

from __future__ import annotations

import argparse
import ctypes
import random
import statistics
import time
from collections.abc import Callable

from blockyard import native
from blockyard.mover import CpuMover, Pages
from blockyard.native_plane import MemoryMover

BLOCKS = 512
MODELS = (("70B of 8", 160, 4 << 10), ("8B", 64, 16 << 10))


def median_ms(call: Callable[[], object], rounds: int) -> float:
    """The median time of a call in milliseconds."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    lib = native.library()
    print("model      pages  plan: Python      C   plan and copy: Python      C   one memcpy (ms)")
    for name, layers, page in MODELS:
        share, pool = layers * page, 2 * BLOCKS
        kv = (ctypes.c_char * (pool * share))()
        host = (ctypes.c_char * (BLOCKS * share))()
        base, slots_at = ctypes.addressof(kv), ctypes.addressof(host)
        ctypes.memset(base, 1, pool * share)
        ctypes.memset(slots_at, 2, BLOCKS * share)
        limit = base + pool * share
        pages = Pages(
            [(base + n * pool * page, page, page, n * page, 0, limit) for n in range(layers)],
            pool,
        )
        ids = random.Random(1).sample(range(pool), BLOCKS)
        slots = [slots_at + n * share for n in range(BLOCKS)]
        python, c = CpuMover(pages), MemoryMover(lib, pages)
        piece = c.plan.piece(native.LOAD, slots, [ids])
        room = lib.by_plan_room(c.plan.handle, native.ALL_GROUPS, BLOCKS, 64 << 20)
        runs = (native.Run * room)()

        def plan_in_c() -> None:
            lib.by_plan_runs(c.plan.handle, ctypes.byref(piece), 64 << 20, runs, room)

        figures = (
            median_ms(lambda: pages.runs(slots, [ids]), rounds),
            median_ms(plan_in_c, rounds),
            median_ms(lambda: python.load(slots, [ids]), rounds),
            median_ms(lambda: c.load(slots, [ids]), rounds),
            median_ms(lambda: ctypes.memmove(base, slots_at, BLOCKS * share), rounds),
        )
        print(
            f"{name:<10} {layers * BLOCKS:>5}  {figures[0]:>12.2f} {figures[1]:>6.2f}"
            f" {figures[2]:>23.1f} {figures[3]:>6.1f} {figures[4]:>12.1f}"
        )


if __name__ == "__main__":
    main()
