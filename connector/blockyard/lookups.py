"""Lookups: open requests at the agent, ask for resident blocks, and keep the pinned prefix.

A short request is opened inline, a long one by the packer. A round sends LOOKUPs of at most 1,024
blocks each. The answers are joined to one prefix. When a block behind the prefix is loading from
disk, one more round waits for that block.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from functools import partial

from . import frames
from .connection import Connection
from .handover import Wait
from .packed import SLOT_BYTES
from .packer import INLINE_TOKENS, Pack, PackError, Packer, pack_open
from .readable import Readable
from .request import ASKED, KNOWN, LOADING, MISS, MISSED, PACKING, PASSED, Hit, Part, Request
from .transport import Frame
from .trust import Trust

_log = logging.getLogger(__name__)

_BLOCKS = frames.MAX_BLOCKS_PER_FRAME
_MAX_PARTS = 4  # LOOKUPs in a round: sending more takes a hook too long
ANSWER_SECONDS = 1.0  # limit for an answer, without the wait for the disk
_MAPPING_SECONDS = 1.0  # limit for workers to map the memory of a hit
_PACKING_SECONDS = 10.0  # limit for a prompt in the packer
_REFRESH_SECONDS = 0.25  # a waiting request is looked up again after this time

_now = time.monotonic


class Lookups:
    """The lookups of all requests. Only the engine's thread may use it."""

    def __init__(
        self,
        count: dict[str, int],
        block_tokens: int,
        wait_ms: int,
        packer: Packer,
        readable: Readable,
        trust: Trust,
    ) -> None:
        self._count = count
        self._trust = trust
        self._block_tokens = block_tokens
        self._wait_ms = wait_ms
        self._packer = packer
        self._readable = readable
        self._mapping_timeout_at = -1  # Readable.taken when a wait for mappings timed out

    def begin(self, r: Request, connection: Connection | None) -> None:
        """Opens the current generation of r and asks. r becomes MISSED when that fails."""
        count = self._count
        # The agent knows only an earlier generation of r until OPEN is sent.
        r.broken = True
        if connection is not None and connection.resuming and r.lookup and not r.delayed:
            # RESUMED is about to arrive: the request then finds the blocks of the restarted agent.
            r.delayed = True
            r.state = PACKING
            r.asked_at = _now()
            return
        if connection is None or not connection.usable or connection.stalled:
            count["absent"] += 1
            return
        if not connection.host_enabled:
            return
        known = connection.requests
        if len(known) >= connection.max_requests and r.number not in known:
            count["too_many"] += 1
            return
        end = len(r.tokens) // self._block_tokens * self._block_tokens
        if end > frames.MAX_REQUEST_TOKENS:
            count["skipped"] += 1
            return
        r.connection = connection
        known[r.number] = r  # before anything is sent: see Connection.quiet
        r.broken = False
        r.asked_at = _now()
        if end > INLINE_TOKENS or not self._open_inline(r, end):
            if not r.broken:
                r.packing = Pack(r, connection, end, partial(self._asks, r, connection, end))
                r.state = PACKING
                self._packer.submit(r.packing)
            return
        r.total = end // self._block_tokens
        r.state = MISSED
        if r.lookup and r.total:
            self._count["lookups"] += 1
            self._ask(r, 0)

    def _asks(self, r: Request, connection: Connection, end: int) -> list[tuple[int, int, bytes]]:
        """The first round of LOOKUPs for `end` tokens: type, correlation and body of each.

        The packer's thread calls it.
        """
        if not r.lookup:
            return []
        out = []
        for first, n, body in self._round(r, end // self._block_tokens, 0):
            asked = (r, r.generation, first, n)
            out.append((frames.LOOKUP, connection.expect(self._answered, asked), body))
        return out

    def _round(self, r: Request, total: int, wait_ms: int) -> Iterator[tuple[int, int, bytes]]:
        """First block, number of blocks and body of each LOOKUP in a round."""
        end = min(total, r.known + _MAX_PARTS * _BLOCKS)
        for first in range(r.known, end, _BLOCKS):
            n = min(_BLOCKS, end - first)
            yield first, n, frames.encode_lookup(r.number, r.generation, first, n, wait_ms)

    def begin_delayed(self, r: Request, connection: Connection | None) -> None:
        """Opens a delayed request once the connection is usable or can no longer become so."""
        if connection is None or not connection.resuming:
            r.state = MISSED
            self.begin(r, connection)
            r.delayed = False

    def _open_inline(self, r: Request, end: int) -> bool:
        """Sends OPEN with all tokens. False: not sent; r is broken if OPEN cannot be encoded."""
        assert r.connection is not None
        try:
            body = pack_open(r.number, r.generation, r.identity, list(r.tokens[:end]))
        except PackError as err:
            self._skip(r, str(err))
            return False
        if not r.connection.tell(frames.OPEN, body):
            return False
        r.opened = r.generation
        r.sent = end
        return True

    def _skip(self, r: Request, why: str) -> None:
        """Keeps r from the agent: the protocol cannot carry it."""
        r.broken = True
        self._count["skipped"] += 1
        _log.debug("request %s: %s", r.rid, why)
        if r.opened < 0 and r.connection is not None:
            r.connection.requests.pop(r.number, None)
            r.connection = None

    def packed(self, pack: Pack) -> None:
        """Takes a request back from the packer, before any answer to its LOOKUPs is read."""
        r = pack.request
        r.packing = None
        if pack.opened:
            r.opened = pack.generation
            r.sent = pack.sent
        if not pack.asked:
            for _, corr, _ in pack.asks:
                pack.connection.waiting.pop(corr, None)
        if r.connection is not pack.connection:
            return  # the connection ended meanwhile
        if not pack.asked:
            r.state = MISSED
            if pack.error:
                self._count["unsent"] += 1
                self._skip(r, pack.error)
            return
        r.total = r.sent // self._block_tokens
        r.unanswered = len(pack.asks)
        self._count["lookups"] += bool(pack.asks)
        r.asked_at = _now()
        r.deadline = r.asked_at + ANSWER_SECONDS
        if r.state == PACKING:
            r.state = ASKED if pack.asks else MISSED

    def _ask(self, r: Request, wait_ms: int) -> None:
        """Sends a round of LOOKUPs for the blocks behind the known prefix."""
        connection = r.connection
        assert connection is not None
        r.parts = []
        r.waits = wait_ms > 0
        r.asked_at = _now()
        r.deadline = r.asked_at + ANSWER_SECONDS + wait_ms / 1000
        for first, n, body in self._round(r, r.total, wait_ms):
            asked = (r, r.generation, first, n)
            if not connection.call(frames.LOOKUP, body, self._answered, asked):
                break
            r.unanswered += 1
        if r.state != KNOWN:  # a known prefix stays known
            r.state = ASKED if r.unanswered else MISSED

    def _answered(self, asked: tuple[Request, int, int, int], frame: Frame | None) -> None:
        """Handles the answer to one LOOKUP. frame is None when the connection ended."""
        r, generation, first, count = asked
        if generation != r.generation or r.connection is None or frame is None:
            return  # the next OPEN drops its pins, or an ended session owns them
        r.unanswered -= 1
        body = frame.body
        if frame.type == frames.LOOKUP_HIT and body["first"] == first and body["ready"] <= count:
            part = Part(first, count, body["ready"], body["coming"], body["slots"], body["sources"])
            r.parts.append(part)
        else:
            self._count["errors"] += not r.finished  # the packer's LOOKUP may follow CLOSE
        if r.state not in (ASKED, KNOWN):
            self._drop_parts(r)  # overdue
        elif not r.unanswered:
            self._put_together(r)

    def _drop_parts(self, r: Request) -> None:
        """Releases the pins of unused answers."""
        for part in r.parts:
            if part.ready:
                self.release(r, part.first, part.ready)
        r.parts = []

    def _put_together(self, r: Request) -> None:
        """Joins the answers of a round to the known prefix. All LOOKUPs must be answered."""
        r.parts.sort()
        known, coming = r.known, 0
        slots, sources = [r.slots], [r.sources]
        beyond_gap = []
        cut = not r.parts  # no LOOKUP had a valid answer
        for part in r.parts:
            if part.first != known:
                beyond_gap.append(part)
                continue
            known += part.ready
            slots.append(part.slots)
            sources.append(part.sources)
            if part.ready < part.count:
                coming = part.coming
                cut = True
        self._count["hit_blocks"] += known - r.known
        r.known, r.slots, r.sources = known, b"".join(slots), b"".join(sources)
        r.parts = beyond_gap
        if coming and not r.waits and self._wait_ms and r.state == ASKED:
            r.parts = []  # the next round asks again for the blocks pinned behind the gap
            self._ask(r, self._wait_ms)
            return
        self._drop_parts(r)
        if r.state == ASKED and not cut and known < r.total:
            self._ask(r, self._wait_ms if r.waits else 0)
            if r.state == ASKED:
                return
        r.state = KNOWN

    def hit(self, r: Request, local_blocks: int, least: int) -> Hit | None:
        """The blocks that can be loaded beyond local_blocks. None: not known yet.

        MISS for fewer than `least` blocks.
        """
        # A late answer does not end a hand-over, which has a deadline of its own.
        if r.hand_over and r.state != PACKING and (r.state != ASKED or self._overdue(r)):
            if self._awaits(r, r.hand_over, max(r.known, local_blocks)):
                return None
        if r.state == KNOWN:
            if self._improvable(r) and not r.unanswered:
                self._refresh(r)
            if r.known - local_blocks < least:
                return MISS
            if r.promised < 0 and self._trust.doubts():
                self._count["doubted"] += 1
                self.pass_by(r)
                return MISS
            end = self._readable_end(r, local_blocks)
            if end < r.known and end != r.promised:
                if self._may_be_mapped(r):
                    return None
                self._count["unmapped"] += 1
            if end - local_blocks < least:
                self.pass_by(r)
                return MISS
            r.promised = end
            slots = r.slots[SLOT_BYTES * local_blocks : SLOT_BYTES * end]
            return Hit(end - local_blocks, r.sources[local_blocks:end], slots)
        if r.state not in (PACKING, ASKED):
            return MISS
        if not self._overdue(r):
            return None
        self._count["late"] += 1
        if r.state == ASKED and r.connection is not None:
            r.connection.stall()
        if not r.known:
            r.state = MISSED
            return MISS
        r.state = KNOWN  # the prefix of the first round
        return self.hit(r, local_blocks, least)

    def _improvable(self, r: Request) -> bool:
        """Whether more blocks may be found later."""
        return r.known < r.total

    def _awaits(self, r: Request, wait: Wait, have: int) -> bool:
        """Whether r waits for the blocks of its hand-over. Looks them up again, if so."""
        if have < wait.wanted(r.total) and self._may_ask(r) and not wait.over():
            if not r.unanswered and wait.due(r.asked_at):
                self._ask(r, 0)
            return True
        r.hand_over = None
        wait.end(self._count, r.total, have)
        return False

    def _readable_end(self, r: Request, first: int) -> int:
        """The end of the known blocks from `first` on that all workers can read.

        The end only grows, because hit() may have promised it.
        """
        if first not in r.readable:
            r.readable = range(first, first)
        end = r.readable.stop
        if end < r.known and r.connection is not None:
            end += self._readable.leading(r.connection, r.slots, end)
            r.readable = range(r.readable.start, end)
        return end

    def _may_be_mapped(self, r: Request) -> bool:
        """Whether r waits for workers to map the memory of its blocks.

        After one wait has timed out, no request waits until a worker sends a new report.
        """
        now = _now()
        r.mapping_until = r.mapping_until or now + _MAPPING_SECONDS
        if now >= r.mapping_until:
            self._mapping_timeout_at = self._readable.taken
        return self._mapping_timeout_at != self._readable.taken

    def _overdue(self, r: Request) -> bool:
        """Whether the answers for r are overdue.

        A prompt in the packer is not overdue while the packer makes progress with any prompt.
        """
        now = _now()
        if r.state != PACKING:
            return now >= r.deadline
        progress = max(r.asked_at, self._packer.progress)
        return now >= progress + ANSWER_SECONDS or now >= r.asked_at + _PACKING_SECONDS

    def _refresh(self, r: Request) -> None:
        """Looks up the missing blocks again: another request may have stored them."""
        if self._may_ask(r) and _now() - r.asked_at >= _REFRESH_SECONDS:
            self._ask(r, 0)

    def _may_ask(self, r: Request) -> bool:
        return r.connection is not None and r.connection.usable and not r.broken

    def pass_by(self, r: Request) -> None:
        """Ends the lookup of r without a load and releases its pins."""
        if r.state in (PACKING, ASKED, KNOWN):
            r.state = PASSED
            self.release_all(r)

    def release_all(self, r: Request) -> None:
        """Releases every pin of r. No copy from the pinned slots may be in flight."""
        if r.known or r.parts:
            self.release(r, 0, r.total)
        r.parts = []
        r.slots = r.sources = b""

    def release(self, r: Request, first: int, count: int) -> None:
        """Sends RELEASE, if the request is open on its connection."""
        connection = r.connection
        if connection is None or r.opened != r.generation or r.number not in connection.requests:
            return
        body = frames.encode_release(r.number, r.generation, first, count)
        connection.must(frames.RELEASE, body)

    def forget(self, r: Request) -> None:
        """Detaches r from its connection, which has ended or takes no more work. r has no pins."""
        r.connection = None
        if r.packing is not None:
            r.packing.cancelled = True
        r.parts = []
        r.unanswered = 0
        if r.state != LOADING:
            r.state = MISSED if r.state in (PACKING, ASKED, KNOWN) else r.state
            r.known = 0
            r.slots = r.sources = b""
