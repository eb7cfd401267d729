"""The engine side of KV events, with only pyzmq and msgspec.

Sends HELLO to an agent. Publishes block events as vLLM does: on a PUB socket,
with a ROUTER socket for replays. The live stream lacks some frames on purpose.
After all batches it prints its cache as one line of JSON:

    {"batches": N, "dropped": N, "blocks": [[token, ...], ...]}

Each resident block has a list: the tokens of its sequence from the start to the
end of the block. Then it answers replays until its standard input ends. The
blocks are random. The frames are vLLM's.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import secrets
import select
import socket
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec
import zmq

MAGIC = 0x31445942
HELLO, WELCOME = 1, 2
HEADER = struct.Struct("<IHHII")
MAX_FRAME = 32 << 10
VOCABULARY = 32000
END_OF_REPLAY = b"\xff" * 8


class BlockStored(msgspec.Struct, omit_defaults=True, tag=True):
    """Blocks are in the device's prefix cache now."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None


class BlockRemoved(msgspec.Struct, omit_defaults=True, tag=True):
    """Blocks have left the device's prefix cache."""

    block_hashes: list[int]
    medium: str | None


class AllBlocksCleared(msgspec.Struct, omit_defaults=True, tag=True):
    """The prefix cache was reset."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


class Batch(msgspec.Struct, array_like=True):
    """The cache events of one step."""

    ts: float
    events: list[Event]
    data_parallel_rank: int | None = None


@dataclass
class Block:
    """A resident block. tokens: from the start of its sequence."""

    tokens: list[int]
    parent: int | None
    children: set[int] = field(default_factory=set)


class Cache:
    """A prefix cache without a model."""

    def __init__(self, block_size: int, capacity: int, seed: int) -> None:
        self.block_size = block_size
        self.capacity = capacity
        self.blocks: dict[int, Block] = {}
        self._random = random.Random(seed)
        self._secret = secrets.token_bytes(32)

    def step(self) -> list[Event]:
        """Stores, evicts or clears blocks at random. Returns the events."""
        if self._random.random() < 0.01:
            self.blocks.clear()
            return [AllBlocksCleared()]
        count = self._random.randint(1, 6)
        events: list[Event] = []
        if removed := self._evict(len(self.blocks) + count - self.capacity):
            events.append(BlockRemoved(block_hashes=removed, medium="GPU"))
        events.append(self._store(count))
        return events

    def _store(self, count: int) -> BlockStored:
        parent = None
        if self.blocks and self._random.random() < 0.7:
            parent = self._random.choice(list(self.blocks))
        first, tokens = parent, []
        hashes: list[int] = []
        prefix = self.blocks[parent].tokens if parent is not None else []
        for _ in range(count):
            new = [self._random.randrange(VOCABULARY) for _ in range(self.block_size)]
            prefix = prefix + new
            name = self._name(prefix)
            self.blocks[name] = Block(prefix, parent)
            if parent is not None:
                self.blocks[parent].children.add(name)
            hashes.append(name)
            tokens += new
            parent = name
        return BlockStored(
            block_hashes=hashes,
            parent_block_hash=first,
            token_ids=tokens,
            block_size=self.block_size,
            lora_id=None,
            medium="GPU",
            lora_name=None,
        )

    def _evict(self, count: int) -> list[int]:
        """Removes the last blocks of sequences, as an engine does."""
        removed: list[int] = []
        while len(removed) < count:
            leaf = self._random.choice([h for h, b in self.blocks.items() if not b.children])
            parent = self.blocks.pop(leaf).parent
            if parent is not None:
                self.blocks[parent].children.discard(leaf)
            removed.append(leaf)
        return removed

    def _name(self, prefix: list[int]) -> int:
        """The engine's own hash of a block. No other process can compute it."""
        data = self._secret + struct.pack(f"<{len(prefix)}I", *prefix)
        return int.from_bytes(hashlib.sha256(data).digest()[-8:], "big")


