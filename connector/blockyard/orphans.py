"""Orphaned slots: slots of a connection that ended during copies.

A copy continues when its connection ends. RESUME on the next connection names the copy's slots.
RESUMED returns the slots that the agent still has. A returned slot is committed when its copy has
ended. A slot that was filled between two connections is committed when RESUMED arrives.
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


class OrphanedSlots:
    """The slots that ended sessions still hold. Only the engine's thread may use it."""

    def __init__(self, count: dict[str, int], jobs: Jobs) -> None:
        self.flying: dict[int, Job] = {}  # jobs of ended connections
        self._count = count
        self._jobs = jobs
        self._holder: Connection | None = None  # the connection whose session has the slots
        self._kept: set[bytes] = set()  # granted slots in RESUMED
        self._owned = False  # RESUMED returned slots or pins, and CLOSE has not been sent

    def lose(self, connection: Connection) -> None:
        """Takes over the jobs in flight of a connection that has ended."""
        connection.ended = True
        for job in self._jobs.flying.values():
            if job.connection is connection:
                self.flying[job.number] = job
        if connection.resumes is None:
            self._holder = connection
            self._kept.clear()
            self._owned = False
        # Otherwise RESUMED has not arrived, and the next connection names the earlier holder.

    def unsent(self, connection: Connection, packed: bytes) -> None:
        """Keeps slots whose COMMIT was not sent. lose() of the connection must come first."""
        connection.filled.append(packed)

    def take_over(self, connection: Connection) -> None:
        """Begins with a new connection. Sends RESUME if the connection resumes an earlier one."""
        connection.orphans = self.flying
        if connection.resumes is None:
            if self._holder is not None:
                self._forget(self._holder)  # no RESUME names these slots any more
            self._holder = connection
            self._kept.clear()
            self._owned = False
        else:
            self.resume(connection)

    def resume(self, connection: Connection) -> None:
        """Sends RESUME. While RESUME cannot name all slots in flight, the call does nothing."""
        previous = connection.resumes
        if previous is None or connection.resume_sent:
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
        filled = [slot for packed in previous.filled for slot in _split(packed)]
        if len(filled) > room:
            self._count["dropped_stores"] += len(filled) - room
            del filled[room:]
            previous.filled = [b"".join(filled)] if filled else []
        body = frames.encode_resume(
            previous.session, previous.nonce, b"".join(granted + filled), b"".join(pinned)
        )
        connection.resume_sent = connection.call(
            frames.RESUME, body, self._resumed, connection
        )

    def _resumed(self, connection: Connection, frame: Frame | None) -> None:
        """Handles the answer to RESUME. frame is None when the connection ended."""
        previous = connection.resumes
        if frame is None or previous is None:
            return
        connection.resumes = None
        connection.usable = not connection.leaving and not connection.draining
        self._holder = connection
        self._kept.clear()
        filled, previous.filled = previous.filled, []
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
        """Ends a store into orphaned slots. good: the slots have the right bytes."""
        self.flying.pop(job.number, None)
        own = job.connection
        assert own is not None
        # A connection keeps its slots until lose() has been called.
        holder = self._holder if own.ended and self._holder is not None else own
        if holder is own or holder.ended:
            if good:
                holder.filled.append(job.slots)
            return
        if good:
            self._commit(holder, job.slots)
        self._close_if_done(holder)

    def loaded(self, job: Job) -> None:
        """Ends a load from orphaned slots."""
        if self.flying.pop(job.number, None) is not None:
            holder = self._holder
            if holder is not None and not holder.ended:
                self._close_if_done(holder)

    def forget_filled(self, connection: Connection | None) -> None:
        """Drops all filled slots without COMMIT. connection is the current one."""
        for holder in (self._holder, connection and connection.resumes):
            if holder is not None:
                self._forget(holder)

    def _forget(self, holder: Connection) -> None:
        """Drops a holder's filled slots without COMMIT."""
        filled, holder.filled = holder.filled, []
        self._count["dropped_stores"] += sum(len(packed) // _SLOT for packed in filled)

    def _commit(self, connection: Connection, packed: bytes) -> None:
        """Commits the slots that RESUMED returned. The others count as dropped."""
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
        """Returns all slots of RESUMED, also of a RESUMED to come. No copy may be in flight."""
        if connection.resume_sent and connection.resumes is not None:
            self._owned = True
        self._close_if_done(connection)

    def _close_if_done(self, connection: Connection) -> None:
        """Sends CLOSE for the resumed slots when no copy of an ended session is in flight."""
        if self._owned and not self.flying:
            self._owned = False
            self._kept.clear()
            body = frames.encode_close(frames.RESUMED_REQUEST, 0)
            connection.must(frames.CLOSE, body)
