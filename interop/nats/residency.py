"""The blocks of one publisher's owner, by the consumer's rules of docs/events.md."""

from __future__ import annotations

from typing import Any

TIERS = {"device": 0, "host_pinned": 1, "disk": 2, "external": 3}
_MASK = (1 << 64) - 1
# Limit of events that wait for the answer to a query. Dropped events become another gap.
MAX_WAITING = 4096


def mix(block: int, tier: int) -> int:
    """The term of one block in one tier in the digest."""
    x = (block + 0x9E3779B97F4A7C15 * (tier + 1)) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class Residency:
    """The state of one publisher: a set of (block, tier).

    cursor: the last applied event id. waiting: events above a gap, by id. querying: whether a
    query is in flight.
    """

    def __init__(self) -> None:
        self.cursor = 0
        self.held: set[tuple[int, int]] = set()
        self.digest = 0
        self.waiting: dict[int, dict[str, Any]] = {}
        self.querying = False

    def offer(self, event: dict[str, Any]) -> bool:
        """Applies an event. False when a gap is before the event, which then waits."""
        number = event["event"]["event_id"]
        if number <= self.cursor:
            return True
        if number > self.cursor + 1 and event["event"]["data"] != "cleared":
            if len(self.waiting) < MAX_WAITING:
                self.waiting[number] = event
            return False
        self._apply(event)
        self.cursor = number
        return True

    def catch_up(self) -> bool:
        """Applies the waiting events. False when a gap is before one of them."""
        for number in sorted(self.waiting):
            event = self.waiting.pop(number)
            if not self.offer(event):
                return False
        return True

    def replace(self, events: list[dict[str, Any]], last: int) -> None:
        """Replaces the state by a dump. last: the dump's event id."""
        self.held.clear()
        self.digest = 0
        for event in events:
            self._apply(event)
        self.cursor = last

    def agrees(self, announcement: dict[str, Any]) -> bool:
        """Whether digest and block count agree with an announcement."""
        announced = announcement["digest"], announcement["blocks"]
        return announced == (self.digest, len(self.held))

    def _apply(self, event: dict[str, Any]) -> None:
        data = event["event"]["data"]
        if data == "cleared":
            self.held.clear()
            self.digest = 0
            return
        tier = TIERS[event["storage_tier"]]
        for block in data.get("stored", {}).get("blocks", ()):
            self._change(block["block_hash"], tier, present=True)
        for block in data.get("removed", {}).get("block_hashes", ()):
            self._change(block, tier, present=False)

    def _change(self, block: int, tier: int, present: bool) -> None:
        if ((block, tier) in self.held) == present:
            return
        if present:
            self.held.add((block, tier))
            self.digest = (self.digest + mix(block, tier)) & _MASK
        else:
            self.held.discard((block, tier))
            self.digest = (self.digest - mix(block, tier)) & _MASK
