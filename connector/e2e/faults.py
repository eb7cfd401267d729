"""Faults from outside the product: bytes that change in the files of an agent's tiers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from e2e import model
from tests.agentproc import AgentProcess

# Where the first slot of a host file begins: behind one page of generation words, which is
# enough for the slots of the small files that the tests use. Slots have no gaps, because a
# block here is a multiple of a page.
_DATA_OFFSET = 4096


class Place(NamedTuple):
    """Where a block lies."""

    path: str
    offset: int


class Block(NamedTuple):
    """A stored block, as the agent lists it."""

    namespace: str
    hash: str
    host: Place | None
    disk: Place | None


def blocks(agent: AgentProcess) -> list[Block]:
    """Every block that the agent keeps, in the order in which it lists them."""

    def place(block: dict[str, Any], tier: str) -> Place | None:
        found = block.get(tier)
        return Place(found["path"], found["offset"]) if found else None

    return [
        Block(pool["namespace"], b["hash"], place(b, "host"), place(b, "disk"))
        for pool in agent.get("/v1/pools")
        for b in pool["blocks"]
    ]


def host_place(block: Block) -> Place:
    """Where it lies in host memory; it must."""
    assert block.host is not None, f"block {block.hash} is not in host memory"
    return block.host


def disk_place(block: Block) -> Place:
    """Where it lies on disk; it must."""
    assert block.disk is not None, f"block {block.hash} is not on disk"
    return block.disk


def read(place: Place) -> bytes:
    """The bytes of a block."""
    with open(place.path, "rb") as f:
        return os.pread(f.fileno(), model.BLOCK_BYTES, place.offset)


def write(place: Place, data: bytes) -> None:
    """Overwrites the beginning of a block."""
    with open(place.path, "r+b") as f:
        os.pwrite(f.fileno(), data, place.offset)
        os.fsync(f.fileno())


def flip(place: Place, at: int = model.BLOCK_BYTES // 2) -> None:
    """Flips one bit of a block."""
    spot = Place(place.path, place.offset + at)
    write(spot, bytes([read(spot)[0] ^ 0x10]))


def drop(agent: AgentProcess, tier: str, wanted: list[Block]) -> None:
    """Has the agent forget blocks in one tier ("host" or "disk")."""
    by_namespace: dict[str, list[str]] = {}
    for block in wanted:
        by_namespace.setdefault(block.namespace, []).append(block.hash)
    for namespace, hashes in by_namespace.items():
        body = {"namespace": namespace, "tier": tier, "sequence_hashes": hashes}
        answer = agent.post("/v1/reset-blocks", body)
        assert not answer["not_reset"] and not answer["not_found"], f"{tier}: {answer}"


@contextmanager
def given_away(place: Place) -> Iterator[None]:
    """A slot in host memory has another generation and other bytes for a while, as when it was
    given to another block under the reader's eyes."""
    index, rest = divmod(place.offset - _DATA_OFFSET, model.BLOCK_BYTES)
    assert rest == 0, f"{place}: no slot of {model.BLOCK_BYTES} bytes begins there"
    word = struct.Struct("<Q")
    data = read(place)
    with open(place.path, "r+b") as f:
        (generation,) = word.unpack(os.pread(f.fileno(), word.size, index * word.size))
        os.pwrite(f.fileno(), word.pack(generation + 2), index * word.size)
        write(place, data[::-1])
        try:
            yield
        finally:
            write(place, data)
            os.pwrite(f.fileno(), word.pack(generation), index * word.size)
