"""What the leader knows of requests and of the device blocks that copies read.

TensorRT-LLM has no references on blocks that a connector could take. A request keeps its blocks
while it runs (V1 manager), and after its end until the workers report it as saved, when
request_finished() said that something is still being saved. So a hold is a count here, and the
leader answers and reports by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from blockyard.namespace import Identity, bounded

BAD_PAGE = -1  # a block that has no page in a layer group


class HeldBlocks:
    """Counts of the copies that read a device block: the session's DeviceBlocks."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: Counter[int] = Counter()

    def hold(self, block_ids: Sequence[int]) -> None:
        """One more copy of each."""
        self._counts.update(block_ids)

    def release(self, block_ids: Sequence[int]) -> None:
        """One copy of each less. ValueError for a block that is not held."""
        for block in block_ids:
            left = self._counts[block] - 1
            if left < 0:
                raise ValueError(f"device block {block} is released more often than held")
            if left:
                self._counts[block] = left
            else:
                del self._counts[block]

    def free_count(self) -> int:
        """Blocks of the pool that no copy reads."""
        return max(self.total - len(self._counts), 0)

    def any(self, block_ids: Iterable[int]) -> bool:
        """Whether a copy reads one of these."""
        return bool(self._counts) and not self._counts.keys().isdisjoint(block_ids)

    def __len__(self) -> int:
        return len(self._counts)


class Request:
    """One request, from the question for its hit to its end.

    tokens is the list that the session reads too: it only grows. pages has one list of block ids
    for each layer group. computed counts tokens whose KV steps that were launched have written
    or are about to write; settled those of earlier steps only. offered counts the blocks that
    were offered to the agent. offer is the range of blocks that the engine was promised and has
    not allocated yet, slots where their bytes are, packed, from block slots_from on.
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
        "offer",
        "slots",
        "slots_from",
        "promised",
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
        self.offer: tuple[int, int] | None = None
        self.slots = b""
        self.slots_from = 0
        self.promised = False

    def step(self, data: Any) -> None:
        """Takes in one entry of the engine's scheduler output."""
        groups = getattr(data, "new_block_ids_by_layer_group", None) or [data.new_block_ids]
        while len(self.pages) < len(groups):
            self.pages.append([])
        for known, new in zip(self.pages, groups):
            known.extend(new)
        self.settled = int(data.computed_position)
        self.computed = self.settled + int(data.num_scheduled_tokens)

    def grow(self, tokens: Sequence[int]) -> None:
        """Takes in the request's tokens as they are now, of which those known are the first."""
        self.tokens.extend(tokens[len(self.tokens) :])

    def cut(self, start: int, end: int, block_tokens: int) -> None:
        """Takes tokens start..end-1 out of the offer.

        What is cut is at one of its ends: the engine found the beginning in its own cache
        meanwhile, or has no room for the rest. Blocks that are cut in part are loaded whole,
        because the engine counts on their other tokens.
        """
        if self.offer is None or end <= start:
            return
        first, last = self.offer
        low = max(first, -(-start // block_tokens))
        high = min(last, end // block_tokens)
        if low >= high:
            return
        self.offer = (high, last) if low == first else (first, low)


def whole_pages(pages: Sequence[Sequence[int]], first: int, last: int) -> int:
    """The end of the blocks first..last-1 that have a page in every group, without a gap."""
    end = min([last, *(len(group) for group in pages)])
    for block in range(first, end):
        if any(group[block] == BAD_PAGE for group in pages):
            return block
    return max(end, first)


def salt_of(source: Any) -> str:
    """The cache salt of a request or of its scheduler data; older releases have a number."""
    salt = getattr(source, "cache_salt", None)
    if salt is not None:
        return bounded(str(salt))
    number = getattr(source, "cache_salt_id", None)
    return "" if number is None else f"trtllm-salt-id:{number}"


def skip_reason(request: Any) -> str:
    """Why nothing of a request may be kept or loaded; empty when it may.

    Tokens alone do not name the blocks of these: the engine gives an adapter a number of its own,
    and media have placeholders.
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
        # An empty list is none; a tensor has no truth value of its own.
        if value is not None and not (isinstance(value, (list, tuple)) and not value):
            return "multimodal"
    if getattr(getattr(request, "sampling_config", None), "beam_width", 1) > 1:
        return "beams"
    return ""


def _called(value: Any) -> bool:
    """A member that is a property in one release and a method in another."""
    return bool(value() if callable(value) else value)
