"""Slots of connections that have ended while copies were in flight, and how they are settled.

A copy that is in flight when the connection ends goes on. Its slots are named in RESUME on the next
connection, and what RESUMED gives back is committed there when the copy has ended. Blocks that
were filled between two connections are named as well, and committed as soon as RESUMED has come.
"""

from __future__ import annotations

import logging

from . import frames
from .connection import Connection
from .jobs import STORE, Job, Jobs
from .transport import Frame

_log = logging.getLogger(__name__)

_SLOT = 16
_BLOCKS = frames.MAX_BLOCKS_PER_FRAME


def _split(packed: bytes) -> list[bytes]:
    return [packed[at : at + _SLOT] for at in range(0, len(packed), _SLOT)]


class FormerSlots:
    """What is still held of former sessions. Used by the engine's thread alone."""

    def __init__(self, count: dict[str, int], jobs: Jobs) -> None:
        self.flying: dict[int, Job] = {}  # jobs of ended connections
        self._count = count
        self._jobs = jobs
        self._holder: Connection | None = None  # whose session has their slots
        self._kept: set[bytes] = set()  # granted slots that RESUMED gave back
        self._owned = False  # RESUMED gave something back, and CLOSE has not been sent

    def lose(self, connection: Connection) -> None:
        """A connection has ended. Its jobs that workers know of go on."""
        connection.ended = True
        for job in self._jobs.flying.values():
            if job.connection is connection:
                self.flying[job.number] = job
        if connection.resumes is None:
            self._holder = connection
            self._kept.clear()
            self._owned = False
        # Else RESUMED has not come: the next connection names the holder before it.

    def unsent(self, connection: Connection, packed: bytes) -> None:
        """A COMMIT of these slots was not sent when its connection ended; lose() knows of that."""
        connection.filled.append(packed)

    def take_over(self, connection: Connection) -> None:
        """A new connection is there. RESUME is sent on it, or there is none to send."""
        connection.former = self.flying
        if connection.resumes is None:
            if self._holder is not None:
                self._forget(self._holder)  # nobody names them any more
            self._holder = connection
            self._kept.clear()
            self._owned = False
        else:
            self.resume(connection)

    def resume(self, connection: Connection) -> None:
        """Sends RESUME. Where more slots are in flight than it can name, a later call does."""
        former = connection.resumes
        if former is None or connection.resume_sent:
            return
        granted: list[bytes] = []
        pinned: dict[bytes, None] = {}
        for job in self.flying.values():
            if job.kind == STORE:
                granted.extend(_split(job.slots))
            else:
                pinned.update(dict.fromkeys(_split(job.slots)))
        room = frames.MAX_RESUME_SLOTS - len(granted) - len(pinned)
        if room < 0:
            return
        filled = [slot for packed in former.filled for slot in _split(packed)]
        if len(filled) > room:
            self._count["dropped_stores"] += len(filled) - room
            del filled[room:]
            former.filled = [b"".join(filled)] if filled else []
        body = frames.encode_resume(
            former.session, former.nonce, b"".join(granted + filled), b"".join(pinned)
        )
        connection.resume_sent = connection.call(
            frames.RESUME, body, self._resumed, connection
        )

    def _resumed(self, connection: Connection, frame: Frame | None) -> None:
        """The answer to RESUME; None when the connection ended."""
        former = connection.resumes
        if frame is None or former is None:
            return
        connection.resumes = None
        connection.usable = not connection.leaving and not connection.draining
        self._holder = connection
        self._kept.clear()
        filled, former.filled = former.filled, []
        if frame.type != frames.RESUMED:
            self._count["errors"] += 1
            self._count["dropped_stores"] += sum(len(packed) // _SLOT for packed in filled)
            _log.warning("RESUME was refused: %s", frame.body.get("text", ""))
            return
        self._kept.update(_split(frame.body["granted"]))
        self._owned = bool(frame.body["granted"] or frame.body["pinned"])
        for packed in filled:
            self._commit(connection, packed)
        self._close_if_done(connection)

    def filled(self, job: Job, good: bool) -> None:
        """A store into slots of an ended connection has ended; good: the bytes are right."""
        self.flying.pop(job.number, None)
        own = job.connection
        assert own is not None
        # Until its end is known to more than the link, a connection's slots are its own.
        holder = self._holder if own.ended and self._holder is not None else own
        if holder is own or holder.ended:
            if good:
                holder.filled.append(job.slots)
            return
        if good:
            self._commit(holder, job.slots)
        self._close_if_done(holder)

    def loaded(self, job: Job) -> None:
        """A load from slots of an ended connection has ended."""
        if self.flying.pop(job.number, None) is not None:
            holder = self._holder
            if holder is not None and not holder.ended:
                self._close_if_done(holder)

    def forget_filled(self, connection: Connection | None) -> None:
        """What was filled is not wanted any more. connection is the one that there is now."""
        for holder in (self._holder, connection and connection.resumes):
            if holder is not None:
                self._forget(holder)

    def _forget(self, holder: Connection) -> None:
        """Drops what was filled for a holder and not committed."""
        filled, holder.filled = holder.filled, []
        self._count["dropped_stores"] += sum(len(packed) // _SLOT for packed in filled)

    def _commit(self, connection: Connection, packed: bytes) -> None:
        """COMMIT of those slots that were given back."""
        slots = [slot for slot in _split(packed) if slot in self._kept]
        self._kept.difference_update(slots)
        self._count["dropped_stores"] += len(packed) // _SLOT - len(slots)
        for at in range(0, len(slots), _BLOCKS):
            piece = slots[at : at + _BLOCKS]
            body = frames.encode_commit(frames.RESUMED_REQUEST, 0, b"".join(piece))
            connection.must(frames.COMMIT, body, self._committed, b"".join(piece))

    def _committed(self, packed: bytes, frame: Frame | None) -> None:
        blocks = len(packed) // _SLOT
        if frame is not None and frame.type == frames.OK:
            self._count["stored_blocks"] += blocks
            self._count["resumed_blocks"] += blocks
        else:
            self._count["dropped_stores"] += blocks

    def give_back(self, connection: Connection) -> None:
        """Gives back what RESUMED gave, or is about to give. No copy may be in flight."""
        if connection.resume_sent and connection.resumes is not None:
            self._owned = True
        self._close_if_done(connection)

    def _close_if_done(self, connection: Connection) -> None:
        """Gives back all that is left, once no copy of a former session is in flight."""
        if self._owned and not self.flying:
            self._owned = False
            self._kept.clear()
            body = frames.encode_close(frames.RESUMED_REQUEST, 0)
            connection.must(frames.CLOSE, body)
