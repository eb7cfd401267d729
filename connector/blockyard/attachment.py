"""What ties the session to the agent: adopts connections, reads their frames, and leaves them.

A connection comes from the keeper and goes with an event from it. It may be left before: because
the agent says DRAIN, or because the engine wants another namespace (reset). Then no new work
begins on it, copies in flight are settled, and BYE ends it.
"""

from __future__ import annotations

import logging
import time

from . import frames
from .connection import Connection, close, close_if_done
from .former import FormerSlots
from .jobs import STORE, Job, Jobs
from .keeper import UP, Keeper
from .lookups import Lookups
from .packer import Packer
from .stores import Stores
from .transport import Frame

_log = logging.getLogger(__name__)

DRAIN = "the agent stops"
RESET = "the engine resets its cache"
CLOSED = "the engine stops"

_LEAVE_SECONDS = 2.0  # how long an agent that does not read is waited for with BYE

_now = time.monotonic


class Attachment:
    """The connection that the session uses now, if there is one. Of the engine's thread alone."""

    def __init__(
        self,
        count: dict[str, int],
        jobs: Jobs,
        lookups: Lookups,
        stores: Stores,
        former: FormerSlots,
        keeper: Keeper,
        packer: Packer,
    ) -> None:
        self.connection: Connection | None = None
        self.weights: object = None  # of the namespace that the engine has now
        self._count = count
        self._jobs = jobs
        self._lookups = lookups
        self._stores = stores
        self._former = former
        self._keeper = keeper
        self._packer = packer

    @property
    def busy(self) -> bool:
        """Whether a connection waits to be left."""
        connection = self.connection
        if connection is None or not connection.leaving:
            return False
        return not connection.farewell and not connection.link.closed

    @property
    def idle(self) -> bool:
        """Whether pump(True) would find nothing to do."""
        if self._keeper.events or self._packer.done:
            return False
        connection = self.connection
        if connection is None:
            return True
        if connection.inbox or connection.draining or connection.leaving:
            return False
        return connection.resumes is None or connection.resume_sent

    def pump(self, adopt: bool, receive: bool = False) -> None:
        """Deals with all that has come; receive: with what is in the socket yet, too.

        Connections come and go only if adopt is true.

        Between hit() and load() none does: what was pinned when the engine asked can be loaded,
        even when the connection has ended by then.
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
                self._former.resume(connection)

    def _take_packed(self) -> None:
        while self._packer.done:
            pack = self._packer.done.popleft()
            self._lookups.packed(pack)
            close_if_done(pack.request)

    def _read(self, connection: Connection) -> None:
        while connection.inbox:
            frame = connection.inbox.popleft()
            self._take_packed()  # this may answer what the packer has asked since
            if frame.corr:
                connection.answer(frame)
            elif frame.type == frames.ERROR:
                self._refused(connection, frame)

    def _refused(self, connection: Connection, frame: Frame) -> None:
        """The agent refused a frame that is not answered: its request is not what we think it is.

        What is pinned stays so, but nothing more is stored for it. A frame about something that
        had ended already does no harm.
        """
        self._count["errors"] += 1
        r = connection.requests.get(frame.body["req"])
        if r is not None and frame.body["code"] != frames.NOT_FOUND:
            r.broken = True
            _log.debug("request %s: %s", r.rid, frame.body["text"])

    def _adopt(self, connection: Connection) -> None:
        self.connection = connection
        if connection.namespace["weights"] != self.weights:
            self._leave(connection, RESET)  # it was made while the engine reset its cache
        else:
            self._former.take_over(connection)

    def _lose(self, connection: Connection) -> None:
        """The connection has ended: requests miss, offers are void, copies in flight go on."""
        self._read(connection)  # a GRANT that had arrived is a grant
        connection.usable = False
        connection.ended = True
        commits = connection.unsent(frames.COMMIT)
        self._detach(connection)
        connection.give_up()
        connection.requests.clear()
        if not connection.farewell:
            self._former.lose(connection)
        for commit in commits:
            slots = commit.slots if isinstance(commit, Job) else commit
            self._former.unsent(connection, slots)
        self.connection = None

    def _detach(self, connection: Connection) -> None:
        """No request uses the connection any more, and no job begins that workers do not know."""
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
        """BYE of a connection that is being left, as soon as no copy is in flight. An agent that
        does not read it is left without.

        Before it, after a reset: CLOSE of all requests, and RESET, so that the agent forgets what
        is stored.
        """
        connection = self.connection
        if connection is None or not connection.leaving or connection.farewell:
            return
        if connection.link.closed:
            return
        if connection.flying or self._former.flying:
            return
        if any(r.packing is not None for r in connection.requests.values()):
            return  # its OPEN may be sent yet
        if connection.leaving == RESET and not connection.reset_sent:
            connection.reset_sent = True
            self._former.give_back(connection)
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
        """Leaves the connection for one of a namespace with these weights.

        What is being copied is not stored: it may have been computed with the new weights.
        """
        self.pump(True)
        self.weights = weights
        self._keeper.rename(weights)
        for job in self._jobs.flying.values():
            if job.kind == STORE:
                job.discard = True
        self._former.forget_filled(self.connection)
        connection = self.connection
        if connection is not None and not connection.farewell:
            self._leave(connection, RESET)

    def close(self) -> None:
        """Leaves for good. Copies in flight keep their slots until the engine has exited."""
        self._packer.close()  # first: there is no BYE while it may send
        self.pump(True)
        connection = self.connection
        if connection is not None and not connection.farewell:
            self._leave(connection, CLOSED)
        self._keeper.close()
        self.pump(True)
