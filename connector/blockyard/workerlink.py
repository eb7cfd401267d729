"""A worker's connection to the agent. The link reconnects until the worker is closed.

Only the worker's thread uses it. No call waits, except close(). service() does the work that is
possible now. due() returns the time of the next service().
"""

from __future__ import annotations

import logging
import os
from typing import Any

from . import frames
from .extents import Extents
from .frames import HelloFields, RegisterFields
from .transport import Frame, Link, LinkClosed, LinkFull

_log = logging.getLogger(__name__)

_RETRY_FIRST = 0.02
_RETRY_LAST = 0.5
_RETRY_SESSION = 0.05  # limit of the retry interval while the scheduler has no session yet
_SESSION_TRIES = 100  # number of tries with that limit
_ANSWER_SECONDS = 5.0
_STATS_SECONDS = 1.0
_FRAMES_AT_A_TIME = 64
_IDLE_SECONDS = 10.0  # after this time without a copy no job of an earlier session can arrive

_OFF = "off"
_GREETING = "greeting"  # HELLO or REGISTER is unanswered
_JOINED = "joined"


class WorkerLink:
    """Joins the session of a worker's id and rank, and joins again after every loss.

    extents: gets the announced extents. counters: the worker's counters, sent in STATS after a
    change if send_stats is set. The link counts lost connections in `errors`.
    """

    def __init__(
        self,
        path: str,
        hello: HelloFields,
        register: RegisterFields,
        extents: Extents,
        counters: dict[str, int],
        send_stats: bool,
    ) -> None:
        self._path = path
        self._hello = frames.encode_hello("worker", hello)
        self._register = register
        self._extents = extents
        self._counters = counters
        self._send_stats = send_stats
        self._link: Link | None = None
        self._state = _OFF
        self._answer = 0  # correlation of the awaited answer
        self._due = 0.0  # off: time of the next try; greeting: time limit for the answer
        self._retry = _RETRY_FIRST
        self._tries = 0  # failed tries to join a missing session
        self._tried = 0.0  # time of the last try
        self._said = ""  # the last logged text, which is not repeated
        self._base: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._stats_due = 0.0
        self._idle_since: float | None = None

    @property
    def joined(self) -> bool:
        """Whether the agent sends LOADs to this worker."""
        return self._state == _JOINED

    def fileno(self) -> int:
        """The connection's descriptor for poll(), or -1 without a connection."""
        return -1 if self._link is None else self._link.fileno()

    def due(self) -> float | None:
        """When service() has work without an arrived frame. None: never."""
        if self._state != _JOINED:
            return self._due
        due = self._stats_due if self._stats_changed() else None
        if self._idle_since is not None:
            retire = self._idle_since + _IDLE_SECONDS
            due = retire if due is None else min(due, retire)
        return due

    def work(self, busy: bool, now: float) -> None:
        """Takes whether the worker has copies to make.

        With copies a session exists, so the link tries to join at once. Without copies for a while,
        the link retires the extents of earlier sessions.
        """
        if busy and self._state != _JOINED:
            self._tries = 0
            if self._link is None:
                self._due = min(self._due, self._tried + _RETRY_FIRST)
        if busy or self._state != _JOINED or not self._extents.stale:
            self._idle_since = None
        elif self._idle_since is None:
            self._idle_since = now
        elif now >= self._idle_since + _IDLE_SECONDS:
            self._extents.retire()
            self._idle_since = None

    def _stats_changed(self) -> bool:
        return self._send_stats and self._counters != self._sent

    def service(self, now: float) -> list[dict[str, Any]]:
        """Connects, registers, maps extents and sends STATS. Returns the bodies of new LOADs.

        Before Extents.release_old(), the caller must end all copies that use mappings of sessions
        older than the last two.
        """
        if self._link is None:
            if now >= self._due:
                self._connect(now)
            return []
        loads: list[dict[str, Any]] = []
        try:
            for frame in self._link.drain(_FRAMES_AT_A_TIME):
                if frame.type == frames.LOAD:
                    loads.append(frame.body)
                elif self._link is not None:
                    self._take(frame, now)
                elif frame.fd >= 0:
                    os.close(frame.fd)  # an earlier frame has ended the connection
            if self._state == _GREETING and now >= self._due:
                self._lose(f"no answer within {_ANSWER_SECONDS} s", now)
            if not loads:  # copies go before STATS
                self._tell_stats(now)
        except LinkClosed as err:
            self._lose(str(err), now)
        return loads

    def _connect(self, now: float) -> None:
        self._tried = now
        try:
            self._link = Link(self._path)
            self._state = _GREETING
            self._due = now + _ANSWER_SECONDS
            self._answer = self._link.call(frames.HELLO, self._hello)
        except (OSError, LinkClosed, LinkFull) as err:
            self._lose(f"{self._path}: {err}", now, logging.INFO)

    def _take(self, frame: Frame, now: float) -> None:
        if frame.type == frames.EXTENT_READY:
            try:
                self._extents.add(frame.body, frame.fd)
            except (ValueError, OSError, RuntimeError) as err:
                # A joined worker without this extent would fail every load from it.
                self._lose(str(err), now)
        elif frame.type == frames.ERROR and frame.corr == self._answer:
            body = frame.body
            reason = f"refused: {body['code']}: {body['text']}"
            if body["code"] == frames.NOT_FOUND and self._tries < _SESSION_TRIES:
                self._tries += 1
                self._retry = min(self._retry, _RETRY_SESSION)
                self._lose(reason, now, logging.INFO)
            else:
                self._lose(reason, now)
        elif frame.type == frames.ERROR:
            self._say(f"refused: {frame.body['code']}: {frame.body['text']}", logging.WARNING)
        elif frame.type == frames.WELCOME:
            self._welcome(frame.body, now)
        elif frame.type == frames.OK and frame.corr == self._answer:
            self._state = _JOINED
            self._retry = _RETRY_FIRST
            self._tries = 0
            self._base = dict(self._counters)
            self._sent = dict(self._counters)
            self._stats_due = now + _STATS_SECONDS
            self._say(f"joined the agent at {self._path}", logging.INFO)

    def _welcome(self, welcome: dict[str, Any], now: float) -> None:
        own = self._register
        if own.offset + own.block_bytes > welcome["block_bytes"]:
            self._lose(
                f"share: {own.block_bytes} bytes from {own.offset} on exceed the session's blocks "
                f"of {welcome['block_bytes']} bytes",
                now,
            )
            return
        identity = (welcome["agent_nonce"], welcome["session"])
        self._extents.begin_session(welcome["slot_bytes"], identity)
        assert self._link is not None
        try:
            self._answer = self._link.call(frames.REGISTER, frames.encode_register(own))
        except (LinkFull, LinkClosed) as err:
            self._lose(str(err), now)

    def _lose(self, reason: str, now: float, level: int = logging.WARNING) -> None:
        """Ends the connection and plans the next."""
        if self._link is not None:
            self._link.close()
            self._link = None
            if self._state == _JOINED:
                self._counters["errors"] += 1
        self._state = _OFF
        self._due = now + self._retry
        self._retry = min(2 * self._retry, _RETRY_LAST)
        self._say(f"no agent: {reason}", level)

    def _say(self, text: str, level: int) -> None:
        if text != self._said:
            _log.log(level, "%s", text)
        self._said = text

    def _tell_stats(self, now: float) -> None:
        if self._state != _JOINED or now < self._stats_due or not self._stats_changed():
            return
        assert self._link is not None
        self._sent = dict(self._counters)
        self._stats_due = now + _STATS_SECONDS
        counters = {name: n - self._base.get(name, 0) for name, n in self._sent.items()}
        try:
            self._link.tell(frames.STATS, frames.encode_stats(counters))
        except LinkFull:
            pass  # counters are cumulative, so the next STATS has these values too

    def close(self) -> None:
        """Leaves the session. No copy may be in flight."""
        link, self._link = self._link, None
        if link is None:
            return
        try:
            if self._state == _JOINED:
                link.call(frames.BYE, frames.encode_bye("worker ends"))
                link.wait(_RETRY_LAST)  # await the answer; a close before it looks like a crash
        except (LinkClosed, LinkFull):
            pass
        self._state = _OFF
        link.close()
