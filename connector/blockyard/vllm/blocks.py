"""References on vLLM's device blocks, so that a block keeps its bytes while a store reads it."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from typing import Any

# How long vLLM is asked to wait for a store to end before it preempts a request instead. A
# store takes milliseconds; longer than this the answer is no, whatever is in flight.
PREEMPTION_GRACE_S = 0.05

GROUP = (0).to_bytes(4, "big")  # ends the hashes of the first KV group


class PoolBlocks:
    """DeviceBlocks of a SchedulerSession on vLLM's BlockPool.

    Used by the engine's thread alone, as the pool is.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._held: dict[int, int] = {}
        self._waiting_since = 0.0

    def hold(self, block_ids: Sequence[int]) -> None:
        """One reference more on each block, freed blocks that nobody has reused included."""
        blocks = self._pool.blocks
        self._pool.touch([blocks[number] for number in block_ids])
        held = self._held
        for number in block_ids:
            held[number] = held.get(number, 0) + 1

    def release(self, block_ids: Sequence[int]) -> None:
        """One reference less on each, last block first: prefixes are to be reused last."""
        held = self._held
        for number in block_ids:
            left = held.get(number, 0) - 1
            if left < 0:
                raise ValueError(f"device block {number}: released more often than held")
            if left:
                held[number] = left
            else:
                del held[number]
        blocks = self._pool.blocks
        self._pool.free_blocks([blocks[number] for number in reversed(block_ids)])
        self._waiting_since = 0.0

    def free_count(self) -> int:
        """Blocks that nobody references."""
        return int(self._pool.get_num_free_blocks())

    def before_reset(self, let_go: Callable[[], None]) -> None:
        """Has let_go() called when vLLM empties the pool and only stores are in its way.

        vLLM empties a pool only if no block is referenced, and does not ask connectors first. An
        engine that is idle may not take the steps in which a store would end.
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
        """Whether blocks are in use only because a store reads them, for a short time yet.

        Asked when vLLM found no block and is about to preempt a request, which costs far more
        than the milliseconds of a copy. True for PREEMPTION_GRACE_S at most without a release.
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
    """What other threads than the engine's read of vLLM's BlockPool: CachePool of the session.

    Nothing here changes the pool or iterates over what changes: the list of all blocks has one
    length for ever, and each block's hash is one reference.
    """

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self._blocks = pool.blocks

    def __len__(self) -> int:
        return len(self._blocks)

    def total(self) -> int:
        """Blocks that requests can have: all but vLLM's null block."""
        return len(self._blocks) - 1

    def used(self) -> int:
        """Blocks that somebody references."""
        return max(0, self.total() - int(self._pool.get_num_free_blocks()))

    def cached_hashes(self, first: int, count: int) -> bytes:
        """Hashes of the blocks `first` and on that the prefix cache has, as vLLM's events say them.

        The pool's key of a block is the digest of its tokens and of what they follow, and the
        number of the KV group in four bytes. Events carry the digest's last eight bytes. All
        groups of a model that is supported keep the same tokens, so the first one's will do.
        """
        found = []
        for block in self._blocks[first : first + count]:
            key = block.block_hash
            if key is None:
                continue
            if type(key) is not bytes:
                raise TypeError(f"the pool's keys are {type(key).__name__}, want bytes")
            if key[-4:] == GROUP:
                found.append(int.from_bytes(key[-12:-4], "big"))
        return struct.pack(f"<{len(found)}Q", *found)
