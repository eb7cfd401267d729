"""Overlaps: the blocks of a prompt that a router credits to workers, in one form for both products.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import xxhash
from dynamo.llm import compute_block_hash_for_seq

_SEED = 1337


class Worker(NamedTuple):
    """One data-parallel rank of one worker."""

    id: int
    rank: int


class Overlap(NamedTuple):
    """Cumulative counts of a prompt's first blocks.

    device: blocks on the device. host: these and the following blocks in host memory. disk: these
    and the following blocks on disk.
    """

    device: int
    host: int
    disk: int


Overlaps = dict[Worker, Overlap]
# By owner (kind, id, rank): the tiers of each block by its SequenceHash.
Held = dict[tuple[str, int, int], dict[int, set[str]]]
NOTHING = Overlap(0, 0, 0)


def sequence_hashes(
    tokens: list[int], block_size: int, lora: str | None = None, salt: str | None = None
) -> list[int]:
    """The SequenceHashes of a prompt's blocks, from Dynamo's own function and the chain rule."""
    out: list[int] = []
    for local in compute_block_hash_for_seq(
        tokens, block_size, lora_name=lora, cache_namespace=salt
    ):
        if out:
            pair = struct.pack("<QQ", out[-1], local & (2**64 - 1))
            out.append(xxhash.xxh3_64_intdigest(pair, seed=_SEED))
        else:
            out.append(local & (2**64 - 1))
    return out


def of_dynamo(answer: dict[str, Any]) -> Overlaps:
    """The overlaps in a KvRouter's scores. Workers without a hit are omitted."""
    found = {
        Worker(w["worker_id"], w["dp_rank"]): Overlap(
            w["device_blocks"], w["host_pinned_blocks"], w["disk_blocks"]
        )
        for w in answer["workers"]
    }
    return {w: o for w, o in found.items() if any(o)}


def held_by(dump: list[dict[str, Any]]) -> Held:
    """The tiers of each block that each owner holds, from our router's dump."""
    held: Held = {}
    for e in dump:
        event = e["event"]
        owner = held.setdefault(
            (e.get("owner_kind", "worker"), e["worker_id"], event["dp_rank"]), {}
        )
        for b in event["data"]["stored"]["blocks"]:
            owner.setdefault(b["block_hash"], set()).add(e["storage_tier"])
    return held


def of_dump(held: Held, workers: list[dict[str, Any]], hashes: list[int]) -> Overlaps:
    """The overlaps of a prompt according to our router's dump. Workers without a hit are omitted.
    """
    found = {}
    for w in workers:
        own = held.get(("worker", w["worker_id"], w["dp_rank"]), {})
        pool = held.get(("pool", w["pool"], 0), {})
        tiers = ("device", "host_pinned", "disk")
        counts, tier = [0, 0, 0], 0
        for h in hashes:
            where = own.get(h, set()) | (pool.get(h, set()) - {"device"})
            while tier < len(tiers) and tiers[tier] not in where:
                tier += 1
            if tier == len(tiers):
                break
            counts[tier] += 1
        overlap = Overlap(counts[0], counts[0] + counts[1], sum(counts))
        if any(overlap):
            found[Worker(w["worker_id"], w["dp_rank"])] = overlap
    return found
