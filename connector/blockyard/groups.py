"""The KV groups of a hybrid model, and the blocks of each group that a prefix needs.

A group is a set of layers that keep the same part of a prompt. A group of full attention keeps all
of the prompt. The others are sparse: they keep a window, a chunk or one state. Each group divides a
prompt into blocks of its own size. A slot of the agent has one block of one group.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

FULL = "full"
SLIDING = "sliding"
CHUNKED = "chunked"
STATE = "state"

MAX_GROUPS = 64
ALL_GROUPS = -1  # a job of a model without groups: one slot has the block of every KV group


class Group(NamedTuple):
    """The geometry of one group, as HELLO carries it.

    window: tokens of a window (the computed token included) or of a chunk, otherwise 0. block_size:
    tokens of a block. block_bytes: a block's bytes in all layers and local ranks. eagle: a hit also
    matches the block behind the prefix, which a draft model computes again. States ignore it.
    """

    kind: str
    window: int
    block_size: int
    block_bytes: int
    layers: int
    eagle: bool = False

    def needs(self, tokens: int) -> range:
        """The group's blocks that a prefix of `tokens` needs, a multiple of block_size."""
        end = tokens // self.block_size
        if self.kind == SLIDING:
            window = max(1, -(-(self.window - 1) // self.block_size))
            return range(max(0, end - window), end)
        if self.kind == CHUNKED:
            return range(tokens // self.window * self.window // self.block_size, end)
        if self.kind == STATE:
            return range(max(0, end - 1), end)
        return range(end)

    def matches(self, tokens: int) -> range:
        """The blocks that the agent must have for a prefix: needs(), and one more with `eagle`."""
        needs = self.needs(tokens)
        return range(needs.start, needs.stop + 1) if self.behind else needs

    @property
    def behind(self) -> int:
        """Tokens behind a prefix that a hit also matches."""
        return self.block_size if self.eagle and self.kind != STATE else 0


class Groups(tuple[Group, ...]):
    """All groups of a model, in the engine's order. A group's number is its index."""

    __slots__ = ()

    def __new__(cls, members: Iterable[Group]) -> Groups:
        """ValueError for a set of groups that the agent does not serve."""
        made = super().__new__(cls, members)
        if not 1 <= len(made) <= MAX_GROUPS:
            raise ValueError(f"KV groups: {len(made)}, want 1..{MAX_GROUPS}")
        if not any(group.kind == FULL for group in made):
            raise ValueError("KV groups: none of full attention")
        return made

    @property
    def primary(self) -> int:
        """The first group of full attention."""
        return next(number for number, group in enumerate(self) if group.kind == FULL)

    @property
    def page(self) -> int:
        """Tokens of a block of the chain of keys: every block size is a multiple."""
        return math.gcd(*(group.block_size for group in self))

    @property
    def align(self) -> int:
        """The least common multiple of the block sizes. Every served prefix is a multiple."""
        return math.lcm(*(group.block_size for group in self))

    def longest(self, limit: int, known: int) -> int:
        """The longest prefix of at most `limit` tokens that `known` tokens of a prompt can find."""
        limit = min(limit, known - max(group.behind for group in self))
        return max(0, limit - limit % self.align)

    def as_maps(self) -> list[dict[str, object]]:
        """The list that HELLO carries."""
        return [group._asdict() for group in self]
