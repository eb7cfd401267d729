"""Tests and measures the copies of connector/native on a GPU: `make test-gpu`.

    python -m bench.gpu [--json FILE] [--driver FILE] [sizes: see --help]

Uses the CUDA driver alone, without torch. Prints three tables, and writes the same as JSON:

- the bandwidth for each page size beside one plain pinned copy of as many bytes, and the rate of
  pinning;
- whether each byte of stores and loads arrives, for each layout, unpinned, pinned, and behind a
  step of the engine that writes the same blocks;
- whether kill -9 of the engine or of the agent leaves the other side's bytes and pins usable.

The exit status is 1 when a byte is wrong or a call fails. Without a GPU or a C compiler one line
says so, and the exit status is 0.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import Any

from bench.gpu_driver import Driver, NoGpu
from bench.gpu_kill import Sizes, killed_agent, killed_engine
from bench.gpu_memory import Layout, Memory, block_first, layer_first
from blockyard import native
from blockyard.native_plane import NativePlane

CONTENT_SHARE = 8  # the content of each layout is checked with this part of the bytes


def plain(driver: Driver, size: int, rounds: int) -> tuple[float, float]:
    """GB/s of one pinned copy, store and load."""
    at, kv = ctypes.c_void_p(), driver.allocate(size)
    driver.call("cuMemAllocHost_v2", ctypes.byref(at), ctypes.c_size_t(size))
    found = []
    for name, to, source in (
        ("cuMemcpyDtoH_v2", at, ctypes.c_uint64(kv)),
        ("cuMemcpyHtoD_v2", ctypes.c_uint64(kv), at),
    ):
        best = 0.0
        for _ in range(rounds):
            began = time.perf_counter()
            driver.call(name, to, source, ctypes.c_size_t(size))
            best = max(best, size / (time.perf_counter() - began) / 1e9)
        found.append(best)
    driver.call("cuMemFreeHost", at)
    driver.free(kv)
    return found[0], found[1]


class Report:
    """The rows, printed as they come. document: the JSON."""

    def __init__(self, device: str) -> None:
        self.document: dict[str, Any] = {"device": device, "failed": []}
        self._table = "plain"  # until the first head()

    def head(self, table: str, text: str) -> None:
        """Begins a table."""
        self._table = table
        self.document[table] = []
        print(f"\n{text}", flush=True)

    def row(self, text: str, **values: Any) -> None:
        """Adds a row."""
        self.document[self._table].append(values)
        print(text, flush=True)

    @contextmanager
    def row_of(self, name: str) -> Iterator[None]:
        """Reports an error in this context instead of a row. The next row is tried all the same."""
        try:
            yield
        except Exception as err:  # an OSError or MemoryError, too, ends this row alone
            text = str(err) or type(err).__name__
            self.document["failed"].append(f"{self._table}, {name}: {text}")
            print(f"FAIL  {name}: {text}", flush=True)


def measure(memory: Memory, rounds: int) -> dict[str, float]:
    """GB/s of copies in one layout. Checks each byte before and after the memory is pinned."""
    ids = memory.ids(2)
    memory.check()
    found = {"unpinned_load": memory.copy(False, ids), "pin": memory.pin()}
    memory.check()
    found["store"] = max(memory.copy(True, ids) for _ in range(rounds))
    found["load"] = max(memory.copy(False, ids) for _ in range(rounds))
    return found


def bandwidth(report: Report, driver: Driver, plane: NativePlane, options: Any) -> None:
    """The first table."""
    total = options.mib << 20
    with report.row_of("one pinned copy"):
        store, load = plain(driver, total, options.rounds)
        print(f"one pinned copy of {options.mib} MiB: {store:.1f} and {load:.1f} GB/s")
        report.document["plain"] = {"bytes": total, "store": store, "load": load}
    report.head(
        "bandwidth",
        "page KiB  layout        store GB/s  load GB/s  unpinned load  pin GB/s  bytes",
    )
    for page in options.pages:
        for layout in (
            layer_first("layer first", options.layers, page << 10, total),
            block_first("block first", options.layers, page << 10, total),
        ):
            with report.row_of(f"{layout.name}, pages of {page} KiB"):
                with closing(Memory(driver, plane, layout)) as memory:
                    found = measure(memory, options.rounds)
                report.row(
                    f"{page:>8}  {layout.name:<12} {found['store']:>11.1f} {found['load']:>10.1f}"
                    f" {found['unpinned_load']:>14.1f} {found['pin']:>9.1f}  equal",
                    page_kib=page,
                    layout=layout.name,
                    bytes="equal",
                    **found,
                )


def layouts(layers: int, page: int, total: int) -> list[Layout]:
    """The layouts of the second table."""
    return [
        layer_first("layer first", layers, page, total),
        layer_first("layer first, with gaps", layers, page, total, gap=page),
        block_first("block first", layers, page, total),
        block_first("block first, with gaps", layers, page, total, gap=page),
        layer_first("two groups in a slot", layers, page, total, groups=2),
        layer_first("two groups apart", layers, page, total, groups=2, apart=True),
    ]


def contents(report: Report, driver: Driver, plane: NativePlane, options: Any) -> None:
    """The second table."""
    page, total = options.pages[0] << 10, (options.mib << 20) // CONTENT_SHARE
    report.head("contents", "layout                  unpinned  pinned  behind a step")
    for layout in layouts(options.layers, page, total):
        with report.row_of(layout.name), closing(Memory(driver, plane, layout)) as memory:
            memory.check()
            memory.pin()
            memory.check()
            memory.check(options.patience)
            report.row(
                f"{layout.name:<23} equal     equal   equal",
                layout=layout.name,
                unpinned="equal",
                pinned="equal",
                behind_a_step="equal",
            )


def kills(report: Report, driver: Driver, plane: NativePlane, options: Any) -> None:
    """The third table."""
    sides: dict[str, Callable[[Driver, NativePlane, Sizes], None]] = {
        "engine": killed_engine,
        "agent": killed_agent,
    }
    total = (options.mib << 20) // CONTENT_SHARE
    sizes = Sizes(options.layers, options.pages[0] << 10, total)
    report.head("kills", "kill -9 of  the other side's bytes")
    for side, run in sides.items():
        with report.row_of(f"kill -9 of the {side}"):
            run(driver, plane, sizes)
            report.row(f"the {side:<7} equal", killed=side, bytes="equal")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="test-gpu", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--json", metavar="FILE", help="write the tables to FILE")
    add("--driver", metavar="FILE", default="libcuda.so.1", help="the driver's library")
    add("--mib", type=int, default=256, help="MiB of one copy (256)")
    add("--layers", type=int, default=32, help="layers, an even number (32)")
    add("--pages", type=int, nargs="+", default=[4, 16, 64, 256], help="page sizes in KiB")
    add("--rounds", type=int, default=5, help="copies, of which the fastest counts (5)")
    add("--patience", type=float, default=0.1, help="seconds in which a step does not run (0.1)")
    options = parser.parse_args()
    if options.layers % 2 or options.layers < 2 or options.rounds < 1:
        parser.error("--layers must be even, and --rounds at least 1")
    smallest = 2 * options.layers * max(options.pages[0] * CONTENT_SHARE, *options.pages)
    if min(options.pages) < 1 or options.mib << 10 < smallest:
        need = -(-smallest // 1024)
        parser.error(f"--mib must have two blocks of each page size: at least {need}")
    return options


def main() -> int:
    """Prints the tables. Writes them as JSON where asked to."""
    options = parse()
    try:
        plane = NativePlane(native.library())
    except native.NativeError as err:
        if native.compiler() is None:
            print(f"skip  make test-gpu: {err}")
            return 0
        print(f"FAIL  the data plane in C: {err}")
        return 1
    try:
        driver = Driver(options.driver)
    except NoGpu as err:
        print(f"skip  make test-gpu: {err}")
        return 0
    print(driver.name)
    report = Report(driver.name)
    for table in (bandwidth, contents, kills):
        table(report, driver, plane, options)
    failed = report.document["failed"]
    rows = sum(len(report.document[name]) for name in ("bandwidth", "contents", "kills"))
    print(f"\n{driver.name}: {rows} rows equal, {len(failed)} failed")
    if options.json:
        with open(options.json, "w", encoding="ascii") as out:
            json.dump(report.document, out, indent=1)
            out.write("\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
