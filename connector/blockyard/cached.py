"""Answers LIST_CACHED: the engine's own hashes of the blocks in its prefix cache.

The agent asks when engine events are lost and cannot be replayed. A helper thread makes the list
in slices of device blocks. So the engine's thread waits for the interpreter lock at most as long as
one slice takes. Blocks change meanwhile. The engine's events report those changes, so the list must
be right only for unchanged blocks.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from . import frames
from .connection import Connection
from .transport import LinkClosed, LinkFull

_log = logging.getLogger(__name__)

# A slice holds the interpreter lock for about 0.5 ms. While another thread computes, each slice
# waits 5 ms for the lock (sys.getswitchinterval), so fewer slices finish a list sooner.
SLICE_BLOCKS = 2048
# Long enough for a thread that waits for the interpreter lock to get it.
_PAUSE = 50e-6
_FULL_PAUSE = 0.0005
_LIST_SECONDS = 5.0  # the agent's own limit

_now = time.monotonic


class CachePool(Protocol):
    """A view of the engine's device blocks. Any thread may call it."""

    def total(self) -> int:
        """How many blocks requests can use."""

    def used(self) -> int:
        """How many blocks requests or copies hold."""

    def cached_hashes(self, first: int, count: int) -> bytes:
        """Packed hashes of the prefix-cached blocks among `count` blocks from number `first`.

        Each hash has eight bytes, little-endian, as in the engine's events. Raises an exception
        when the hashes are not available.
        """

    def __len__(self) -> int:
        """How many block numbers there are."""


class Lister:
    """Answers LIST_CACHED, one list at a time. Without a pool the answer is "unavailable"."""

    def __init__(self) -> None:
        self.pool: CachePool | None = None
        self.errors = 0  # lists that could not be made or sent
        self._lock = threading.Lock()
        self._asked: tuple[Connection, int] | None = None
        self._busy = False

    def begin(self, connection: Connection, number: int) -> None:
        """Makes and sends list `number` on this connection. Replaces a list not begun yet."""
        with self._lock:
            self._asked = connection, number
            if self._busy:
                return  # the running thread takes the new list next
            self._busy = True
        threading.Thread(target=self._run, name="blockyard-lister", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                asked, self._asked = self._asked, None
                if asked is None:
                    self._busy = False
                    return
            try:
                self._answer(*asked)
            except (LinkClosed, LinkFull) as err:
                self.errors += 1
                _log.debug("a list of cached hashes was not sent: %s", err)
            except Exception:  # the thread must clear _busy even after a bug
                self.errors += 1
                _log.exception("listing cached hashes")

    def _answer(self, connection: Connection, number: int) -> None:
        until = _now() + _LIST_SECONDS
        try:
            hashes = self._list()
        except Exception as err:
            self.errors += 1
            _log.warning("the cached hashes cannot be listed: %s", err)
            body = frames.encode_cached(number, b"", True, unavailable=True)
            _send(connection, body, until)
            return
        size = 8 * frames.MAX_LISTED_PER_FRAME
        for at in range(0, max(1, len(hashes)), size):
            final = at + size >= len(hashes)
            _send(connection, frames.encode_cached(number, hashes[at : at + size], final), until)

    def _list(self) -> bytes:
        pool = self.pool
        if pool is None:
            raise LookupError("the engine's block pool is not known")
        parts = []
        for first in range(0, len(pool), SLICE_BLOCKS):
            parts.append(pool.cached_hashes(first, SLICE_BLOCKS))
            time.sleep(_PAUSE)  # the engine goes first
        return b"".join(parts)


def _send(connection: Connection, body: bytes, until: float) -> None:
    """Sends CACHED behind the outbox. LinkFull after the time `until`."""
    while True:
        if connection.farewell or connection.ended:
            raise LinkClosed("the session ends")
        try:
            connection.flush()
            if connection.backlog:
                raise LinkFull("CACHED: other frames wait to be sent")
            connection.link.tell(frames.CACHED, body)
            return
        except LinkFull:
            if _now() > until:
                raise
            time.sleep(_FULL_PAUSE)
