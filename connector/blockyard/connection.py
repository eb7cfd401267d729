"""One connection of the scheduler: its link, and what was asked and is open on it.

The engine's thread owns all of it but the outbox and the inbox. It sends itself what it waits for
the answer of; everything else it leaves to the link's keeper, because a send costs a hook more than
all the rest. The keeper receives too. Sending never waits.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from . import frames
from .transport import Frame, Link, LinkClosed, LinkFull

if TYPE_CHECKING:
    from .jobs import Job
    from .request import Request

#: Called with its argument and the answer: None when the connection ended before it came.
Answer = Callable[[Any, "Frame | None"], None]

_MAX_OUTBOX = 65536
_MAX_LATER = 4096  # frames that can be done without are not put behind more than these
_MAX_AHEAD = 4  # frames that a hook sends before its own, so that it takes 50 us
_STALL_SECONDS = 10.0
_TIERS = (1, 2)  # host and disk; a later minor version may have more

_now = time.monotonic


class Connection:
    """A welcomed connection.

    usable: new work may begin on it; it is set once RESUMED has come, if that was asked for, and
    cleared when the connection ends or one of both sides wants to leave. resumes: the earlier
    connection whose slots must be named in RESUME first, None when there is none. wake ends a wait
    of the keeper; asleep is set by the keeper while it may wait for long.
    """

    def __init__(
        self,
        link: Link,
        welcome: dict[str, Any],
        namespace: dict[str, Any],
        wake: Callable[[], None],
    ) -> None:
        self.link = link
        self.asleep = False
        self.session: int = welcome["session"]
        self.nonce: int = welcome["agent_nonce"]
        self.max_requests: int = welcome["max_requests"]
        self.host_enabled: bool = welcome["host_enabled"]
        self.warning: str = welcome["warning"]  # what the agent cannot do for this engine
        self.namespace = namespace
        self.resumes: Connection | None = None
        self.resume_sent = False
        self.resumed = False  # RESUMED has arrived, though nobody may have looked at it yet
        self.usable = False
        self.ended = False  # the engine's thread knows that it has ended
        self.draining = False  # DRAIN has come
        self.leaving = ""  # why BYE is sent as soon as no job is in flight
        self.reset_sent = False
        self.farewell = False  # BYE was sent: no copy was in flight, and none may begin
        self.leave_by = 0.0  # when BYE is not waited for any longer, 0 while a copy is in flight
        self.requests: dict[int, Request] = {}  # those that the agent knows, by number
        self.waiting: dict[int, tuple[Answer, Any]] = {}  # by correlation
        self.flying = 0  # jobs between slots of this connection and device blocks
        self.filled: list[bytes] = []  # slots filled after its end, to be committed on the next one
        self.former: dict[int, Job] = {}  # jobs of earlier connections that are in flight
        self.inbox: deque[Frame] = deque()  # frames that the engine's thread has to see
        self.received = 0  # times that frames were received
        self.evicted = 0  # blocks of which EVICTED told
        self.list_asked = 0  # the list that LIST_CACHED asked for last
        self._wake = wake
        self._outbox: deque[tuple[int, int, bytes]] = deque()  # type, correlation, body
        self._sending = threading.Lock()  # of who takes frames from the outbox
        self._full = False  # the first frame of the outbox has found no room
        self._sent = 0  # frames that have left the outbox
        self._stalled_until = 0.0

    @property
    def stalled(self) -> bool:
        """Whether an answer was overdue a moment ago, and no frame has come since.

        No request is begun then. It passes by itself: an agent that is asked nothing has nothing
        to answer.
        """
        return self._stalled_until > 0.0 and _now() < self._stalled_until

    def stall(self) -> None:
        """An answer is overdue, or there was no room in the socket for too long."""
        self._stalled_until = _now() + _STALL_SECONDS

    def quiet(self) -> bool:
        """Whether nothing of it can be in flight or come to be.

        True stays true once the link is closed: whatever begins work adds the request to
        requests before it sends, and finds that it cannot send.
        """
        mine = self.requests or self.flying or self.filled or self._outbox
        return not (mine or self.former or self.resumes is not None)

    @property
    def resuming(self) -> bool:
        """Whether it will be usable as soon as RESUMED comes."""
        waits = self.resumes is not None and self.resume_sent
        return waits and not (self.ended or self.leaving or self.link.closed)

    @property
    def owes(self) -> bool:
        """Whether frames wait to be sent, received or looked at."""
        return bool(self.waiting or self.inbox or self._outbox)

    @property
    def backlog(self) -> bool:
        """Whether frames wait to be sent."""
        return bool(self._outbox)

    @property
    def full(self) -> bool:
        """Whether frames wait to be sent because the last one that was tried found no room."""
        return self._full and bool(self._outbox)

    # Sending. Frames keep the order of these calls, but for those of overtake().

    def call(self, frame_type: int, body: bytes, answer: Answer, argument: Any) -> bool:
        """Sends a frame whose answer is waited for. False: it will not be sent."""
        return self._now_or_later(frame_type, self.expect(answer, argument), body)

    def tell(self, frame_type: int, body: bytes) -> bool:
        """Sends a frame that a waited for answer depends on. False: it will not be sent."""
        return self._now_or_later(frame_type, 0, body)

    def overtake(self, frame_type: int, body: bytes, answer: Answer, argument: Any) -> bool:
        """Sends a frame at once, before all that wait. False: it will not be sent."""
        corr = self.expect(answer, argument)
        try:
            self.link.send(frame_type, corr, body)
        except (LinkFull, LinkClosed):
            del self.waiting[corr]
            return False
        return True

    def later(
        self, frame_type: int, body: bytes, answer: Answer | None = None, argument: Any = None
    ) -> bool:
        """Leaves a frame to the keeper. False: the agent does not read, it will not be sent."""
        if self._full or not self._takes():
            return False
        self._leave(frame_type, self.expect(answer, argument), body)
        return True

    def must(
        self, frame_type: int, body: bytes, answer: Answer | None = None, argument: Any = None
    ) -> None:
        """Leaves a frame to the keeper, which sends it as soon as there is room.

        For frames that give something back. They are as many as what was given; should the agent
        not read for so long that this does not hold, the connection ends.
        """
        if self.farewell or self.ended:
            return  # BYE has given back everything, and so has the end of the session
        self._leave(frame_type, self.expect(answer, argument), body)
        if len(self._outbox) > _MAX_OUTBOX:
            self.link.close()

    def ask(self, frame_type: int, asks: Sequence[tuple[int, bytes]]) -> None:
        """Sends frames whose answers are expected already: correlation and body of each. By any
        thread."""
        self._outbox.extend((frame_type, corr, body) for corr, body in asks)
        self.flush()
        if self._outbox:
            self._wake()

    def expect(self, answer: Answer | None, argument: Any) -> int:
        """The correlation of a frame that is answered, so that its answer finds who waits."""
        if answer is None:
            return 0
        corr = self.link.correlation()
        self.waiting[corr] = (answer, argument)
        return corr

    def _takes(self) -> bool:
        """Whether a frame that can be done without may be put into the outbox."""
        gone = self.farewell or self.ended or self.link.closed
        return not gone and len(self._outbox) < _MAX_LATER

    def _leave(self, frame_type: int, corr: int, body: bytes) -> None:
        """Into the outbox. The keeper looks there after it has said that it is asleep, and this
        looks whether it is asleep after it has put the frame there: one of both sees the other."""
        self._outbox.append((frame_type, corr, body))
        if self.asleep:
            self.asleep = False
            self._wake()

    def _now_or_later(self, frame_type: int, corr: int, body: bytes) -> bool:
        """Sends a frame behind what waits. Where that is much, or there is no room, the keeper
        does."""
        if self._full:
            self.flush()
        if self._full or not self._takes():
            self.waiting.pop(corr, None)
            return False
        self._outbox.append((frame_type, corr, body))
        if len(self._outbox) <= _MAX_AHEAD + 1:
            self.flush()
        if self._outbox:
            self._wake()
        return True

    def say_bye(self, reason: str) -> None:
        """BYE: no copy is in flight to or from any slot of this connection, and none will be."""
        self.usable = False
        with self._sending:
            if self.farewell:
                return
            try:
                self._send_all()
                self.link.call(frames.BYE, frames.encode_bye(reason))
                self.farewell = True
            except (LinkFull, LinkClosed):
                pass  # full: asked again; closed: then it has ended anyway

    def flush(self) -> bool:
        """Sends what waits, as far as there is room; whether anything was sent.

        By any thread. One that comes while another sends leaves its frames to that one, which
        looks again after it has let go of the lock.
        """
        before = self._sent
        while self._outbox and self._sending.acquire(blocking=False):
            try:
                self._send_all()
            except (LinkFull, LinkClosed):
                break  # closed: unsent() tells what is left
            finally:
                self._sending.release()
        return self._sent != before

    def _send_all(self) -> None:
        """Empties the outbox. A frame stays there while it is sent, so that none overtakes it."""
        outbox = self._outbox
        while outbox:
            if self.farewell:
                outbox.clear()  # nothing follows BYE
                return
            try:
                self.link.send(*outbox[0])
            except LinkFull:
                self._full = True
                raise
            outbox.popleft()
            self._sent += 1
            self._full = False

    # Receiving.

    def receive(self) -> bool:
        """Takes what has arrived into the inbox. False when the connection has ended.

        By any thread; a second one at a time finds nothing.
        """
        try:
            if self.link.drain_to(self.take):
                self.received += 1
                self._stalled_until = 0.0
        except LinkClosed:
            return False
        return True

    def take(self, frame: Frame) -> None:
        """Absorbs a frame or puts it into the inbox. By one thread at a time."""
        if not self.absorb(frame):
            self.inbox.append(frame)

    def absorb(self, frame: Frame) -> bool:
        """Deals with a frame that changes no state. Any thread may do that.

        The scheduler touches no slot, so it maps no extent.
        """
        if frame.type == frames.EXTENT_READY:
            os.close(frame.fd)
            return True
        if frame.type == frames.EVICTED:
            if frame.body["tier"] in _TIERS:
                self.evicted += len(frame.body["hashes"]) // 8
            return True
        if frame.type == frames.LIST_CACHED:
            self.list_asked = frame.body["list"]
            self._wake()  # the keeper sees to it, and another thread may have received this
            return True
        if frame.type == frames.DRAIN:
            self.draining = True
            return True
        if frame.type == frames.RESUMED:
            self.resumed = True
        return False

    def answer(self, frame: Frame) -> None:
        """Hands an answer to who waits for it; one that nobody waits for is dropped."""
        waiter = self.waiting.pop(frame.corr, None)
        if waiter is not None:
            waiter[0](waiter[1], frame)

    def unsent(self, frame_type: int) -> list[Any]:
        """The arguments of frames of this type that were not sent; nobody is told that their
        answers do not come. The connection has ended, and nothing is left to send."""
        with self._sending:
            left = [corr for kind, corr, _ in self._outbox if kind == frame_type]
            self._outbox.clear()
        return [self.waiting.pop(corr)[1] for corr in left]

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
