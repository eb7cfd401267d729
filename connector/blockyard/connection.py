"""One connection of the scheduler: its link, its open requests and its unanswered frames.

The engine's thread owns all state except the outbox and the inbox. The engine's thread sends only
the frames whose answers it waits for. The keeper sends the other frames, because a send is the most
expensive part of a hook. Both threads receive. Sending never waits.
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

#: Called with its argument and the answer. The answer is None when the connection ended first.
Answer = Callable[[Any, "Frame | None"], None]

_MAX_OUTBOX = 65536
_MAX_LATER = 4096  # a longer outbox takes no optional frame
_MAX_AHEAD = 4  # queued frames that a hook sends before its own, to stay within 50 us
_STALL_SECONDS = 10.0
_TIERS = (1, 2)  # host and disk; a newer minor version may add tiers

_now = time.monotonic

#: The body of a frame, or a call that encodes it in the thread that sends the frame. The call
#: returns None when the frame cannot be encoded. Then no frame is sent, and its answer is ERROR.
Body = bytes | Callable[[], bytes | None]

_UNSENT = {"code": "", "retryable": False, "req": 0, "text": "the frame cannot be encoded"}


class Connection:
    """A welcomed connection.

    usable: new work may begin on the connection. It becomes true when RESUMED arrives, or at once
    without RESUME. It becomes false when the connection ends or either side leaves. resumes: the
    earlier connection whose slots RESUME must name first, or None. wake ends a wait of the keeper.
    asleep: the keeper may be in a long wait.
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
        self.warning: str = welcome["warning"]  # a feature that the agent lacks for this engine
        self.namespace = namespace
        self.resumes: Connection | None = None
        self.resume_sent = False
        self.resumed = False  # RESUMED has arrived; the engine's thread may not have read it
        self.usable = False
        self.ended = False  # the engine's thread knows that it has ended
        self.draining = False  # DRAIN has arrived
        self.leaving = ""  # the reason in BYE, which goes out when no job is in flight
        self.reset_sent = False
        self.farewell = False  # BYE was sent: no copy was in flight, and none may begin
        self.leave_by = 0.0  # deadline for sending BYE, 0 while a copy is in flight
        self.requests: dict[int, Request] = {}  # requests that the agent knows, by number
        self.waiting: dict[int, tuple[Answer, Any]] = {}  # by correlation
        self.flying = 0  # jobs between slots of this connection and device blocks
        self.filled: list[bytes] = []  # slots filled after the end; the next connection commits
        self.orphans: dict[int, Job] = {}  # jobs in flight of ended connections
        self.inbox: deque[Frame] = deque()  # frames for the engine's thread, without GRANTs
        self.grants: deque[Frame] = deque()  # GRANTs, which the steps take in turn
        self.received = 0  # times that frames were received
        self.asked = 0  # calls of ask()
        self.evicted = 0  # blocks named by EVICTED
        self.list_asked = 0  # number of the last LIST_CACHED
        self._wake = wake
        self._outbox: deque[tuple[int, int, Body]] = deque()  # type, correlation, body
        self._sending = threading.Lock()  # held by the thread that empties the outbox
        self._full = False  # the socket had no room for the first frame of the outbox
        self._sent = 0  # frames that have left the outbox
        self._stalled_until = 0.0

    @property
    def stalled(self) -> bool:
        """Whether an answer was overdue recently, and no frame has arrived since.

        A stalled connection begins no request. The stall expires after a fixed time, because an
        agent without requests has nothing to answer.
        """
        return self._stalled_until > 0.0 and _now() < self._stalled_until

    def stall(self) -> None:
        """Marks the connection as stalled: an answer is overdue, or the socket stays full."""
        self._stalled_until = _now() + _STALL_SECONDS

    def quiet(self) -> bool:
        """Whether no work of the connection is in flight or can begin.

        With a closed link, True stays true. New work adds its request to requests before it
        sends, and the send fails.
        """
        mine = self.requests or self.flying or self.filled or self._outbox
        return not (mine or self.orphans or self.resumes is not None)

    @property
    def resuming(self) -> bool:
        """Whether the connection becomes usable when RESUMED arrives."""
        waits = self.resumes is not None and self.resume_sent
        return waits and not (self.ended or self.leaving or self.link.closed)

    @property
    def owes(self) -> bool:
        """Whether frames wait for sending, for an answer or for the engine's thread."""
        return bool(self.waiting or self.inbox or self.grants or self._outbox)

    @property
    def backlog(self) -> bool:
        """Whether frames wait in the outbox."""
        return bool(self._outbox)

    @property
    def full(self) -> bool:
        """Whether frames wait in the outbox because the socket had no room."""
        return self._full and bool(self._outbox)

    # Sending. Frames keep the order of these calls, except those of overtake().

    def call(self, frame_type: int, body: bytes, answer: Answer, argument: Any) -> bool:
        """Sends a frame and registers its answer. False: the frame will not be sent."""
        return self._now_or_later(frame_type, self.expect(answer, argument), body)

    def tell(self, frame_type: int, body: bytes) -> bool:
        """Sends an unanswered frame in order with call(). False: the frame will not be sent."""
        return self._now_or_later(frame_type, 0, body)

    def overtake(self, frame_type: int, body: bytes, answer: Answer, argument: Any) -> bool:
        """Sends a frame at once, before the outbox. False: the frame will not be sent."""
        corr = self.expect(answer, argument)
        try:
            self.link.send(frame_type, corr, body)
        except (LinkFull, LinkClosed):
            del self.waiting[corr]
            return False
        return True

    def later(
        self, frame_type: int, body: Body, answer: Answer | None = None, argument: Any = None
    ) -> bool:
        """Queues an optional frame for the keeper. False: the agent does not read its socket."""
        if self._full or not self._takes():
            return False
        self._leave(frame_type, self.expect(answer, argument), body)
        return True

    def must(
        self, frame_type: int, body: Body, answer: Answer | None = None, argument: Any = None
    ) -> None:
        """Queues a required frame for the keeper, which sends it when the socket has room.

        For frames that return pins or slots. Their number is bounded by the pins and slots that
        the agent gave. The connection ends when the outbox still exceeds its limit.
        """
        if self.farewell or self.ended:
            return  # BYE or the end of the session has returned all pins and slots
        self._leave(frame_type, self.expect(answer, argument), body)
        if len(self._outbox) > _MAX_OUTBOX:
            self.link.close()

    def ask(self, asks: Sequence[tuple[int, int, bytes]]) -> None:
        """Sends frames whose answers are registered. asks: type, correlation and body of each.

        Any thread may call it.
        """
        self._outbox.extend(asks)
        self.flush()
        self.asked += 1
        self._wake()

    def expect(self, answer: Answer | None, argument: Any) -> int:
        """Registers an answer. Returns the frame's correlation, 0 without an answer."""
        if answer is None:
            return 0
        corr = self.link.correlation()
        self.waiting[corr] = (answer, argument)
        return corr

    def _takes(self) -> bool:
        """Whether the outbox takes an optional frame."""
        gone = self.farewell or self.ended or self.link.closed
        return not gone and len(self._outbox) < _MAX_LATER

    def _leave(self, frame_type: int, corr: int, body: Body) -> None:
        """Appends a frame to the outbox and wakes a sleeping keeper.

        The keeper sets asleep before it checks the outbox. This call appends before it checks
        asleep. So no frame stays unnoticed.
        """
        self._outbox.append((frame_type, corr, body))
        if self.asleep:
            self.asleep = False
            self._wake()

    def _now_or_later(self, frame_type: int, corr: int, body: bytes) -> bool:
        """Sends a frame behind the outbox. The keeper sends it when the outbox is long or the
        socket is full. False: the frame will not be sent."""
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
        """Sends BYE. No copy may use a slot of this connection, now or afterwards."""
        self.usable = False
        with self._sending:
            if self.farewell:
                return
            try:
                self._send_all()
                self.link.call(frames.BYE, frames.encode_bye(reason))
                self.farewell = True
            except (LinkFull, LinkClosed):
                pass  # a full link is tried again; a closed link needs no BYE

    def flush(self) -> bool:
        """Sends the outbox until the socket is full. Returns whether a frame was sent.

        Any thread may call it. While one thread sends, the calls of others return at once. The
        sending thread checks the outbox again after it has released the lock.
        """
        before = self._sent
        while self._outbox and self._sending.acquire(blocking=False):
            try:
                self._send_all()
            except (LinkFull, LinkClosed):
                break  # closed: unsent() returns the rest
            finally:
                self._sending.release()
        return self._sent != before

    def _send_all(self) -> None:
        """Empties the outbox. A frame stays in the outbox during its send, to keep the order."""
        outbox = self._outbox
        while outbox:
            if self.farewell:
                outbox.clear()  # nothing follows BYE
                return
            kind, corr, body = outbox[0]
            encoded = body if type(body) is bytes else body()
            try:
                if encoded is not None:
                    self.link.send(kind, corr, encoded)
                elif corr:
                    self.inbox.append(Frame(frames.ERROR, corr, dict(_UNSENT), -1))
            except LinkFull:
                outbox[0] = (kind, corr, encoded)
                self._full = True
                raise
            outbox.popleft()
            self._sent += 1
            self._full = False

    # Receiving.

    def receive(self) -> bool:
        """Moves arrived frames into the inbox. False when the connection has ended.

        Any thread may call it. A second concurrent call receives nothing.
        """
        try:
            if self.link.drain_to(self.take):
                self.received += 1
                self._stalled_until = 0.0
        except LinkClosed:
            return False
        return True

    def take(self, frame: Frame) -> None:
        """Absorbs a frame or appends it to the inbox. One thread at a time."""
        if frame.type == frames.GRANT:
            self.grants.append(frame)
        elif not self.absorb(frame):
            self.inbox.append(frame)

    def absorb(self, frame: Frame) -> bool:
        """Handles a frame that needs no engine thread. False: the frame needs the engine's thread.

        Any thread may call it. The scheduler accesses no slot, so it closes every extent's file.
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
            self._wake()  # the keeper answers, and another thread may have received the frame
            return True
        if frame.type == frames.DRAIN:
            self.draining = True
            return True
        if frame.type == frames.RESUMED:
            self.resumed = True
        return False

    def answer(self, frame: Frame) -> None:
        """Calls the registered answer of a frame. A frame without one is dropped."""
        waiter = self.waiting.pop(frame.corr, None)
        if waiter is not None:
            waiter[0](waiter[1], frame)

    def unsent(self, frame_type: int) -> list[Any]:
        """Empties the outbox of an ended connection. Returns the arguments of the frames of this
        type. Their answers are never called."""
        with self._sending:
            left = [corr for kind, corr, _ in self._outbox if kind == frame_type]
            self._outbox.clear()
        return [self.waiting.pop(corr)[1] for corr in left]

    def give_up(self) -> None:
        """Calls every registered answer with None."""
        while self.waiting:
            answer, argument = self.waiting.popitem()[1]
            answer(argument, None)


def close_if_done(r: Request) -> None:
    """Sends CLOSE for a finished request without work in flight. CLOSE drops pins and grants."""
    if not r.finished or r.loads or r.unsettled or r.packing is not None:
        return
    connection = r.connection
    if connection is None or connection.requests.pop(r.number, None) is None:
        return
    close(connection, r)


def close(connection: Connection, r: Request) -> None:
    """Sends CLOSE for a request whose OPEN was sent."""
    if r.opened >= 0:
        connection.must(frames.CLOSE, frames.encode_close(r.number, r.opened))
