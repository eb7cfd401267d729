"""How fast the CPU mover copies, beside other ways of copying, and what it costs the engine.

    python -m bench.mover [--mib N] [--rounds N]      (from connector/)

KV of 8 layers in 64 KiB pages, layer outermost, blocks in random order; slots one behind the
other. Prints, for each way, its speed as a share of one memcpy's: alone, beside a thread that
computes in Python all the time, and beside one that works as an engine does, a little Python
between calls that let go of the interpreter's lock. For the last also the slowest percent of
that thread's rounds, as a multiple of its usual one, and how much of its speed it kept.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import random
import statistics
import threading
import time
from collections.abc import Callable

from blockyard import mover
from blockyard.mover import CpuMover, Pages

LAYERS = 8
PAGE = 64 << 10
BLOCK = LAYERS * PAGE

Way = Callable[[], None]


class Bench:
    """Memory, and the ways to copy it."""

    def __init__(self, mib: int) -> None:
        rng = random.Random(1)
        self._buffers: list[ctypes.Array[ctypes.c_char]] = []
        self.count = (mib << 20) // BLOCK
        self.pool = 2 * self.count
        self.kv = self._memory(self.pool * BLOCK)
        self.host = self._memory(self.count * BLOCK)
        self.ids = rng.sample(range(self.pool), self.count)
        limit = self.kv + self.pool * BLOCK
        layers = [
            (self.kv + n * self.pool * PAGE, PAGE, PAGE, n * PAGE, 0, limit)
            for n in range(LAYERS)
        ]
        self.pages = Pages(layers, self.pool)
        self.slots = [self.host + n * BLOCK for n in range(self.count)]
        self.runs = self.pages.runs(self.slots, [self.ids])
        self.engine = CpuMover(self.pages)

    def _memory(self, size: int) -> int:
        buffer = (ctypes.c_char * size)()
        ctypes.memset(buffer, 1, size)
        self._buffers.append(buffer)
        return ctypes.addressof(buffer)

    def ways(self) -> dict[str, Way]:
        """Every way by name; the first is the yardstick."""
        ways = {
            "one memcpy": lambda: ctypes.memmove(self.kv, self.host, self.count * BLOCK) and None,
            "mover, load": lambda: self.engine.load(self.slots, [self.ids]),
            "mover, store": self._store,
            "memmove, lock let go": lambda: self._each(ctypes.memmove),
            "memmove, lock kept": lambda: self._each(mover._memmove),
            "one system call": self._vector,
        }
        if importlib.util.find_spec("numpy"):
            from blockyard.numpy_mover import NumpyMover

            engine = NumpyMover(self.pages)
            row = list(range(self.count))
            ways["numpy mover, a run"] = lambda: engine.load(self.slots, [row])
            ways["numpy, scattered"] = self._numpy()
        return ways

    def _store(self) -> None:
        step = max(1, CpuMover.store_bytes // BLOCK)
        for at in range(0, self.count, step):
            self.engine.store(self.slots[at : at + step], [self.ids[at : at + step]])

    def _each(self, copy: Callable[[int, int, int], object]) -> None:
        for to, source, size in zip(*self.runs):
            copy(to, source, size)

    def _vector(self) -> None:
        to, source, sizes = self.runs
        for at in range(0, len(sizes), 1024):
            part = slice(at, at + 1024)
            if not self.engine._copy_vector(to[part], source[part], sizes[part]):
                raise RuntimeError("the kernel forbids process_vm_readv here")

    def _numpy(self) -> Way:
        import numpy

        def view(address: int, size: int, shape: tuple[int, ...]) -> numpy.ndarray:
            raw = (ctypes.c_char * size).from_address(address)
            return numpy.frombuffer(raw, dtype=numpy.uint64).reshape(shape)

        kv = view(self.kv, self.pool * BLOCK, (LAYERS, self.pool, PAGE // 8))
        host = view(self.host, self.count * BLOCK, (self.count, LAYERS, PAGE // 8))
        ids = numpy.array(self.ids)

        def copy() -> None:
            for layer in range(LAYERS):
                kv[layer][ids] = host[:, layer]

        return copy


class Neighbour(threading.Thread):
    """A thread beside the copies. pause: bytes that it copies without the lock in each round."""

    def __init__(self, pause: int) -> None:
        super().__init__(daemon=True)
        self.rounds: list[float] = []
        self._pause = pause
        self._stop_now = False

    def run(self) -> None:
        size = max(1, self._pause)
        a, b = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size)
        while not self._stop_now:
            started = time.perf_counter()
            for _ in range(500):
                pass
            if self._pause:
                ctypes.memmove(a, b, size)
            self.rounds.append(time.perf_counter() - started)

    def stop(self) -> None:
        self._stop_now = True
        self.join()


def measure(way: Way, rounds: int) -> float:
    """The median time of a call."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        way()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def alone(way: Way, memcpy: Way, rounds: int) -> float:
    """The speed of a way as a share of memcpy's; they take turns, so that what else the machine
    does meets both."""
    pairs = [(measure(memcpy, 1), measure(way, 1)) for _ in range(rounds)]
    return statistics.median(m for m, _ in pairs) / statistics.median(w for _, w in pairs)


def beside(way: Way, rounds: int, pause: int) -> tuple[float, float, float]:
    """The median time beside a neighbour; the neighbour's slowest percent as a multiple of its
    median alone; its share of the rounds that it makes alone."""
    neighbour = Neighbour(pause)
    neighbour.start()
    time.sleep(0.3)
    usual = statistics.median(neighbour.rounds)
    neighbour.rounds.clear()
    started = time.perf_counter()
    took = measure(way, rounds)
    elapsed = time.perf_counter() - started
    made = sorted(neighbour.rounds)
    neighbour.stop()
    slowest = made[int(0.99 * len(made))] if made else elapsed
    return took, slowest / usual, min(1.0, len(made) * usual / elapsed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=128, help="MiB to copy at a time")
    parser.add_argument("--rounds", type=int, default=9, help="copies of each kind")
    args = parser.parse_args()
    bench = Bench(args.mib)
    ways = bench.ways()
    memcpy = next(iter(ways.values()))
    for way in ways.values():
        way()  # touches all memory
    unit = measure(memcpy, args.rounds)
    print(f"{args.mib} MiB in {bench.count} blocks, {LAYERS} layers, {PAGE >> 10} KiB pages")
    print("way                    alone   busy Python   engine-like: speed  p99 round  kept")
    for name, way in ways.items():
        quiet = alone(way, memcpy, args.rounds)
        busy, _, _ = beside(way, args.rounds, 0)
        like, slowest, kept = beside(way, args.rounds, 2 << 20)
        print(
            f"{name:<21} {quiet:>5.2f}x {unit / busy:>11.2f}x {unit / like:>18.2f}x"
            f" {slowest:>9.1f}x {kept:>5.0%}",
            flush=True,
        )
    print(f"1.00x is {bench.count * BLOCK / unit / 1e9:.1f} GB/s, {unit * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
