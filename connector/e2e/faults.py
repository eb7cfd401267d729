"""Faults from outside the product: changed bytes in the files of an agent's tiers."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from e2e import model
from tests.agentproc import AgentProcess

# Offset of the first slot in a host file. The generation words of the small test files fit in one
# page. A block is a multiple of a page, so slots have no gaps.
_DATA_OFFSET = 4096


class Location(NamedTuple):
    """File and offset of a block."""

    path: str
    offset: int


class Block(NamedTuple):
    """A stored block, as the agent lists it."""

    namespace: str
    key: str
    group: int
    hash: str
    host: Location | None
    disk: Location | None


def blocks(agent: AgentProcess) -> list[Block]:
    """All blocks of the agent, in the order of its list."""

    def location(block: dict[str, Any], tier: str) -> Location | None:
        found = block.get(tier)
        return Location(found["path"], found["offset"]) if found else None

    return [
        Block(
            pool["namespace"],
            b["key"],
            int(b["key"].partition(":")[2] or 0),
            b["hash"],
            location(b, "host"),
            location(b, "disk"),
        )
        for pool in agent.get("/v1/pools")
        for b in pool["blocks"]
    ]


def host_location(block: Block) -> Location:
    """The block's location in host memory. AssertionError without one."""
    assert block.host is not None, f"block {block.hash} is not in host memory"
    return block.host


def disk_location(block: Block) -> Location:
    """The block's location on disk. AssertionError without one."""
    assert block.disk is not None, f"block {block.hash} is not on disk"
    return block.disk


def read(location: Location, size: int = model.BLOCK_BYTES) -> bytes:
    """The bytes of a block."""
    with open(location.path, "rb") as f:
        return os.pread(f.fileno(), size, location.offset)


def write(location: Location, data: bytes) -> None:
    """Overwrites the first bytes of a block."""
    with open(location.path, "r+b") as f:
        os.pwrite(f.fileno(), data, location.offset)
        os.fsync(f.fileno())


def slot_bytes(agent: AgentProcess) -> int:
    """The size of a slot. All pools of the agent have the same."""
    (size,) = {pool["block_bytes"] for pool in agent.get("/v1/pools")}
    return int(size)


def zero(location: Location, agent: AgentProcess) -> None:
    """Zeroes a block in a pool with one size of blocks."""
    write(location, bytes(slot_bytes(agent)))


def flip(location: Location, at: int = model.BLOCK_BYTES // 2) -> None:
    """Flips one bit in byte `at` of a block."""
    spot = Location(location.path, location.offset + at)
    write(spot, bytes([read(spot)[0] ^ 0x10]))


def drop(agent: AgentProcess, tier: str, wanted: list[Block]) -> None:
    """Removes blocks from one tier of the agent ("host" or "disk")."""
    by_namespace: dict[str, list[str]] = {}
    for block in wanted:
        by_namespace.setdefault(block.namespace, []).append(block.hash)
    for namespace, hashes in by_namespace.items():
        body = {"namespace": namespace, "tier": tier, "sequence_hashes": hashes}
        answer = agent.post("/v1/reset-blocks", body)
        assert not answer["not_reset"] and not answer["not_found"], f"{tier}: {answer}"


@contextmanager
def reassigned(location: Location, size: int = model.BLOCK_BYTES) -> Iterator[None]:
    """A context in which a host slot of `size` bytes has another generation and other bytes.

    A reader sees the same when the agent gives the slot to another block.
    """
    index, rest = divmod(location.offset - _DATA_OFFSET, size)
    assert rest == 0, f"{location}: no slot of {size} bytes begins there"
    word = struct.Struct("<Q")
    data = read(location, size)
    with open(location.path, "r+b") as f:
        (generation,) = word.unpack(os.pread(f.fileno(), word.size, index * word.size))
        os.pwrite(f.fileno(), word.pack(generation + 2), index * word.size)
        write(location, data[::-1])
        try:
            yield
        finally:
            write(location, data)
            os.pwrite(f.fileno(), word.pack(generation), index * word.size)
