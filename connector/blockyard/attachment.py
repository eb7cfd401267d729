"""The session's current connection: adopts connections, reads their frames, and leaves them.

The keeper's events deliver a connection and report its end. The session leaves a connection on
DRAIN, on reset and on close. Then no new work begins, the copies in flight are settled, and BYE
ends the connection.
"""

from __future__ import annotations

import logging
import time

from . import frames
from .connection import Connection, close, close_if_done
from .jobs import STORE, Job, Jobs
from .keeper import UP, Keeper
from .lookups import Lookups
from .orphans import OrphanedSlots
from .packer import Packer
from .settling import turn
from .stores import Stores
from .transport import Frame

_log = logging.getLogger(__name__)

DRAIN = "the agent stops"
RESET = "the engine resets its cache"
CLOSED = "the engine stops"

_LEAVE_SECONDS = 2.0  # limit for BYE to an agent that does not read its socket

_now = time.monotonic


class Attachment:
    """The session's current connection, if any. Only the engine's thread may use it."""

    def __init__(
        self,
        count: dict[str, int],
        jobs: Jobs,
        lookups: Lookups,
        stores: Stores,
        orphans: OrphanedSlots,
        keeper: Keeper,
        packer: Packer,
    ) -> None:
        self.connection: Connection | None = None
        self.weights: object = None  # in the engine's current namespace
        self._count = count
        self._jobs = jobs
        self._lookups = lookups
        self._stores = stores
        self._orphans = orphans
        self._keeper = keeper
        self._packer = packer

    @property
    def busy(self) -> bool:
        """Whether BYE on the current connection is pending."""
        connection = self.connection
        if connection is None or not connection.leaving:
            return False
        return not connection.farewell and not connection.link.closed

    @property
    def idle(self) -> bool:
        """Whether pump(True) has nothing to do."""
        if self._keeper.events or self._packer.done:
            return False
        connection = self.connection
        if connection is None:
            return True
        if connection.inbox or connection.grants or connection.draining or connection.leaving:
            return False
        return connection.resumes is None or connection.resume_sent

    @property
    def grants(self) -> int:
        """How many GRANTs wait for take_grants()."""
        return 0 if self.connection is None else len(self.connection.grants)

    def take_grants(self, free: bool) -> bool:
        """Begins the stores of one step's GRANTs. Not free: only of a long queue of GRANTs.

        False without a GRANT.
        """
        connection = self.connection
        if connection is None or not connection.grants:
            return False
        for _ in range(turn(len(connection.grants)) - (not free)):
            connection.answer(connection.grants.popleft())
        return True

    def pump(self, adopt: bool, receive: bool = False) -> None:
        """Handles the arrived frames but GRANTs, and results. receive: reads the socket too.

        adopt: handles the keeper's events too. Between hit() and load() adopt must be false. Then
        the pins of the hit can be loaded even if the connection has ended.
        """
        if adopt:
            while self._keeper.events:
                kind, connection = self._keeper.events.popleft()
                (self._adopt if kind == UP else self._lose)(connection)
        self._take_packed()
        connection = self.connection
        if connection is not None:
            if receive and connection.waiting and not connection.receive():
                self._keeper.wake()
            self._read(connection)
            if adopt and connection.draining and not connection.leaving:
                self._leave(connection, DRAIN)
            elif connection.leaving:
                self.leave_if_done()
            elif adopt and connection.resumes is not None:
                self._orphans.resume(connection)

    def _take_packed(self) -> None:
        while self._packer.done:
            pack = self._packer.done.popleft()
            self._lookups.packed(pack)
            close_if_done(pack.request)

    def _read(self, connection: Connection) -> None:
        while connection.inbox:
            frame = connection.inbox.popleft()
            self._take_packed()  # the frame may answer a LOOKUP that the packer sent just now
            if frame.corr:
                connection.answer(frame)
            elif frame.type == frames.ERROR:
                self._refused(connection, frame)

    def _refused(self, connection: Connection, frame: Frame) -> None:
        """Handles ERROR for an unanswered frame. Stores nothing more for its request.

        Pins of the request stay valid. NOT_FOUND is harmless: the request had already ended.
        """
        self._count["errors"] += 1
        r = connection.requests.get(frame.body["req"])
        if r is not None and frame.body["code"] != frames.NOT_FOUND:
            r.broken = True
            _log.debug("request %s: %s", r.rid, frame.body["text"])

    def _adopt(self, connection: Connection) -> None:
        self.connection = connection
        if connection.namespace["weights"] != self.weights:
            self._leave(connection, RESET)  # the connection was made during a reset
        else:
            self._orphans.take_over(connection)

    def _lose(self, connection: Connection) -> None:
        """Handles the end of a connection: requests miss, offers end, copies in flight continue."""
        self._read(connection)
        while connection.grants:  # a GRANT that has arrived still counts
            connection.answer(connection.grants.popleft())
        connection.usable = False
        connection.ended = True
        commits = connection.unsent(frames.COMMIT)
        self._detach(connection)
        connection.give_up()
        connection.requests.clear()
        if not connection.farewell:
            self._orphans.lose(connection)
        for commit in commits:
            slots = commit.slots if isinstance(commit, Job) else commit
            self._orphans.unsent(connection, slots)
        self.connection = None

    def _detach(self, connection: Connection) -> None:
        """Detaches all requests from the connection. Ends the jobs that no worker knows."""
        self._stores.abandon_queued()
        self._stores.abandon_offers()
        for r in connection.requests.values():
            self._lookups.forget(r)

    def _leave(self, connection: Connection, why: str) -> None:
        connection.usable = False
        connection.leaving = why
        self._detach(connection)
        self.leave_if_done()

    def leave_if_done(self) -> None:
        """Sends the pending BYE when no copy is in flight.

        A reset sends CLOSE for all requests and RESET first. RESET drops the stored blocks. The
        link is closed without BYE if the agent does not read its socket in time.
        """
        connection = self.connection
        if connection is None or not connection.leaving or connection.farewell:
            return
        if connection.link.closed:
            return
        if connection.flying or self._orphans.flying:
            return
        if any(r.packing is not None for r in connection.requests.values()):
            return  # the packer may still send OPEN
        if connection.leaving == RESET and not connection.reset_sent:
            connection.reset_sent = True
            self._orphans.give_back(connection)
            for number, generation in self._stores.superseded(connection):
                connection.must(frames.CLOSE, frames.encode_close(number, generation))
            for r in connection.requests.values():
                close(connection, r)
            connection.requests.clear()
            connection.must(frames.RESET, frames.encode_reset(), self._reset_done)
        connection.say_bye(connection.leaving)
        now = _now()
        connection.leave_by = connection.leave_by or now + _LEAVE_SECONDS
        if not connection.farewell and now >= connection.leave_by:
            connection.link.close()
        if connection.farewell or connection.link.closed:
            self._keeper.wake()

    def _reset_done(self, _: object, frame: Frame | None) -> None:
        if frame is not None and frame.type != frames.OK:
            self._count["errors"] += 1
            _log.warning("RESET was refused: %s", frame.body.get("text", ""))

    def reset(self, weights: str) -> None:
        """Moves the session to a namespace with these weights, on a new connection.

        Stores in flight are discarded: the new weights may have computed their blocks.
        """
        self.pump(True)
        self.weights = weights
        self._keeper.rename(weights)
        for job in self._jobs.flying.values():
            if job.kind == STORE:
                job.discard = True
        self._orphans.forget_filled(self.connection)
        connection = self.connection
        if connection is not None and not connection.farewell:
            self._leave(connection, RESET)

    def close(self) -> None:
        """Ends the session. Copies in flight keep their slots until the engine has exited."""
        self._packer.close()  # first: BYE must wait until the packer sends nothing
        self.pump(True)
        connection = self.connection
        if connection is not None and not connection.farewell:
            self._leave(connection, CLOSED)
        self._keeper.close()
        self.pump(True)
