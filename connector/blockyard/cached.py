"""Answers LIST_CACHED: the engine's own hashes of the blocks in its prefix cache.

The agent asks when events of the engine were lost for good. The list is made by a thread of its
own, a slice of the device's blocks at a time, so that the engine's thread pays for it only what
one slice takes of the interpreter lock. Meanwhile blocks come and go; the engine's events tell of
those, so that the list has to be right only about blocks that stay.
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

# About 0.5 ms of the interpreter lock. Beside a thread that computes, getting the lock for a slice
# takes 5 ms (sys.getswitchinterval), so that fewer slices end a list sooner.
SLICE_BLOCKS = 2048
# Long enough for a thread that waits for the interpreter lock to get it.
_PAUSE = 50e-6
_FULL_PAUSE = 0.0005
_LIST_SECONDS = 5.0  # then the agent does not wait any longer

_now = time.monotonic


class CachePool(Protocol):
    """The engine's device blocks, as other threads than the engine's may look at them."""

    def total(self) -> int:
        """Blocks that requests can have."""

    def used(self) -> int:
        """Blocks that requests or copies hold."""

    def cached_hashes(self, first: int, count: int) -> bytes:
        """Packed hashes of the blocks numbered `first` and on that are in the prefix cache.

        Eight bytes each, little-endian, as the engine's events tell them. Raises when they cannot
        be told.
        """

    def __len__(self) -> int:
        """Numbers that blocks may have."""


class Lister:
    """Makes lists, one at a time. pool may come later; without one the answer is that there is
    none."""

    def __init__(self) -> None:
        self.pool: CachePool | None = None
        self.errors = 0  # lists that could not be made or sent
        self._lock = threading.Lock()
        self._asked: tuple[Connection, int] | None = None
        self._busy = False

    def begin(self, connection: Connection, number: int) -> None:
        """The agent asks on this connection for a list, and waits for no earlier one."""
        with self._lock:
            self._asked = connection, number
            if self._busy:
                return  # the thread looks again when it is done
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
            except (LinkClosed, LinkFull) as err:  # the agent is gone, or reads nothing
                self.errors += 1
                _log.debug("a list of cached hashes was not sent: %s", err)
            except Exception:  # a bug must not end the thread: _busy would stay
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
    """Sends a CACHED, behind what gives room at the agent."""
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
