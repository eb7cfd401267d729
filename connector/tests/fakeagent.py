"""A simple model of an agent without sockets. A test chooses when the agent handles each frame.

The model answers by the rules of docs/protocol.md. It raises Violation when a connector breaks a
rule that the real agent cannot check, or would answer with ERROR. A slot's content is the object
that the test's workers wrote.
"""

from __future__ import annotations

import collections
import random
from collections.abc import Callable
from typing import Any

from blockyard import frames
from blockyard.groups import Groups
from blockyard.packed import Slot, pack_slots, unpack_slots, unpack_u32
from tests.fakelink import FakeLink, Memory, Open, Session, Violation
from tests.fakelookups import FakeLookups, spots


class FakeAgent(FakeLookups):
    """Slots, sessions, and the sessions of earlier agents.

    in_use(slot): whether a copy of the slot is in flight. orphaned: sessions of agents that died,
    by number. faults, fullness: probabilities of a refused frame, and of a full socket.
    """

    def __init__(
        self,
        rng: random.Random,
        slots: int,
        in_use: Callable[[int], bool],
        groups: Groups | None = None,
    ) -> None:
        self.rng = rng
        self.groups = groups
        self.minor = frames.VERSION_MINOR
        self.slots = [Memory() for _ in range(slots)]
        self.in_use = in_use
        self.links: list[FakeLink] = []
        self.orphaned: dict[int, Session] = {}
        self.alive = True
        self.nonce = 1
        self.faults = 0.0
        self.fullness = 0.0
        self.max_requests = 6
        self.workers = 1  # the number in CLAIMED
        self.claims: list[tuple[int, bytes, bytes]] = []  # LOADs: job, slots, device blocks
        self.seen: dict[int, set[int]] = collections.defaultdict(set)
        self.commits = 0
        self._sessions = 0

    # Life and death.

    def connect(self, _: str) -> FakeLink:
        if not self.alive:
            raise OSError("no agent")
        link = FakeLink(self)
        self.links.append(link)
        return link

    def die(self) -> None:
        """kill -9: sealed blocks remain, and so do granted and pinned slots for their sessions."""
        self.alive = False
        for link in self.links:
            link.closed = True
            if link.session is not None and not link.session.bye:
                self.orphaned[link.session.number] = link.session
        self.links.clear()
        for memory in self.slots:
            if memory.state == "resident" and self.rng.random() < 0.3:  # not sealed yet
                memory.state = "quarantined" if memory.pins else "free"
                memory.key = None

    def start(self) -> None:
        self.alive = True
        self.nonce += 1

    def cut(self, link: FakeLink) -> None:
        """Ends a connection of living processes: unpins at once and quarantines granted slots."""
        link.closed = True
        session = link.session
        for r in session.all() if session is not None and not session.bye else ():
            for slot in r.grants:
                self.slots[slot].state = "quarantined"
            self._unpin(r, r.pins, checked=False)
        if link in self.links:
            self.links.remove(link)

    def full(self, frame_type: int) -> bool:
        return frame_type not in (frames.HELLO, frames.BYE) and self.rng.random() < self.fullness

    # Slots.

    def _free(self, slot: int) -> None:
        if self.in_use(slot):
            raise Violation(f"slot {slot} is freed while a copy is in flight")
        memory = self.slots[slot]
        memory.state, memory.key = "free", None

    def _unpin(self, r: Open, blocks: Any, checked: bool = True) -> None:
        for block in list(blocks):
            slot = r.pins.pop(block, None)
            if slot is None:
                continue
            memory = self.slots[slot]
            memory.pins[id(r)] -= 1
            memory.pins += collections.Counter()
            if checked and not memory.pins and memory.state != "quarantined" and self.in_use(slot):
                raise Violation(f"slot {slot} is unpinned while a copy is in flight")

    def _drop_grants(self, r: Open) -> None:
        for slot in list(r.grants):
            del r.grants[slot]
            self._free(slot)

    def _take_slot(self) -> int | None:
        free = [i for i, m in enumerate(self.slots) if m.state == "free"]
        idle = [i for i, m in enumerate(self.slots) if m.state == "resident" and not m.pins]
        pick = free or idle
        return self.rng.choice(pick) if pick else None

    def find(self, key: tuple) -> int | None:
        for i, memory in enumerate(self.slots):
            if memory.state == "resident" and memory.key == key:
                return i
        return None

    # Frames.

    def handle(self, link: FakeLink) -> None:
        """Handles the oldest sent frame."""
        frame_type, corr, body = link.sent.popleft()
        if frame_type == frames.HELLO:
            self._hello(link, corr, body)
            return
        session = link.session
        if session is None or session.bye:
            raise Violation(f"{frames.name(frame_type)} outside of a session")
        if frame_type == frames.STATS:
            return
        give_back = (frames.ABORT, frames.RELEASE, frames.CLOSE, frames.BYE, frames.RESET)
        if frame_type not in give_back and self.rng.random() < self.faults:
            if frame_type == frames.OPEN:  # even a refused OPEN ends the earlier generation
                self.on_open(link, session, corr, body)
                if self.rng.random() < 0.5:
                    del session.requests[body["req"]]
            if frame_type in (frames.OPEN, frames.APPEND) and body["req"] in session.requests:
                session.requests[body["req"]].broken = True
            self._error(link, corr, body, frames.LIMIT)
            return
        getattr(self, "on_" + frames.name(frame_type).lower())(link, session, corr, body)

    def _error(self, link: FakeLink, corr: int, body: dict, code: str) -> None:
        req = body.get("req", 0)
        link.answer(frames.ERROR, corr, code=code, retryable=False, req=req, text="refused")

    def _hello(self, link: FakeLink, corr: int, body: dict) -> None:
        self._sessions += 1
        link.session = Session(self._sessions, self.nonce, body["namespace"]["weights"])
        link.answer(
            frames.WELCOME,
            corr,
            major=frames.VERSION_MAJOR,
            minor=self.minor,
            session=self._sessions,
            agent_nonce=self.nonce,
            max_requests=self.max_requests,
            host_enabled=True,
            warning="",
        )

    def _find(self, link: FakeLink, session: Session, corr: int, body: dict) -> Open | None:
        r = session.requests.get(body["req"])
        if r is None or r.generation != body["gen"]:
            self._error(link, corr, body, frames.NOT_FOUND)
            return None
        if r.broken:
            self._error(link, corr, body, frames.BAD_STATE)
            return None
        return r

    def _holder(self, session: Session, body: dict) -> Open | None:
        if (body["req"], body["gen"]) == (frames.RESUMED_REQUEST, 0):
            return session.inherited
        r = session.requests.get(body["req"])
        if r is not None and r.generation == body["gen"]:
            return r
        return session.superseded.get((body["req"], body["gen"]))

    def on_open(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        number, generation = body["req"], body["gen"]
        if generation in self.seen[number]:
            raise Violation(f"request {number} generation {generation} is opened twice")
        self.seen[number].add(generation)
        old = session.requests.get(number)
        if old is None and len(session.requests) >= self.max_requests:
            raise Violation("more requests than WELCOME allows")
        if old is not None:
            if old.generation >= generation:
                raise Violation("a generation that is not higher")
            self._unpin(old, old.pins)
            if old.grants:
                session.superseded[number, old.generation] = old
        identity = (session.weights, body["lora"], body["salt"])
        tokens = unpack_u32(body["tokens"])
        session.requests[number] = Open(generation, identity, tokens, self.groups)

    def on_append(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        r = self._find(link, session, corr, body)
        if r is None:
            return
        if body["offset"] != len(r.tokens):
            raise Violation(f"APPEND at {body['offset']}, want {len(r.tokens)}")
        r.tokens.extend(unpack_u32(body["tokens"]))

    def on_store(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        r = self._find(link, session, corr, body)
        if r is None:
            return
        grants, present, refused = [], 0, 0
        for group, block in spots(body):
            if (block + 1) * r.size(group) > len(r.tokens):
                raise Violation(f"STORE of block {block}, which is not complete")
            key = r.key(block, group)
            busy = any(key in other.grants.values() for other in session.all())
            if self.find(key) is not None or busy:
                present += 1
                continue
            slot = self._take_slot() if self.rng.random() < 0.9 else None
            if slot is None:
                refused += 1
                continue
            memory = self.slots[slot]
            memory.generation += 1
            memory.state, memory.key, memory.content = "granted", None, None
            r.grants[slot] = key
            packed = pack_slots([Slot(0, slot, memory.generation)])
            grants.append(block.to_bytes(4, "little") + packed[:8] + bytes(4) + packed[8:])
        link.answer(
            frames.GRANT,
            corr,
            req=body["req"],
            gen=body["gen"],
            grants=b"".join(grants),
            present=present,
            refused=refused,
        )

    def _granted(self, session: Session, body: dict) -> tuple[Open, list[int]] | None:
        r = self._holder(session, body)
        slots = unpack_slots(body["slots"])
        if r is None:
            return None
        for slot in slots:
            memory = self.slots[slot.index]
            if slot.index not in r.grants or memory.generation != slot.generation:
                raise Violation(f"{slot} is not granted to request {body['req']}")
        return r, [slot.index for slot in slots]

    def on_commit(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        found = self._granted(session, body)
        if found is None:
            raise Violation("COMMIT for a request without grants")
        r, slots = found
        for slot in slots:
            if self.in_use(slot):
                raise Violation(f"COMMIT of slot {slot} while a copy is in flight")
            memory, key = self.slots[slot], r.grants.pop(slot)
            if memory.content != key:
                raise Violation(f"slot {slot} has {memory.content}, want {key}")
            if self.find(key) is not None:
                self._free(slot)  # another request has committed the block first
            else:
                memory.state, memory.key = "resident", key
            self.commits += 1
        link.answer(frames.OK, corr)

    def on_abort(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        found = self._granted(session, body)
        if found is None:
            self._error(link, corr, body, frames.NOT_FOUND)
            return
        for slot in found[1]:
            del found[0].grants[slot]
            self._free(slot)

    def on_release(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        r = self._holder(session, body)
        if r is None:
            self._error(link, corr, body, frames.NOT_FOUND)
            return
        self._unpin(r, spots(body))

    def on_close(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        r = self._holder(session, body)
        if r is None:
            self._error(link, corr, body, frames.NOT_FOUND)
            return
        self._unpin(r, r.pins)
        self._drop_grants(r)
        if r is session.inherited:
            session.inherited = Open(0, (), [])
        else:
            session.requests.pop(body["req"], None)

    def on_bye(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        for r in session.all():
            self._unpin(r, r.pins)
            self._drop_grants(r)
        session.bye = True
        link.answer(frames.OK, corr)

    def on_reset(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        superseded = [r for r in session.superseded.values() if r.grants]
        inherited = session.inherited
        holds = inherited is not None and (inherited.pins or inherited.grants)
        if session.requests or superseded or holds:
            raise Violation("RESET with open requests, grants or pins")
        for memory in self.slots:
            if memory.state == "resident" and memory.key[0] == session.weights and not memory.pins:
                memory.state, memory.key = "free", None
        link.answer(frames.OK, corr)

    def on_resume(self, link: FakeLink, session: Session, corr: int, body: dict) -> None:
        if session.resumed:
            raise Violation("RESUME twice")
        session.resumed = True
        held = session.inherited = Open(0, (), [])
        former = self.orphaned.get(body["session"])
        granted, pinned = [], []
        if former is not None and former.nonce != self.nonce and former.weights != session.weights:
            raise Violation("RESUME of another namespace")
        if former is not None and former.nonce != self.nonce:
            del self.orphaned[body["session"]]
            granted, pinned = self._inherit(held, former, body)
        link.answer(frames.RESUMED, corr, granted=pack_slots(granted), pinned=pack_slots(pinned))

    def _inherit(self, held: Open, former: Session, body: dict) -> tuple[list[Slot], list[Slot]]:
        named = {s.index: s for s in unpack_slots(body["granted"])}
        pinned = {s.index: s for s in unpack_slots(body["pinned"])}
        if len(named) * 16 != len(body["granted"]) or len(pinned) * 16 != len(body["pinned"]):
            raise Violation("RESUME names a slot twice")
        kept: list[Slot] = []
        kept_pins: list[Slot] = []
        for r in former.all():
            for slot, key in list(r.grants.items()):
                if slot in named and named[slot].generation == self.slots[slot].generation:
                    held.grants[slot] = key
                    kept.append(named[slot])
                    del r.grants[slot]
            self._drop_grants(r)
            for slot in set(r.pins.values()) & set(pinned):
                if self.slots[slot].state == "resident" and slot not in held.pins.values():
                    held.pins[len(kept_pins)] = slot
                    self.slots[slot].pins[id(held)] += 1
                    kept_pins.append(pinned[slot])
            self._unpin(r, r.pins)
        return kept, kept_pins
