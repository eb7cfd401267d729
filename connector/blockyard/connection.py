"""One connection of the scheduler: its link, and what was asked and is open on it.

The engine's thread owns all of it but what absorb() and receive() touch, which the link's keeper
may call too. Sending never waits.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import frames
from .transport import Frame, Link, LinkClosed, LinkFull

if TYPE_CHECKING:
    from .jobs import Job
    from .request import Request

#: Called with its argument and the answer: None when the connection ended before it came.
Answer = Callable[[Any, "Frame | None"], None]

_MAX_OUTBOX = 65536


class Connection:
    """A welcomed connection.

    usable: new work may begin on it; it is set once RESUMED has come, if that was asked for, and
    cleared when the connection ends or one of both sides wants to leave. resumes: the earlier
    connection whose slots must be named in RESUME first, None when there is none.
    """

    def __init__(self, link: Link, welcome: dict[str, Any], namespace: dict[str, Any]) -> None:
        self.link = link
        self.session: int = welcome["session"]
        self.nonce: int = welcome["agent_nonce"]
        self.max_requests: int = welcome["max_requests"]
        self.host_enabled: bool = welcome["host_enabled"]
        self.namespace = namespace
        self.resumes: Connection | None = None
        self.resume_sent = False
        self.usable = False
        self.ended = False  # the engine's thread knows that it has ended
        self.draining = False  # DRAIN has come
        self.leaving = ""  # why BYE is sent as soon as no job is in flight
        self.reset_sent = False
        self.farewell = False  # BYE was sent: no copy was in flight, and none may begin
        self.stalled = False  # an answer is overdue and no frame has come since
        self.touched = 0  # changes while the engine receives by itself
        self.requests: dict[int, Request] = {}  # those that the agent knows, by number
        self.waiting: dict[int, tuple[Answer, Any]] = {}  # by correlation
        self.flying = 0  # jobs between slots of this connection and device blocks
        self.filled: list[bytes] = []  # slots filled after its end, to be committed on the next one
        self.former: dict[int, Job] = {}  # jobs of earlier connections that are in flight
        self.inbox: deque[Frame] = deque()  # frames that the engine's thread has to see
        self.evicted = 0  # blocks of which EVICTED told
        self._outbox: deque[tuple[int, bytes, Answer | None, Any]] = deque()

    def quiet(self) -> bool:
        """Whether nothing of it can be in flight or come to be.

        True stays true once the link is closed: whatever begins work adds the request to
        requests before it sends, and finds that it cannot send.
        """
        mine = self.requests or self.flying or self.filled
        return not (mine or self.former or self.resumes is not None)

    @property
    def owes(self) -> bool:
        """Whether frames wait to be sent, received or looked at."""
        return bool(self.waiting or self.inbox or self._outbox)

    @property
    def backlog(self) -> bool:
        """Whether frames wait for room in the socket."""
        return bool(self._outbox)

    # Sending.

    def call(self, frame_type: int, body: bytes, answer: Answer, argument: Any) -> bool:
        """Sends a frame that is answered. False when it cannot be sent now, and never will."""
        if self._outbox or self.farewell:
            return False  # what waits goes first; nothing follows BYE
        try:
            self.waiting[self.link.call(frame_type, body)] = (answer, argument)
        except (LinkFull, LinkClosed):
            return False
        return True

    def tell(self, frame_type: int, body: bytes) -> bool:
        """Sends a frame that is not answered. False when it cannot be sent now."""
        if self._outbox or self.farewell:
            return False
        try:
            self.link.tell(frame_type, body)
        except (LinkFull, LinkClosed):
            return False
        return True

    def must(
        self, frame_type: int, body: bytes, answer: Answer | None = None, argument: Any = None
    ) -> None:
        """Sends a frame now or as soon as there is room, in the order of these calls.

        For frames that give something back. They are as many as what was given; should the agent
        not read for so long that this does not hold, the connection ends.
        """
        if self.farewell:
            return  # BYE has given back everything
        self._outbox.append((frame_type, body, answer, argument))
        self.flush()
        if len(self._outbox) > _MAX_OUTBOX:
            self.link.close()

    def say_bye(self, reason: str) -> None:
        """BYE: no copy is in flight to or from any slot of this connection, and none will be."""
        self.usable = False
        if not self._outbox and not self.farewell:
            try:
                self.link.call(frames.BYE, frames.encode_bye(reason))
                self.farewell = True
            except (LinkFull, LinkClosed):
                pass  # full: asked again; closed: then it has ended anyway

    def flush(self) -> None:
        """Sends what must() has kept, as far as there is room."""
        outbox = self._outbox
        try:
            while outbox:
                frame_type, body, answer, argument = outbox[0]
                if answer is None:
                    self.link.tell(frame_type, body)
                else:
                    self.waiting[self.link.call(frame_type, body)] = (answer, argument)
                outbox.popleft()
        except LinkFull:
            pass
        except LinkClosed:
            outbox.clear()

    # Receiving.

    def receive(self) -> bool:
        """Takes what has arrived into the inbox. False when the connection has ended."""
        arrived: deque[Frame] = deque()
        try:
            if self.link.drain_into(arrived):
                self.stalled = False
        except LinkClosed:
            return False
        for frame in arrived:
            if not self.absorb(frame):
                self.inbox.append(frame)
        return True

    def absorb(self, frame: Frame) -> bool:
        """Deals with a frame that changes no state. Any thread may do that.

        The scheduler touches no slot, so it maps no extent.
        """
        if frame.type == frames.EXTENT_READY:
            os.close(frame.fd)
            return True
        if frame.type == frames.EVICTED:
            self.evicted += len(frame.body["hashes"]) // 8
            return True
        if frame.type == frames.DRAIN:
            self.draining = True
            return True
        return False

    def answer(self, frame: Frame) -> None:
        """Hands an answer to who waits for it; one that nobody waits for is dropped."""
        waiter = self.waiting.pop(frame.corr, None)
        if waiter is not None:
            waiter[0](waiter[1], frame)

    def drop_outbox(self) -> None:
        """Forgets what must() has kept: the connection has ended."""
        self._outbox.clear()

    def give_up(self) -> None:
        """Tells all that wait for an answer that none will come."""
        while self.waiting:
            answer, argument = self.waiting.popitem()[1]
            answer(argument, None)


def close_if_done(r: Request) -> None:
    """CLOSE of a finished request, which drops its pins and grants: nothing may be in flight."""
    if not r.finished or r.loads or r.unsettled or r.packing is not None:
        return
    connection = r.connection
    if connection is None or connection.requests.pop(r.number, None) is None:
        return
    close(connection, r)


def close(connection: Connection, r: Request) -> None:
    """CLOSE, if OPEN was sent."""
    if r.opened >= 0:
        connection.must(frames.CLOSE, frames.encode_close(r.number, r.opened))
