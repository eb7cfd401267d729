"""Lookups of models with KV groups: FIT finds a prefix that every group serves, LOOKUP pins it.

FIT pins nothing, so a block may be evicted before its LOOKUP. Then FIT is asked again, a few times.
"""

from __future__ import annotations

import time

from . import frames
from .connection import Connection
from .groups import Groups
from .handover import Wait
from .lookups import ANSWER_SECONDS, Lookups
from .packed import SLOT_BYTES
from .packer import Packer
from .readable import Readable
from .request import ASKED, KNOWN, LOADING, MISSED, Hit, Part, Request
from .transport import Frame
from .trust import Trust

_BLOCKS = frames.MAX_BLOCKS_PER_FRAME
_MAX_FITS = 3  # in one lookup
_AT_ONCE = 4  # LOOKUPs that a hook sends; the keeper sends the others

_now = time.monotonic


class Fit:
    """The prefix of `tokens` tokens that FITTED has named, and its blocks.

    needs: the blocks of each group. slots: their packed slots, once all are pinned. parts: answers
    to LOOKUP by group.
    """

    __slots__ = ("tokens", "needs", "slots", "parts")

    def __init__(self, tokens: int, groups: Groups) -> None:
        self.tokens = tokens
        self.needs = [group.needs(tokens) for group in groups]
        self.slots: list[bytes] = []
        self.parts: list[tuple[int, Part]] = []


