"""A consumer with pyzmq and msgspec alone: ENDPOINT REPLAY_ENDPOINT BLOCKS.

Follows the events until BLOCKS blocks are held, then asks for a replay of what it has
seen and compares the bytes. Prints one line of JSON: the blocks as [hash, medium,
parent, tokens, adapter, salt], the sequence numbers, and how many replayed batches
were equal. Decoding is strict: what does not fit the types is an error.
"""

import json
import sys
from typing import Optional, Union

import msgspec
import zmq

END = b"\xff" * 8
TIMEOUT_MS = 30_000


class BlockStored(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Consecutive blocks that became resident."""

    block_hashes: list[int]
    parent_block_hash: Optional[int]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str]
    cache_salt: Optional[str] = None


class BlockRemoved(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Blocks that are resident no more."""

    block_hashes: list[int]
    medium: Optional[str]


class AllBlocksCleared(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Nothing is resident."""


Event = Union[BlockStored, BlockRemoved, AllBlocksCleared]
BATCH = msgspec.msgpack.Decoder(tuple[float, list[Event], int])
Held = dict[tuple[int, Optional[str]], list]


def apply(held: Held, event: Event) -> None:
    """Changes held by one event."""
    if isinstance(event, AllBlocksCleared):
        held.clear()
        return
    if isinstance(event, BlockRemoved):
        for block in event.block_hashes:
            del held[block, event.medium]
        return
    parent = event.parent_block_hash
    for i, block in enumerate(event.block_hashes):
        tokens = event.token_ids[i * event.block_size : (i + 1) * event.block_size]
        if len(tokens) != event.block_size or (block, event.medium) in held:
            raise SystemExit(f"block {block}: {len(tokens)} tokens, or stored twice")
        held[block, event.medium] = [parent, tokens, event.lora_name, event.cache_salt]
        parent = block


def replay(context: zmq.Context, endpoint: str, live: dict[int, bytes]) -> int:
    """Asks for every batch that was seen live; how many were the same."""
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    dealer.connect(endpoint)
    dealer.send_multipart([b"", min(live).to_bytes(8, "big")])
    same = 0
    while True:
        delimiter, _, seq, payload = dealer.recv_multipart()
        if delimiter != b"":
            raise SystemExit(f"delimiter {delimiter!r}")
        if seq == END:
            dealer.close(linger=0)
            return same
        same += live.get(int.from_bytes(seq, "big")) == payload


def main() -> None:
    """Runs the program; see the module's text."""
    endpoint, replay_endpoint, blocks = sys.argv[1], sys.argv[2], int(sys.argv[3])
    context = zmq.Context()
    sub = context.socket(zmq.SUB)
    sub.setsockopt(zmq.SUBSCRIBE, b"")
    sub.setsockopt(zmq.RCVTIMEO, TIMEOUT_MS)
    sub.connect(endpoint)
    live: dict[int, bytes] = {}
    held: Held = {}
    ranks = set()
    while len(held) < blocks:
        _, seq, payload = sub.recv_multipart()
        live[int.from_bytes(seq, "big")] = payload
        _, events, rank = BATCH.decode(payload)
        ranks.add(rank)
        for event in events:
            apply(held, event)
    found = [[*key, *value] for key, value in sorted(held.items())]
    same = replay(context, replay_endpoint, live)
    print(json.dumps({"held": found, "seqs": list(live), "ranks": list(ranks), "same": same}))
    sub.close(linger=0)
    context.term()


if __name__ == "__main__":
    main()
