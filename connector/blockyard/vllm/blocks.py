"""References on vLLM's device blocks, so that vLLM does not reuse a block during its store."""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any

# How long vLLM waits for a store to end before vLLM preempts a request. A store takes milliseconds.
PREEMPTION_GRACE_S = 0.05


class PoolBlocks:
    """DeviceBlocks of a SchedulerSession on vLLM's BlockPool.

    Only the engine's thread may use it, like the pool.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._held: Counter[int] = Counter()
        self._waiting_since = 0.0

    def hold(self, block_ids: Sequence[int]) -> None:
        """Adds a reference to each block. A freed block counts while vLLM has not reused it."""
        self._pool.touch(list(map(self._pool.blocks.__getitem__, block_ids)))
        self._held.update(block_ids)

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops a reference of each block, the last first, so that vLLM reuses prefixes last."""
        held = self._held
        counts = list(map(held.pop, block_ids, repeat(0)))
        if counts.count(1) != len(counts):  # some blocks have further references
            self._drop_each(block_ids, counts)
        self._pool.free_blocks(list(map(self._pool.blocks.__getitem__, reversed(block_ids))))
        self._waiting_since = 0.0

    def _drop_each(self, block_ids: Sequence[int], counts: Sequence[int]) -> None:
        held = self._held
        for number, count in zip(block_ids, counts):
            if count:
                held[number] += count
        for number in block_ids:
            left = held.pop(number, 0) - 1
            if left:
                if left < 0:
                    raise ValueError(f"device block {number}: released more often than held")
                held[number] = left

    def free_count(self) -> int:
        """How many blocks have no reference."""
        return int(self._pool.get_num_free_blocks())

    def can_uncache(self) -> bool:
        """Whether uncache() works with this pool."""
        return hasattr(self._pool, "evict_blocks")

    def uncache(self, block_ids: Sequence[int]) -> None:
        """Removes blocks from vLLM's prefix cache. Their requests keep them."""
        self._pool.evict_blocks(set(block_ids))

    def before_reset(self, let_go: Callable[[], None]) -> None:
        """Calls let_go() when vLLM empties the pool and only stores reference blocks.

        vLLM empties a pool only without any reference, and does not ask connectors first. An idle
        engine may take no step in which a store could end.
        """
        reset = getattr(self._pool, "reset_prefix_cache", None)
        if reset is None:
            return

        def reset_prefix_cache() -> Any:
            if self._held and self._all_used_are_held():
                let_go()
            return reset()

        self._pool.reset_prefix_cache = reset_prefix_cache

    def _all_used_are_held(self) -> bool:
        blocks = self._pool.blocks
        own = sum(blocks[number].ref_cnt <= count for number, count in self._held.items())
        return len(blocks) - 1 - self.free_count() == own  # the null block is never free

    def frees_soon(self) -> bool:
        """Whether only a store references some block, so that the block is free soon.

        vLLM asks before it preempts a request, which costs far more than a copy of milliseconds.
        True for PREEMPTION_GRACE_S at most without a release.
        """
        held = self._held
        if not held:
            return False
        blocks = self._pool.blocks
        if not any(blocks[number].ref_cnt <= count for number, count in held.items()):
            self._waiting_since = 0.0
            return False
        now = time.monotonic()
        if not self._waiting_since:
            self._waiting_since = now
        return now - self._waiting_since < PREEMPTION_GRACE_S


class PoolView:
    """The session's CachePool: a view of one group's blocks in vLLM's BlockPool, for any thread.

    The view never changes the pool. The list of all blocks keeps its length, and a read of a
    block's hash is atomic.
    """

    def __init__(self, pool: Any, group: int = 0) -> None:
        self._pool = pool
        self._blocks = pool.blocks
        self._group = group.to_bytes(4, "big")  # the last bytes of the group's hashes

    def __len__(self) -> int:
        return len(self._blocks)

    def total(self) -> int:
        """How many blocks requests can use: all blocks but vLLM's null block."""
        return len(self._blocks) - 1

    def used(self) -> int:
        """How many blocks have a reference."""
        return max(0, self.total() - int(self._pool.get_num_free_blocks()))

    def cached_hashes(self, first: int, count: int) -> bytes:
        """Packed event hashes of the prefix-cached blocks among `count` blocks from `first` on.

        The pool's key of a block is a digest of its prefix and tokens, and the number of its KV
        group in four bytes. Events carry the last eight bytes of the digest. The hashes of one
        group of full attention are enough.
        """
        found, group = [], self._group
        for block in self._blocks[first : first + count]:
            key = block.block_hash
            if key is None:
                continue
            if type(key) is not bytes:
                raise TypeError(f"the pool's keys are {type(key).__name__}, want bytes")
            if key[-4:] == group:
                found.append(int.from_bytes(key[-12:-4], "big"))
        return struct.pack(f"<{len(found)}Q", *found)