class Fits(Lookups):
    """The lookups of a session with KV groups. Only the engine's thread may use it."""

    def __init__(
        self,
        count: dict[str, int],
        groups: Groups,
        wait_ms: int,
        packer: Packer,
        readable: Readable,
        trust: Trust,
    ) -> None:
        super().__init__(count, groups.page, wait_ms, packer, readable, trust)
        self._groups = groups

    # FIT.

    def _limit(self, r: Request, end: int) -> int:
        """The longest useful prefix: the engine computes the last token itself."""
        return min(end, len(r.tokens) - 1)

    def _asks(self, r: Request, connection: Connection, end: int) -> list[tuple[int, int, bytes]]:
        limit = self._limit(r, end)
        if not r.lookup or limit < self._groups.align:
            return []
        body = frames.encode_fit(r.number, r.generation, limit)
        r.fits = 1
        return [(frames.FIT, connection.expect(self._fitted, (r, r.generation)), body)]

    def _ask(self, r: Request, wait_ms: int) -> None:
        """Begins a lookup. A prefix that is pinned already stays."""
        r.fits = 0
        self._ask_fit(r)

    def _ask_fit(self, r: Request) -> None:
        connection = r.connection
        assert connection is not None
        limit = self._limit(r, r.sent)
        if limit < self._groups.align:
            return  # the prompt is shorter than any block
        r.fits += 1
        r.waits = False
        self._await(r, 0)
        body = frames.encode_fit(r.number, r.generation, limit)
        r.unanswered = int(connection.call(frames.FIT, body, self._fitted, (r, r.generation)))
        if r.state != KNOWN:
            r.state = ASKED if r.unanswered else MISSED

    def _await(self, r: Request, wait_ms: int) -> None:
        r.asked_at = _now()
        r.deadline = r.asked_at + ANSWER_SECONDS + wait_ms / 1000

    def _fitted(self, asked: tuple[Request, int], frame: Frame | None) -> None:
        """Handles the answer to FIT. frame is None when the connection ended."""
        r, generation = asked
        if generation != r.generation or r.connection is None or frame is None:
            return
        r.unanswered -= 1
        self._count["fits"] += frame.type == frames.FITTED
        if r.state not in (ASKED, KNOWN):
            self._count["errors"] += frame.type != frames.FITTED and not r.finished
            return  # overdue
        tokens = frame.body["tokens"] if frame.type == frames.FITTED else -1
        if not 0 <= tokens <= self._limit(r, r.sent) or tokens % self._groups.align:
            self._count["errors"] += not r.finished
            tokens = 0
        r.state = KNOWN
        if tokens <= (r.fit.tokens if r.fit else 0):
            return
        if r.fit is not None:
            self._give_up(r)
        r.state = ASKED
        r.fit = Fit(tokens, self._groups)
        self._pin(r, r.fit, 0)

    # LOOKUP.

    def _pin(self, r: Request, fit: Fit, wait_ms: int) -> None:
        """Sends LOOKUPs for all blocks of the prefix."""
        connection = r.connection
        assert connection is not None
        fit.parts = []
        r.waits = wait_ms > 0
        self._await(r, wait_ms)
        for group, needs in enumerate(fit.needs):
            for first in range(needs.start, needs.stop, _BLOCKS):
                n = min(_BLOCKS, needs.stop - first)
                body = frames.encode_lookup(r.number, r.generation, first, n, wait_ms, group)
                asked = (r, r.generation, fit, group, first, n)
                send = connection.call if r.unanswered < _AT_ONCE else connection.later
                if not send(frames.LOOKUP, body, self._found, asked):
                    self._give_up(r)
                    return
                r.unanswered += 1

    def _found(
        self, asked: tuple[Request, int, Fit, int, int, int], frame: Frame | None
    ) -> None:
        """Handles the answer to one LOOKUP. frame is None when the connection ended."""
        r, generation, fit, group, first, count = asked
        if generation != r.generation or r.connection is None or frame is None:
            return  # the next OPEN drops its pins, or an ended session owns them
        r.unanswered -= 1
        body = frame.body
        good = frame.type == frames.LOOKUP_HIT and (body["group"], body["first"]) == (group, first)
        if good and body["ready"] <= count:
            part = Part(first, count, body["ready"], body["coming"], body["slots"], body["sources"])
            fit.parts.append((group, part))
        else:
            self._count["errors"] += not r.finished
            fit.parts.append((group, Part(first, count, 0, 0, b"", b"")))
        if r.fit is not fit or r.state != ASKED:
            if not r.unanswered:
                self._release_fit(r, fit)  # overdue, or passed by
        elif not r.unanswered:
            self._put_together(r)

    def _put_together(self, r: Request) -> None:
        """Takes the prefix if all its blocks are pinned. Otherwise asks once more."""
        fit = r.fit
        assert fit is not None
        short = [part for _, part in fit.parts if part.ready < part.count]
        if not short:
            self._take(r, fit)
        elif not r.waits and self._wait_ms and any(part.coming for part in short):
            self._pin(r, fit, self._wait_ms)  # the agent pins these blocks a second time
        else:
            self._give_up(r)
            if r.fits < _MAX_FITS and self._may_ask(r):
                r.state = ASKED
                self._ask_fit(r)

    def _take(self, r: Request, fit: Fit) -> None:
        fit.parts.sort()
        for group in range(len(self._groups)):
            fit.slots.append(b"".join(part.slots for number, part in fit.parts if number == group))
        primary = self._groups.primary
        sources = b"".join(part.sources for number, part in fit.parts if number == primary)
        pages = self._groups[primary].block_size // self._block_tokens
        r.sources = b"".join(bytes((source,)) * pages for source in sources)
        r.known = fit.tokens // self._block_tokens
        r.slots = b"".join(fit.slots)
        r.state = KNOWN
        fit.parts = []
        self._count["hit_blocks"] += r.known

    def _give_up(self, r: Request) -> None:
        """Releases a prefix that is not whole. Leaves r without a hit."""
        fit, r.fit = r.fit, None
        if fit is not None and (fit.slots or not r.unanswered):
            self._release_fit(r, fit)  # otherwise the last answer releases the pins
        r.known = 0
        r.state = KNOWN

    # What the engine asks.

    def _awaits(self, r: Request, wait: Wait, have: int) -> bool:
        """A hand-over ends with the longest prefix that any hit can have."""
        limit = self._limit(r, r.sent)
        longest = self._groups.longest(limit, r.sent) // self._block_tokens
        return super()._awaits(r, wait, r.total if have >= longest else have)

    def _improvable(self, r: Request) -> bool:
        return r.fit is None  # a promised prefix stays as it is

    def _readable_end(self, r: Request, first: int) -> int:
        """All pages of the prefix if every worker can read every block of it, otherwise none."""
        if r.promised != r.known and r.connection is not None:
            all_slots = len(r.slots) // SLOT_BYTES
            if self._readable.leading(r.connection, r.slots, 0) < all_slots:
                return first
        return r.known

    def hit(self, r: Request, local_blocks: int, least: int) -> Hit | None:
        """As Lookups.hit(). The blocks are pages. A hit ends where every group serves the prefix,
        so it is the same for every shorter prefix that the engine has itself."""
        found = super().hit(r, local_blocks, least)
        return found if found is None else found._replace(slots=b"")

    # Ends.

    def release_all(self, r: Request) -> None:
        fit, r.fit = r.fit, None
        if fit is not None and (fit.slots or not r.unanswered):
            self._release_fit(r, fit)
        r.slots = r.sources = b""

    def _release_fit(self, r: Request, fit: Fit) -> None:
        """Releases the pins of a prefix. No answer to its LOOKUPs may be missing."""
        connection = r.connection
        if connection is None or r.opened != r.generation or r.number not in connection.requests:
            return
        for group, needs in enumerate(fit.needs):
            if needs:
                body = frames.encode_release(
                    r.number, r.generation, needs.start, len(needs), group
                )
                connection.must(frames.RELEASE, body)

    def forget(self, r: Request) -> None:
        super().forget(r)
        if r.state != LOADING:
            r.fit = None
