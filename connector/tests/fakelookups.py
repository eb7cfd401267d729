"""The questions to the modelled agent of fakeagent: FIT, LOOKUP and CLAIM."""

from __future__ import annotations

import random
from typing import Any

from blockyard import frames
from blockyard.packed import Slot, pack_slots
from tests.fakelink import FakeLink, Memory, Open, Session, Violation


def spots(body: dict) -> list[tuple[int, int]]:
    """Group and number of the blocks that a frame names."""
    first = body["first"]
    return [(body.get("group", 0), block) for block in range(first, first + body["count"])]


class FakeLookups:
    """A part of FakeAgent."""

    rng: random.Random
    slots: list[Memory]
    claims: list[tuple[int, bytes, bytes]]
    workers: int

    def find(self, key: tuple) -> int | None:
        """The slot of a resident block."""
        raise NotImplementedError

    def _find(self, link: FakeLink, session: Session, corr: int, body: dict) -> Open | None:
        raise NotImplementedError

    def _unpin(self, r: Open, blocks: Any, checked: bool = True) -> None:
        raise NotImplementedError

    def on_lookup(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        r = self._find(link, session, corr, body)
        if r is None:
            return
        first, ready, coming, group = body["first"], [], 0, body.get("group", 0)
        end = min(first + body["count"], len(r.tokens) // r.size(group))
        for block in range(first, end):
            slot = self.find(r.key(block, group))
            if slot is None or (slot not in r.pins.values() and self.rng.random() < 0.02):
                break
            if not body["wait_ms"] and self.rng.random() < 0.1:
                coming = 1  # report that the block is on disk
                break
            if r.pins.get((group, block)) != slot:
                self._unpin(r, [(group, block)], checked=False)
                r.pins[group, block] = slot
                self.slots[slot].pins[id(r)] += 1
            ready.append(slot)
        link.answer(
            frames.LOOKUP_HIT,
            corr,
            req=body["req"],
            gen=body["gen"],
            group=group,
            first=first,
            ready=len(ready),
            coming=coming,
            sources=b"\x01" * len(ready),
            slots=pack_slots(Slot(0, s, self.slots[s].generation) for s in ready),
        )

    def on_fit(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        r = self._find(link, session, corr, body)
        if r is not None:
            tokens = r.fit(body["tokens"], lambda key: self.find(key) is not None)
            link.answer(frames.FITTED, corr, req=body["req"], gen=body["gen"], tokens=tokens)

    def on_claim(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        r = self._find(link, session, corr, body)
        if r is None:
            return
        slots = []
        for spot in spots(body):
            if spot not in r.pins:
                raise Violation(f"CLAIM of group and block {spot}, which is not pinned")
            slots.append(r.pins[spot])
        packed = pack_slots(Slot(0, s, self.slots[s].generation) for s in slots)
        self.claims.append((body["job"], packed, body["blocks"]))
        link.answer(frames.CLAIMED, corr, job=body["job"], workers=self.workers)
