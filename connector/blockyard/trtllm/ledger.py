"""The leader's records of requests, and of the device blocks that copies read.

TensorRT-LLM gives connectors no references on blocks. With the V1 manager a request keeps its
blocks while it runs. With either manager the blocks outlive the request if request_finished()
returned True: until the workers report the request as saved. So HeldBlocks only counts copies, and
the leader's answer to request_finished() uses the counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from blockyard.namespace import Identity, bounded

BAD_PAGE = -1  # a block that has no page in a layer group


class HeldBlocks:
    """DeviceBlocks of a SchedulerSession: counts the copies that read each device block.

    total: blocks of the pool.
    """

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[int] = Counter()

    def hold(self, block_ids: Sequence[int]) -> None:
        """Counts one more copy of each block."""
        self._counts.update(block_ids)

    def release(self, block_ids: Sequence[int]) -> None:
        """Counts one copy of each block less. ValueError for a block that is not held."""
        for block in block_ids:
            left = self._counts[block] - 1
            if left < 0:
                raise ValueError(f"device block {block}: released more often than held")
            if left:
                self._counts[block] = left
            else:
                del self._counts[block]

    def free_count(self) -> int:
        """How many blocks of the pool no copy reads."""
        return max(self.total - len(self._counts), 0)

    def any(self, block_ids: Iterable[int]) -> bool:
        """Whether a copy reads one of the blocks."""
        return bool(self._counts) and not self._counts.keys().isdisjoint(block_ids)

    def __len__(self) -> int:
        return len(self._counts)


class Request:
    """One request, from its lookup to its end.

    tokens: the request's tokens. The session reads the same list, so the list only grows. pages:
    a list of block ids for each layer group. settled: tokens whose KV earlier steps have written.
    computed: tokens whose KV all scheduled steps write. offered: blocks offered to the agent.
    hit_reported: the engine has the hit and has not allocated its blocks yet. hit_range: first
    and end block of the hit. hit_slots: the packed slots of the hit, from block hit_start on.
    """

    __slots__ = (
        "id",
        "rid",
        "generation",
        "identity",
        "tokens",
        "pages",
        "settled",
        "computed",
        "offered",
        "hit_range",
        "hit_slots",
        "hit_start",
        "hit_reported",
    )

    def __init__(self, request_id: int, generation: int, identity: Identity) -> None:
        self.id = request_id
        self.rid = str(request_id)
        self.generation = generation
        self.identity = identity
        self.tokens: list[int] = []
        self.pages: list[list[int]] = []
        self.settled = 0
        self.computed = 0
        self.offered = 0
        self.hit_range: tuple[int, int] | None = None
        self.hit_slots = b""
        self.hit_start = 0
        self.hit_reported = False

    def step(self, data: Any) -> None:
        """Takes the request's entry in the engine's scheduler output."""
        groups = getattr(data, "new_block_ids_by_layer_group", None) or [data.new_block_ids]
        while len(self.pages) < len(groups):
            self.pages.append([])
        for known, new in zip(self.pages, groups):
            known.extend(new)
        self.settled = int(data.computed_position)
        self.computed = self.settled + int(data.num_scheduled_tokens)

    def grow(self, tokens: Sequence[int]) -> None:
        """Adds the new tokens. `tokens` has all tokens of the request."""
        self.tokens.extend(tokens[len(self.tokens) :])

    def cut(self, start: int, end: int, block_tokens: int) -> None:
        """Removes tokens start..end-1 from the hit.

        The removed tokens are at one end of the hit. The engine has found the first tokens in its
        own cache, or has no room for the last ones. A partly removed block stays in the hit,
        because the engine uses its other tokens.
        """
        if self.hit_range is None or end <= start:
            return
        first, last = self.hit_range
        low = max(first, -(-start // block_tokens))
        high = min(last, end // block_tokens)
        if low >= high:
            return
        self.hit_range = (high, last) if low == first else (first, low)


def whole_pages(pages: Sequence[Sequence[int]], first: int, last: int) -> int:
    """The end of the blocks from `first` on with a page in every group, `last` at most."""
    end = min([last, *(len(group) for group in pages)])
    for block in range(first, end):
        if any(group[block] == BAD_PAGE for group in pages):
            return block
    return max(end, first)


def salt_of(source: Any) -> str:
    """The cache salt of a request or of its scheduler data. Older releases have a number."""
    salt = getattr(source, "cache_salt", None)
    if salt is not None:
        return bounded(str(salt))
    number = getattr(source, "cache_salt_id", None)
    return "" if number is None else f"trtllm-salt-id:{number}"


def skip_reason(request: Any) -> str:
    """Why a request must run without a cache. Empty when it may use the cache.

    Tokens do not identify the blocks of these requests. A LoRA adapter has only a number of the
    engine, and media have placeholder tokens.
    """
    if getattr(request, "is_dummy_request", False):
        return "dummy"
    if _called(getattr(request, "is_generation_only_request", False)):
        return "generation_only"
    if getattr(request, "lora_task_id", None) is not None:
        return "lora"
    for name in (
        "multimodal_hashes",
        "multimodal_positions",
        "multimodal_lengths",
        "multimodal_embedding",
        "prompt_embedding_table",
    ):
        value = getattr(request, name, None)
        # An empty list means none. The truth value of a tensor is undefined.
        if value is not None and not (isinstance(value, (list, tuple)) and not value):
            return "multimodal"
    if getattr(getattr(request, "sampling_config", None), "beam_width", 1) > 1:
        return "beams"
    return ""


def _called(value: Any) -> bool:
    """The value of a member that is a property in some releases and a method in others."""
    return bool(value() if callable(value) else value)
