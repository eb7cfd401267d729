"""kill -9 of either side of the shared memory, for bench.gpu.

    python -m bench.gpu_kill engine DRIVER FD LAYERS PAGE TOTAL     (children of bench.gpu)
    python -m bench.gpu_kill agent SOCKET SLOTS SLOT_BYTES SEED

A child ends at the end of its standard input, so no child outlives bench.gpu.
"""

from __future__ import annotations

import mmap
import os
import pathlib
import random
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import NamedTuple

from bench.gpu_driver import Driver
from bench.gpu_memory import (
    Layout,
    Memory,
    extent_of,
    layer_first,
    random_bytes,
    same_bytes,
    shared_memory,
)
from blockyard import native
from blockyard.native_plane import NativePlane

START_SECONDS = 60.0
COMMAND = (sys.executable, "-m", "bench.gpu_kill")
SEED = 5


class Sizes(NamedTuple):
    """A layout on the command line. total: bytes of all pages."""

    layers: int
    page: int
    total: int

    def layout(self) -> Layout:
        """The layout that both processes have."""
        return layer_first("layer first", *self)


def killed_engine(driver: Driver, plane: NativePlane, sizes: Sizes) -> None:
    """Kills an engine while its device copies from one half of the slots and into the other.

    RuntimeError when bytes of the first half have changed, or when another engine cannot use the
    memory afterwards.
    """
    memory = Memory(driver, plane, sizes.layout())
    with closing(memory):
        half = memory.count // 2
        write_slots(memory.file, memory.count, memory.slot, SEED)
        before = memory.slots(0, half)
        arguments = ["engine", driver.path, str(memory.file), *map(str, sizes)]
        with child(arguments, memory.file) as engine:
            assert engine.stdout is not None
            wait_readable(engine.stdout.fileno(), "the engine copies")
            if engine.stdout.readline() != b"copying\n":
                raise RuntimeError("the engine has ended by itself")
        same_bytes("slots that the engine only read", memory.slots(0, half), before)
        memory.pin()
        memory.check()


def killed_agent(driver: Driver, plane: NativePlane, sizes: Sizes) -> None:
    """Kills the agent, which made the memory, while this process loads from it.

    RuntimeError when a byte of the load is wrong, or when the memory or its pins cannot be used
    afterwards.
    """
    layout = sizes.layout()
    slot_bytes = sum(page.bytes for page in layout.pages)
    ours, theirs = socket.socketpair()
    arguments = ["agent", str(theirs.fileno()), str(layout.blocks), str(slot_bytes), str(SEED)]
    with ours, child(arguments, theirs.fileno()) as agent:
        theirs.close()
        wait_readable(ours.fileno(), "the agent sends its memory")
        _, files, _, _ = socket.recv_fds(ours, 1, 1)
        if not files:
            raise RuntimeError("the agent has ended by itself")
        memory = Memory(driver, plane, layout, files[0])
        os.close(files[0])
        with closing(memory):
            memory.pin()
            noise = random_bytes(random.Random(SEED + 1), layout.kv_bytes)
            driver.write(memory.kv, noise)
            ids = memory.ids(SEED)
            memory.begin(False, ids)
            kill(agent)
            memory.finish()
            want, slots = bytearray(noise), content(layout.blocks * slot_bytes, SEED)
            for source, target, n in memory.runs(ids):
                want[target : target + n] = slots[source : source + n]
            memory.compare(want)
            memory.check()


@contextmanager
def child(arguments: list[str], file: int) -> Iterator[subprocess.Popen[bytes]]:
    """A child with a descriptor of this process. Killed at the end."""
    connector = str(pathlib.Path(__file__).resolve().parent.parent)
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        pass_fds=[file],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": connector},
    )
    with process:
        try:
            yield process
        finally:
            kill(process)


def kill(process: subprocess.Popen[bytes]) -> None:
    """kill -9, and waits for the end."""
    process.kill()
    process.wait()


def wait_readable(file: int, what: str) -> None:
    """Waits until a descriptor is readable. RuntimeError after a minute."""
    if not select.select([file], [], [], START_SECONDS)[0]:
        raise RuntimeError(f"not within {START_SECONDS} s: {what}")


def content(size: int, seed: int) -> bytes:
    """What the agent's slots hold."""
    return random_bytes(random.Random(seed), size)


def write_slots(file: int, slots: int, slot_bytes: int, seed: int) -> None:
    """Writes the content of all slots through a mapping, as an agent does."""
    ready = extent_of(slots, slot_bytes)
    with mmap.mmap(file, ready["file_bytes"]) as memory:
        memory[ready["data_offset"] :] = content(slots * slot_bytes, seed)


def ended() -> bool:
    """Whether the standard input is at its end."""
    return bool(select.select([0], [], [], 0)[0])


def engine(driver: str, file: int, sizes: Sizes) -> None:
    """Copies from the first half of the slots and into the other one, until it is killed."""
    memory = Memory(Driver(driver), NativePlane(native.library()), sizes.layout(), file)
    memory.pin()
    ids, half = memory.ids(SEED)[0], memory.count // 2
    told = False
    while not ended():
        memory.begin(False, [ids[:half]])
        memory.begin(True, [ids[half:]], first=half)
        memory.finish()
        if not told:
            print("copying", flush=True)
        told = True


def agent(to: int, slots: int, slot_bytes: int, seed: int) -> None:
    """Makes the shared memory, sends the descriptor, and reads the memory until it is killed."""
    file = shared_memory(extent_of(slots, slot_bytes)["file_bytes"])
    write_slots(file, slots, slot_bytes, seed)
    with socket.socket(fileno=to) as connection:
        socket.send_fds(connection, [b"\0"], [file])
        while not ended():
            os.pread(file, 1 << 20, 0)


if __name__ == "__main__":
    role, *given = sys.argv[1:]
    if role == "engine":
        engine(given[0], int(given[1]), Sizes(*map(int, given[2:])))
    else:
        agent(*map(int, given))
