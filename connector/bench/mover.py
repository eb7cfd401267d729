"""The speed of the CPU mover and of other copy methods, and their cost for the engine.

    python -m bench.mover [--mib N] [--rounds N]      (from connector/)

The KV has 8 layers of 64 KiB pages, with blocks in random order. The slots are contiguous. Prints
each method's speed relative to one memcpy, in three cases. `alone`: no other thread runs. `busy
Python`: another thread computes in Python. `engine-like`: another thread mostly runs without the
interpreter's lock. For the last case also prints the 99th percentile of the thread's rounds
relative to its median, and the share of its speed that the thread keeps.
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

Method = Callable[[], None]


class Bench:
    """The memory of the benchmark, and the copy methods."""

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

    def methods(self) -> dict[str, Method]:
        """The methods by name. The first one is the baseline."""
        methods = {
            "one memcpy": lambda: ctypes.memmove(self.kv, self.host, self.count * BLOCK) and None,
            "mover, load": lambda: self.engine.load(self.slots, [self.ids]),
            "mover, store": self._store,
            "memmove, no lock": lambda: self._each(ctypes.memmove),
            "memmove, lock kept": lambda: self._each(mover._memmove),
            "one system call": self._vector,
        }
        if importlib.util.find_spec("numpy"):
            from blockyard.numpy_mover import NumpyMover

            engine = NumpyMover(self.pages)
            row = list(range(self.count))
            methods["numpy mover, a run"] = lambda: engine.load(self.slots, [row])
            methods["numpy, scattered"] = self._numpy()
        return methods

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
                raise RuntimeError("the kernel forbids process_vm_readv")

    def _numpy(self) -> Method:
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
    """A thread that runs during the copies. pause: bytes copied without the lock in each round."""

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


def measure(method: Method, rounds: int) -> float:
    """The median time of a call in seconds."""
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        method()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def relative_speed(method: Method, memcpy: Method, rounds: int) -> float:
    """The speed of a method relative to memcpy.

    The two run in turn, so that other load on the machine affects both.
    """
    pairs = [(measure(memcpy, 1), measure(method, 1)) for _ in range(rounds)]
    return statistics.median(m for m, _ in pairs) / statistics.median(w for _, w in pairs)


def with_neighbour(method: Method, rounds: int, pause: int) -> tuple[float, float, float]:
    """Measures a method during a neighbour's rounds.

    Returns the median time in seconds, the 99th percentile of the neighbour's rounds relative to
    its median without copies, and the share of its speed that the neighbour keeps.
    """
    neighbour = Neighbour(pause)
    neighbour.start()
    time.sleep(0.3)
    usual = statistics.median(neighbour.rounds)
    neighbour.rounds.clear()
    started = time.perf_counter()
    took = measure(method, rounds)
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
    methods = bench.methods()
    memcpy = next(iter(methods.values()))
    for method in methods.values():
        method()  # touches all memory
    unit = measure(memcpy, args.rounds)
    print(f"{args.mib} MiB in {bench.count} blocks, {LAYERS} layers, {PAGE >> 10} KiB pages")
    print("method                 alone   busy Python   engine-like: speed  p99 round  kept")
    for name, method in methods.items():
        quiet = relative_speed(method, memcpy, args.rounds)
        busy, _, _ = with_neighbour(method, args.rounds, 0)
        like, slowest, kept = with_neighbour(method, args.rounds, 2 << 20)
        print(
            f"{name:<21} {quiet:>5.2f}x {unit / busy:>11.2f}x {unit / like:>18.2f}x"
            f" {slowest:>9.1f}x {kept:>5.0%}",
            flush=True,
        )
    print(f"1.00x is {bench.count * BLOCK / unit / 1e9:.1f} GB/s, {unit * 1e3:.1f} ms")


if __name__ == "__main__":
    main()
