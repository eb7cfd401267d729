"""Hand-overs: a request whose prefill another engine of the node computes.

A router has one engine compute the prompt and sends the request to this engine. The other engine
stores its blocks in the agent. This engine answers its scheduler "ask again" until the agent has
the blocks, so that it loads them instead of computing them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from .frames import MAX_REQUEST_TOKENS

KEY = "blockyard"  # in kv_transfer_params
MAX_DEADLINE_MS = 60_000

_FIRST_PAUSE = 0.001  # seconds between lookups, at first and at most
_LAST_PAUSE = 0.032

_now = time.monotonic


class HandOver(NamedTuple):
    """What a router asks for: wait for `blocks` blocks of the prompt, for `seconds` at most."""

    blocks: int
    seconds: float


def read_hand_over(params: Mapping[str, Any] | None) -> HandOver | None:
    """The hand-over in a request's kv_transfer_params, None without one.

    Raises ValueError for a value that is out of range.
    """
    given = params.get(KEY) if params else None
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise ValueError(f"kv_transfer_params.{KEY}: {given!r}, want an object")
    blocks = _whole(given, "await", MAX_REQUEST_TOKENS)
    return HandOver(blocks, _whole(given, "deadline_ms", MAX_DEADLINE_MS) / 1000)


def hand_over_of(request: Any, note: Callable[[str, Exception], None]) -> HandOver | None:
    """The hand-over in an engine's request. A malformed one goes to note() and is ignored."""
    try:
        return read_hand_over(getattr(request, "kv_transfer_params", None))
    except ValueError as err:
        note("hand_over", err)
        return None


def _whole(given: Mapping[str, Any], key: str, high: int) -> int:
    value = given.get(key)
    if type(value) is not int or not 1 <= value <= high:
        raise ValueError(f"kv_transfer_params.{KEY}.{key}: {value!r}, want 1..{high}")
    return value


class Wait:
    """The wait of one request for the blocks of its hand-over."""

    __slots__ = ("_blocks", "_pause", "_until")

    def __init__(self, hand_over: HandOver) -> None:
        self._blocks = hand_over.blocks
        self._until = _now() + hand_over.seconds
        self._pause = _FIRST_PAUSE

    def wanted(self, total: int) -> int:
        """How many leading blocks to wait for, of a prompt of `total` complete blocks.

        A router that does not know the exact tokens may ask for too many. total is 0 without an
        agent: then there is nothing to wait for.
        """
        return min(self._blocks, total)

    def end(self, count: dict[str, int], total: int, have: int) -> None:
        """Counts the hand-over. have: leading blocks that the engine need not compute."""
        wanted = self.wanted(total) if total else self._blocks
        got = min(have, wanted)
        count["hand_overs"] += 1
        count["hand_over_blocks"] += got
        count["hand_over_missing"] += wanted - got

    def over(self) -> bool:
        """Whether the deadline has passed."""
        return _now() >= self._until

    def due(self, asked_at: float) -> bool:
        """Whether to look up again. The pauses grow, so that a long wait costs little."""
        if _now() - asked_at < self._pause:
            return False
        self._pause = min(2 * self._pause, _LAST_PAUSE)
        return True
