"""Stores: copies of computed blocks into granted slots, from the offer to COMMIT.

A store references its device blocks until the agent refuses them or the workers have copied them.
So the engine cannot reuse the blocks meanwhile.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Protocol

from . import frames
from .connection import Connection, close_if_done
from .groups import ALL_GROUPS
from .jobs import STORE, Job, Jobs
from .orphans import OrphanedSlots
from .packed import pack_u32, unpack_grants
from .packer import pack_append, pack_store
from .request import Request
from .transport import Frame
from .work import Store

_BLOCKS = frames.MAX_BLOCKS_PER_FRAME
_GRANT_SECONDS = 1.0
_APPEND_TOKENS = 4096

_now = time.monotonic


class DeviceBlocks(Protocol):
    """The engine's device blocks. The engine's adapter implements them."""

    def hold(self, block_ids: Sequence[int]) -> None:
        """Adds a reference to each block."""

    def release(self, block_ids: Sequence[int]) -> None:
        """Drops a reference of each block, the last block first."""

    def free_count(self) -> int:
        """How many blocks have no reference."""


def _settled(r: Request) -> None:
    """Counts one store of r as settled."""
    r.unsettled -= 1
    close_if_done(r)


class Offer:
    """Blocks that a request has offered with STORE. given_up: the store does not need GRANT.

    group: the KV group of the blocks, or ALL_GROUPS.
    """

    __slots__ = (
        "request",
        "generation",
        "connection",
        "first",
        "ids",
        "group",
        "deadline",
        "given_up",
    )

    def __init__(
        self,
        r: Request,
        connection: Connection,
        first: int,
        ids: list[list[int]],
        group: int = ALL_GROUPS,
    ) -> None:
        self.request = r
        self.generation = r.generation
        self.connection = connection
        self.first = first
        self.ids = ids  # device blocks, of each KV group that a slot has
        self.group = group
        self.deadline = _now() + _GRANT_SECONDS
        self.given_up = False


class Stores:
    """The stores of all requests. Only the engine's thread may use it."""

    def __init__(
        self, count: dict[str, int], jobs: Jobs, orphans: OrphanedSlots, block_tokens: int
    ) -> None:
        self.offers: deque[Offer] = deque()  # pending offers, oldest first
        self.queued: list[tuple[Job, Store]] = []  # jobs for take()
        self.held = 0  # device blocks on which references are held
        self.limit = 0
        self.blocks: DeviceBlocks | None = None
        self._count = count
        self._jobs = jobs
        self._orphans = orphans
        self._block_tokens = block_tokens

    # Offering.

    def offer(self, r: Request, blocks: int, block_ids: Sequence[Sequence[int]]) -> bool:
        """Offers the unoffered ones of the first `blocks` blocks. False when some are left.

        A later call may offer the rest. Reasons: the limit on held blocks is reached, the packer
        has the request, or the agent does not read its socket.
        """
        connection = r.connection
        takes = self.takes(r)
        if takes is None or connection is None or blocks <= r.offered or not block_ids:
            return True
        if not takes:
            return False
        known = len(r.tokens) // self._block_tokens
        blocks = min(blocks, known, *[len(ids) for ids in block_ids])
        while r.offered < blocks:
            room = (self.limit - self.held) // len(block_ids)
            n = min(blocks - r.offered, _BLOCKS, room)
            if n <= 0:
                self._count["deferred"] += 1
                return False
            if not self._append(r, connection, r.offered + n):
                return False
            if not self._store(r, connection, n, block_ids):
                return False
        return True

    def takes(self, r: Request) -> bool | None:
        """Whether blocks of r can be offered now. False: later. None: not any more."""
        connection = r.connection
        if connection is None or not connection.usable or not r.store or r.broken or r.unpackable:
            return None
        if self.blocks is None:
            return None
        return r.packing is None and not connection.stalled

    def _append(self, r: Request, connection: Connection, blocks: int) -> bool:
        """Sends the missing tokens of the leading blocks. False: some tokens were not sent."""
        end = blocks * self._block_tokens
        while r.sent < end:
            stop = min(end, r.sent + _APPEND_TOKENS)
            body = partial(pack_append, r, r.generation, r.sent, stop)
            if not connection.later(frames.APPEND, body):
                return False
            r.sent = stop
        return True

    def _store(
        self, r: Request, connection: Connection, n: int, block_ids: Sequence[Sequence[int]]
    ) -> bool:
        """References the next n blocks and sends STORE. False when STORE was not sent."""
        assert self.blocks is not None
        first = r.offered
        offer = Offer(r, connection, first, [list(ids[first : first + n]) for ids in block_ids])
        held = list(chain.from_iterable(offer.ids))
        self.blocks.hold(held)
        self.held += len(held)
        if not self._send(offer, n):
            self._let_go(held)
            return False
        r.offered = first + n
        return True

    def _send(self, offer: Offer, n: int) -> bool:
        """Sends STORE for referenced blocks. False: not sent."""
        r = offer.request
        group = max(0, offer.group)
        body = partial(pack_store, r, r.generation, offer.first, n, group)
        if not offer.connection.later(frames.STORE, body, self._granted, offer):
            return False
        self.offers.append(offer)
        r.unsettled += 1
        self._count["stores"] += 1
        return True

    # Blocks of one KV group.

    def reserve(self, ids: Sequence[int]) -> bool:
        """References blocks before they can be offered. False at the limit on held blocks."""
        if self.blocks is None or self.held + len(ids) > self.limit:
            return False
        self.blocks.hold(ids)
        self.held += len(ids)
        return True

    def offer_group(self, r: Request, group: int, size: int, first: int, ids: list[int]) -> int:
        """Offers reserved blocks of a group, from its block `first` on. size: tokens of a block.

        Takes over the references. Returns how many blocks were offered. The references of the
        others are dropped.
        """
        connection = r.connection
        offered, tokens = 0, (first + len(ids)) * size
        if self.takes(r) and connection is not None and len(r.tokens) >= tokens:
            if self._append(r, connection, tokens // self._block_tokens):
                offered = self._offer_pieces(r, connection, group, first, ids)
        if offered < len(ids):
            self._let_go(ids[offered:])
        return offered

    def _offer_pieces(
        self, r: Request, connection: Connection, group: int, first: int, ids: list[int]
    ) -> int:
        """Offers reserved blocks in frames of their largest size. Returns how many were sent."""
        for at in range(0, len(ids), _BLOCKS):
            piece = ids[at : at + _BLOCKS]
            if not self._send(Offer(r, connection, first + at, [piece], group), len(piece)):
                return at
        return len(ids)

    def drop(self, ids: Sequence[int]) -> None:
        """Drops the references of reserved blocks that will not be offered."""
        self._let_go(ids)

    # GRANT.

    def _granted(self, offer: Offer, frame: Frame | None) -> None:
        """Handles the answer to STORE. frame is None when the connection ended."""
        if frame is None or frame.type != frames.GRANT:
            if frame is not None:
                self._count["skipped" if offer.request.unpackable else "errors"] += 1
            self._end_offer(offer)
            return
        blocks, slots = unpack_grants(frame.body["grants"])
        first, count = offer.first, len(offer.ids[0])
        whole = blocks == list(range(first, first + count))
        sane = (
            whole
            or not blocks
            or (
                len(set(blocks)) == len(blocks)
                and min(blocks) >= first
                and max(blocks) < first + count
            )
        )
        if offer.given_up or not sane or not offer.connection.usable:
            # GRANT is overdue or invalid: no copy begins.
            if not sane:
                self._count["errors"] += 1
            self._end_offer(offer)
            self._give_back(offer, slots)
            return
        self._count["dropped_stores"] += frame.body["refused"]
        self._count["present_blocks"] += frame.body["present"]
        if blocks:
            self._begin(offer, None if whole else [block - first for block in blocks], slots)
        else:
            self._end_offer(offer, dropped=0)

    def _begin(self, offer: Offer, wanted: list[int] | None, slots: bytes) -> None:
        """Begins a job that copies the wanted blocks of an offer, None for all of them. Releases
        the other blocks."""
        r, ids = offer.request, offer.ids
        if wanted is not None:
            ids = [[group[i] for i in wanted] for group in offer.ids]
            kept = set(wanted)
            rest = [b for group in offer.ids for i, b in enumerate(group) if i not in kept]
            self._let_go(rest)
        held = list(chain.from_iterable(ids))
        job = self._jobs.add(STORE, r, slots, offer.connection, held, offer.generation)
        self.offers.remove(offer)  # near the front, because answers keep the order
        packed = b"".join([pack_u32(group) for group in ids])
        store = Store(job.number, slots, packed, offer.group)
        self.queued.append((job, store))

    def _give_back(self, offer: Offer, slots: bytes) -> None:
        """Sends ABORT for unused slots, unless CLOSE or BYE has returned them."""
        r = offer.request
        connection = offer.connection
        if not slots:
            return
        if r.number in connection.requests or offer.generation != r.opened:
            body = frames.encode_abort(r.number, offer.generation, slots)
            connection.must(frames.ABORT, body)

    def _end_offer(self, offer: Offer, dropped: int | None = None) -> None:
        """Ends an offer without a copy. dropped: blocks that count as lost; None means all."""
        if offer.given_up:
            return
        offer.given_up = True
        self.offers.remove(offer)
        ids = list(chain.from_iterable(offer.ids))
        self._count["dropped_stores"] += len(offer.ids[0]) if dropped is None else dropped
        self._let_go(ids)
        _settled(offer.request)

    def _let_go(self, ids: Sequence[int]) -> None:
        assert self.blocks is not None
        self.held -= len(ids)
        self.blocks.release(ids)

    def superseded(self, connection: Connection) -> list[tuple[int, int]]:
        """Request number and generation of each earlier generation that may still have slots.

        Its STORE or COMMIT is unanswered. CLOSE of the current generation keeps these slots.
        """
        found = {}
        for _, asked in list(connection.waiting.values()):  # the packer's thread may add some
            r = asked.request if isinstance(asked, (Offer, Job)) else None
            if r is not None and asked.generation != r.opened:
                found[r.number, asked.generation] = None
        return list(found)

    def expire(self) -> None:
        """Gives up offers whose GRANT is overdue."""
        now = _now()
        while self.offers and self.offers[0].deadline <= now:
            offer = self.offers[0]
            offer.connection.stall()
            self._count["late"] += 1
            self._end_offer(offer)

    def abandon_offers(self) -> None:
        """Ends all offers, because the connection takes no more work."""
        while self.offers:
            self._end_offer(self.offers[0])

    def yield_blocks(self) -> None:
        """Releases the device blocks of all stores. Ends all offers and discards all jobs."""
        self.abandon_offers()
        for job in self._jobs.flying.values():
            if job.kind == STORE:
                job.discard = True
                self._let_go(job.held)
                job.held = ()

    def abandon_queued(self) -> None:
        """Ends the jobs that no worker knows.

        CLOSE or BYE returns their slots. Slots of an earlier generation need ABORT.
        """
        for job, _ in self.queued:
            self._jobs.end(job)
            assert job.request is not None and job.connection is not None
            if job.generation != job.request.opened:
                body = frames.encode_abort(job.request.number, job.generation, job.slots)
                job.connection.must(frames.ABORT, body)
            self._count["dropped_stores"] += job.blocks
            self._let_go(job.held)
            _settled(job.request)
        self.queued = []

    # Copying.

    def take(self) -> list[Store]:
        """The queued jobs for the workers. Their copies may be in flight from now on."""
        taken, self.queued = self.queued, []
        for job, _ in taken:
            job.taken = True
        return [store for _, store in taken]

    def ended(self, job: Job) -> None:
        """Ends a store that all workers have reported: commits or returns its slots."""
        r = job.request
        assert r is not None and job.connection is not None
        self._let_go(job.held)
        connection = job.connection
        good = not job.failed and not job.discard
        if not good:
            self._count["dropped_stores"] += job.blocks
        if connection.ended or connection.link.closed:
            self._orphans.filled(job, good)
        elif good:
            body = partial(frames.encode_commit, r.number, job.generation, job.slots)
            connection.must(frames.COMMIT, body, self._committed, job)
        else:
            body = frames.encode_abort(r.number, job.generation, job.slots)
            connection.must(frames.ABORT, body)
        _settled(r)

    def _committed(self, job: Job, frame: Frame | None) -> None:
        if frame is not None and frame.type == frames.OK:
            self._count["stored_blocks"] += job.blocks
            return
        self._count["dropped_stores"] += job.blocks
        connection = job.connection
        if frame is not None and connection is not None and job.request is not None:
            # A refused COMMIT keeps the slots granted. CLOSE of a later generation keeps them too.
            self._count["errors"] += 1
            body = frames.encode_abort(job.request.number, job.generation, job.slots)
            connection.must(frames.ABORT, body)