class Publisher:
    """vLLM's two event sockets."""

    def __init__(self, drop_one_in: int, buffered: int, seed: int) -> None:
        context = zmq.Context.instance()
        self._pub = context.socket(zmq.PUB)
        self._router = context.socket(zmq.ROUTER)
        for sock in (self._pub, self._router):
            sock.setsockopt(zmq.LINGER, 0)
            sock.setsockopt(zmq.SNDHWM, 100_000)
        self.events = self._bind(self._pub)
        self.replay = self._bind(self._router)
        self.dropped = 0
        self._drop_one_in = drop_one_in
        self._next = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=buffered)
        self._encoder = msgspec.msgpack.Encoder()
        self._random = random.Random(seed)

    @staticmethod
    def _bind(sock: zmq.Socket) -> str:
        sock.bind("tcp://127.0.0.1:*")
        return sock.getsockopt_string(zmq.LAST_ENDPOINT)

    def publish(self, events: list[Event]) -> None:
        payload = self._encoder.encode(Batch(time.time(), events, 0))
        seq = self._next
        self._next += 1
        self._buffer.append((seq, payload))
        if self._drop_one_in and self._random.randrange(self._drop_one_in) == 0:
            self.dropped += 1
            return
        self._pub.send_multipart((b"", struct.pack(">Q", seq), payload))

    def answer_replays(self, wait_ms: int) -> None:
        """Answers the replay requests that arrive within wait_ms."""
        while self._router.poll(wait_ms):
            frames = self._router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            peer, start = frames[0], struct.unpack(">Q", frames[2])[0]
            for seq, payload in list(self._buffer):
                if seq >= start:
                    self._router.send_multipart((peer, b"", b"", struct.pack(">Q", seq), payload))
            self._router.send_multipart((peer, b"", b"", END_OF_REPLAY, b""))
            wait_ms = 0


def say_hello(path: str, worker: int, block_size: int, publisher: Publisher) -> socket.socket:
    """Opens a scheduler's session with the agent. The session ends with the socket."""
    namespace = {
        "model": "interop", "weights": "none", "dtype": "bfloat16", "num_layers": 1, "outer_dim": 1,
        "page_size": block_size, "inner_dim": 16, "dtype_width_bytes": 2,
        "layout": "fully_contiguous", "tp": 1, "pp": 1, "dcp": 1, "kv_format": "interop-1",
    }  # fmt: skip
    body = msgspec.msgpack.encode(
        {
            "major": 1, "minor": 0, "role": "scheduler", "engine": "interop engine",
            "incarnation": secrets.randbits(53), "worker_id": worker, "dp_rank": 0, "session": 0,
            "namespace": namespace, "events_endpoint": publisher.events,
            "replay_endpoint": publisher.replay, "events_topic": "", "want_evicted": False,
        }
    )  # fmt: skip
    session = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    session.connect(path)
    session.send(HEADER.pack(MAGIC, HELLO, 0, 1, len(body)) + body)
    answer = session.recv(MAX_FRAME)
    kind = HEADER.unpack_from(answer)[1]
    if kind != WELCOME:
        raise SystemExit(f"the agent answered HELLO with {kind}: {answer[HEADER.size:]!r}")
    return session


def main() -> None:
    """Publishes batches, prints the cache, and answers replays until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", required=True, help="the agent's socket")
    parser.add_argument("--worker", type=int, default=1)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--device-blocks", type=int, default=256)
    parser.add_argument("--batches", type=int, default=500)
    parser.add_argument("--drop-one-in", type=int, default=8, help="drops one in N frames; 0: none")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    cache = Cache(args.block_size, args.device_blocks, args.seed)
    publisher = Publisher(args.drop_one_in, args.batches, args.seed)
    session = say_hello(args.socket, args.worker, args.block_size, publisher)
    for _ in range(args.batches):
        publisher.publish(cache.step())
        publisher.answer_replays(wait_ms=1)
    truth = {
        "batches": args.batches,
        "dropped": publisher.dropped,
        "blocks": [block.tokens for block in cache.blocks.values()],
    }
    print(json.dumps(truth), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        publisher.answer_replays(wait_ms=10)
    session.close()


if __name__ == "__main__":
    main()
