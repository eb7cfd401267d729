"""A Dynamo worker that computes nothing: python -m live.bench_worker DIRECTORY.

It is what lab/front's stub is to HTTP routers. It registers with Dynamo's runtime, streams chunks
at fixed times, keeps a cache of blocks and publishes the cache's events. It writes the model that
it serves to DIRECTORY, unless another worker has. The first line of output is {"ready": true}.
Each line of input is answered with the counters, and the end of the input ends the worker.

A chunk is one token, which Dynamo's frontend makes one word of text: the time from the arrival of
the request to the sending of the chunk, less CHUNK_MS for each earlier chunk, in units of TICK_US.
The first chunk has three tokens before that: when the request arrived, in microseconds of the
monotonic clock, to base BASE. lab/front reads these words.
"""

from __future__ import annotations

import asyncio
import collections
import json
import os
import pathlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvloop
from dynamo.llm import (
    KvEventPublisher,
    ModelInput,
    ModelRuntimeConfig,
    ModelType,
    WorkerType,
    register_model,
)
from dynamo.runtime import DistributedRuntime
from live import model

# As in lab/front.
BLOCK = 16
CAPACITY = 20_000  # blocks
WORDS = 150_000
BASE = 100_000
TICK_US = 10
CHUNKS = 20
CHUNK_MS = 10

ENDPOINT = "bench.backend.generate"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def word(number: int) -> str:
    """The word of a token in a prompt of the load: four digits to base 36."""
    out = ""
    for _ in range(4):
        number, digit = divmod(number, 36)
        out = _DIGITS[digit] + out
    return out


class Cache:
    """A prefix cache. Beyond its capacity the blocks that were stored first are removed."""

    def __init__(self, publisher: Any) -> None:
        self._publisher = publisher
        self._resident: set[int] = set()
        self._order: collections.deque[int] = collections.deque()

    def admit(self, tokens: list[int]) -> int:
        """Stores a prompt and publishes the events. Returns the tokens that were cached before."""
        hashes, last = [], 0
        for at in range(0, len(tokens) - BLOCK + 1, BLOCK):
            last = hash((last, *tokens[at : at + BLOCK]))
            hashes.append(last)
        hits = 0
        while hits < len(hashes) and hashes[hits] in self._resident:
            hits += 1
        if new := hashes[hits:]:
            self._store(tokens[hits * BLOCK : len(hashes) * BLOCK], new, hashes[:hits])
        return min(hits, max(0, len(tokens) - 1) // BLOCK) * BLOCK

    def _store(self, tokens: list[int], new: list[int], before: list[int]) -> None:
        removed = []
        for block in new:
            if block in self._resident:
                continue
            if len(self._order) == CAPACITY:
                removed.append(self._order.popleft())
                self._resident.remove(removed[-1])
            self._resident.add(block)
            self._order.append(block)
        if removed:
            self._publisher.publish_removed(removed)
        parent = before[-1] if before else None
        self._publisher.publish_stored(tokens, [BLOCK] * len(new), new, parent)


class Worker:
    """Answers requests and counts them."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._requests = self._prompts = self._cached = 0

    def counts(self) -> dict[str, int]:
        """The counters, by lab/front's names."""
        return {
            "requests": self._requests,
            "prompt_tokens": self._prompts,
            "cached_tokens": self._cached,
        }

    async def generate(self, request: dict[str, Any], context: Any) -> AsyncIterator[Any]:
        """Streams the chunks. A prompt of one unknown word stays open after the first chunk."""
        arrived = time.monotonic_ns()
        tokens = request["token_ids"]
        self._requests += 1
        self._prompts += len(tokens)
        self._cached += self._cache.admit(tokens)
        us = arrived // 1000
        head = [us // BASE**2, us // BASE % BASE, us % BASE]
        for i in range(CHUNKS):
            due = arrived + (i + 1) * CHUNK_MS * 1_000_000
            await asyncio.sleep(max(0, due - time.monotonic_ns()) / 1e9)
            since = (time.monotonic_ns() - arrived) // 1000 - i * CHUNK_MS * 1000
            sent = [min(max(0, since // TICK_US), WORDS - 1)]  # the timer may be early
            words = sent if i else head + sent
            chunk: dict[str, Any] = {"token_ids": [model.WORD + t for t in words]}
            if i == CHUNKS - 1:
                chunk["finish_reason"] = "length"
            yield chunk
            if tokens == [model.UNKNOWN]:
                await context.async_killed_or_stopped()
                return


async def main() -> None:
    """Serves until the input ends."""
    loop = asyncio.get_running_loop()
    directory = pathlib.Path(sys.argv[1])
    if not directory.exists():
        model.write(directory, [word(i) for i in range(WORDS)])
    runtime = DistributedRuntime(
        loop,
        os.environ["DYN_DISCOVERY_BACKEND"],
        "tcp",
        event_plane=os.environ["DYN_EVENT_PLANE"],
        response_plane="tcp",
    )
    endpoint = runtime.endpoint(ENDPOINT)
    worker = Worker(Cache(KvEventPublisher(endpoint, kv_block_size=BLOCK, enable_local_indexer=True)))
    config = ModelRuntimeConfig()
    config.total_kv_blocks = CAPACITY
    config.enable_local_indexer = True
    await register_model(
        ModelInput.Tokens,
        ModelType.Chat | ModelType.Completions,
        endpoint,
        str(directory),
        "stub",
        worker_type=WorkerType.Aggregated,
        kv_cache_block_size=BLOCK,
        runtime_config=config,
    )
    serving = asyncio.ensure_future(endpoint.serve_endpoint(worker.generate, graceful_shutdown=False))
    print(json.dumps({"ready": True}), flush=True)
    while await loop.run_in_executor(None, sys.stdin.readline):
        if serving.done():
            serving.result()  # raises the error
            return
        print(json.dumps(worker.counts()), flush=True)
    runtime.shutdown()


if __name__ == "__main__":
    uvloop.run(main())
