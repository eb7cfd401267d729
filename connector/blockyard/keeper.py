"""The thread that keeps the scheduler connected to the agent.

It connects, says HELLO, connects again when a connection has ended, sends what the engine's thread
leaves to it and STATS once a second, and receives. It changes none of the engine's state: it hands
connections over, and tells of their end, through a queue that the engine's thread empties.
"""

from __future__ import annotations

import logging
import math
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from . import frames, lockheld
from .cached import Lister
from .connection import Connection
from .frames import HelloFields
from .transport import Frame, Link, LinkClosed, LinkFull

_log = logging.getLogger(__name__)

UP = "up"  # a connection was made
LOST = "lost"  # a connection has ended

_FIRST_BACKOFF = 0.05
_MAX_BACKOFF = 2.0
_REFUSED_BACKOFF = 30.0  # after an answer that will be the same next time
_ANSWER_SECONDS = 15.0
_FAREWELL_SECONDS = 2.0
# While frames come and go they are sent and received together, at these intervals: an engine's
# thread that wakes this one each time pays as much for that as for sending by itself.
_TICK = 0.002
_TICK_SECONDS = 0.05  # how long after the last frame
_SLOW_TICK = 0.01
_BUSY_SECONDS = 2.0  # how long after the last frame; longer than a step of the engine
_FULL_TICK = 0.05  # how often it tries to send what has found no room
_STATS_SECONDS = 1.0
_ALONE_SECONDS = 30.0  # without an agent, until somebody should look


class Refused(Exception):
    """The agent refused HELLO. retryable: it may not, next time."""

    def __init__(self, text: str, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


class Keeper:
    """Keeps one connection. counters gives what STATS tells, cumulative; gauges what it tells of
    now, where that is known."""

    def __init__(
        self,
        path: str,
        counters: Callable[[], Mapping[str, int]] | None,
        gauges: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self.lister = Lister()
        self.events: deque[tuple[str, Connection]] = deque()
        self.connects = 0
        self.refusals = 0
        self.errors = 0  # in the thread, and RESUMEs of its own that were refused
        self.evicted = 0  # blocks of which EVICTED told, on connections that have ended
        self._path = path
        self._counters = counters
        self._gauges = gauges
        self._hello: HelloFields | None = None
        self._last: Connection | None = None  # ended without BYE, and not resumed yet
        self._closing = False
        self._thread: threading.Thread | None = None
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._said = ""  # the last failure that was logged
        self._alone_since: float | None = None  # infinity when that was warned of

    def __del__(self) -> None:
        os.close(self._wake_fd)

    def start(self, hello: HelloFields) -> None:
        """Starts the thread, which says this HELLO."""
        self._hello = hello
        self._thread = threading.Thread(target=self._run, name="blockyard-keeper", daemon=True)
        self._thread.start()

    def rename(self, weights: str) -> None:
        """From the next connection on, HELLO carries these weights."""
        hello = self._hello
        assert hello is not None and hello.namespace is not None
        self._hello = replace(hello, namespace={**hello.namespace, "weights": weights})

    def wake(self) -> None:
        """Makes the thread look around: a link was found closed, or BYE was sent."""
        lockheld.wake(self._wake_fd)

    def close(self, seconds: float = 1.0) -> None:
        """Ends the thread and its connection."""
        self._closing = True
        self.wake()
        if self._thread is not None:
            self._thread.join(seconds)
            self._thread = None

    # The thread.

    def _run(self) -> None:
        backoff = _FIRST_BACKOFF
        while not self._closing:
            began = time.monotonic()
            try:
                connection = self._connect()
            except Exception as err:
                wait = self._note_failure(err, backoff)
            else:
                self._said = ""
                self._alone_since = None
                for stage in (self._attend, self._part):
                    try:
                        stage(connection)
                    except Exception:  # the engine must be told, and the next connection made
                        self.errors += 1
                        _log.exception("the keeper goes on after an error")
                if time.monotonic() - began > _MAX_BACKOFF:
                    backoff = _FIRST_BACKOFF
                wait = backoff
            self._wait(None, wait)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _note_failure(self, err: Exception, backoff: float) -> float:
        """Logs a new kind of failure, and says how long to wait."""
        text = f"{type(err).__name__}: {err}"
        refused = isinstance(err, Refused)
        if refused:
            self.refusals += 1
        if text != self._said:
            self._said = text
            level = logging.WARNING if refused else logging.INFO
            _log.log(level, "no agent at %s: %s; serving without it", self._path, text)
            if not isinstance(err, (Refused, OSError, LinkClosed, LinkFull, TimeoutError)):
                _log.exception("connecting to the agent")
        now = time.monotonic()
        self._alone_since = now if self._alone_since is None else self._alone_since
        if now - self._alone_since >= _ALONE_SECONDS:
            self._alone_since = math.inf
            _log.warning(
                "still no agent at %s after %d s (%s); all requests run without it",
                self._path,
                _ALONE_SECONDS,
                text,
            )
        return _REFUSED_BACKOFF if refused and not err.retryable else backoff

    def _connect(self) -> Connection:
        """A welcomed connection, handed over to the engine's thread."""
        link = Link(self._path)
        try:
            connection = self._welcome(link)
            self._resume_nothing(connection)
        except BaseException:
            link.close()
            raise
        self.connects += 1
        self.events.append((UP, connection))
        _log.info("session %d with the agent at %s", connection.session, self._path)
        if connection.warning:
            _log.error("the agent at %s: %s", self._path, connection.warning)
        return connection

    def _welcome(self, link: Link) -> Connection:
        hello = self._hello
        assert hello is not None and hello.namespace is not None
        early: list[Frame] = []
        try:
            corr = link.call(frames.HELLO, frames.encode_hello("scheduler", hello))
            frame = self._answer(link, corr, early.append)
        except (LinkClosed, ConnectionError) as err:
            raise Refused(
                "it closed the connection before it answered HELLO:"
                f" is uid {os.getuid()} on its --allow-uid list?",
                True,
            ) from err
        if frame.type == frames.ERROR:
            raise Refused(f"{frame.body['code']}: {frame.body['text']}", frame.body["retryable"])
        if frame.type != frames.WELCOME:
            raise Refused(f"{frames.name(frame.type)} came for HELLO", False)
        connection = Connection(link, frame.body, dict(hello.namespace), self.wake)
        for other in early:
            connection.take(other)
        return connection

    def _answer(self, link: Link, corr: int, other: Callable[[Frame], Any]) -> Frame:
        """Waits for the answer to a frame; the other frames go to `other`, the last ones too."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            found = None
            for frame in link.drain():
                if found is None and frame.corr == corr:
                    found = frame
                else:
                    other(frame)
            if found is not None:
                return found
            left = deadline - time.monotonic()
            if left <= 0 or self._closing:
                raise TimeoutError(f"no answer in {_ANSWER_SECONDS} s")
            self._wait(link, left)

    def _resume_nothing(self, connection: Connection) -> None:
        """RESUME without slots, where the engine's thread cannot have any to name.

        An idle engine would otherwise leave what its former session had out of use until its next
        request. Where there may be slots in flight, the engine's thread says which.
        """
        last = self._last
        if last is not None and last.namespace != connection.namespace:
            last = self._last = None  # the agent would refuse it
        connection.resumes = last
        if last is None or not last.quiet():
            connection.usable = last is None
            return
        body = frames.encode_resume(last.session, last.nonce, b"", b"")
        corr = connection.link.call(frames.RESUME, body)
        frame = self._answer(connection.link, corr, connection.take)
        if frame.type != frames.RESUMED:
            self.errors += 1
            _log.warning("RESUME was refused: %s", frame.body.get("text", ""))
        connection.resumes = None
        connection.usable = True

    def _attend(self, connection: Connection) -> None:
        """Looks after a connection until it has ended."""
        base = self._counters() if self._counters else {}
        told: dict[str, int] = {}
        stats_at = time.monotonic() + _STATS_SECONDS
        received, last_frame = 0, -math.inf
        listed = 0
        while not self._closing and not connection.farewell:
            sent = connection.flush()
            if not connection.receive():
                break
            if connection.list_asked != listed:
                listed = connection.list_asked
                self.lister.begin(connection, listed)
            if connection.draining and self._farewell(connection):
                break
            now = time.monotonic()
            if self._counters and now >= stats_at:
                told = self._tell_stats(connection, base, told)
                stats_at = now + _STATS_SECONDS
            left = max(0.0, stats_at - now) if self._counters else _MAX_BACKOFF
            if sent or received != connection.received:
                received = connection.received
                last_frame = now
            if now - last_frame < _BUSY_SECONDS:
                tick = _TICK if now - last_frame < _TICK_SECONDS else _SLOW_TICK
                self._wait(None, min(left, tick))
            else:
                self._sleep(connection, left)

    def _sleep(self, connection: Connection, seconds: float) -> None:
        """Until there is something to receive or to send."""
        connection.asleep = True
        if connection.full:
            self._wait(connection.link, min(seconds, _FULL_TICK))
        elif connection.backlog:  # left here just now, or another thread is sending
            self._wait(None, min(seconds, _TICK))
        else:
            self._wait(connection.link, seconds)
        connection.asleep = False

    def _farewell(self, connection: Connection) -> bool:
        """BYE of an idle engine, which calls nothing that could say it."""
        connection.usable = False  # before quiet() is asked: a request that begins now sees it
        if not connection.quiet():
            return False
        connection.say_bye("the agent stops")
        return connection.farewell

    def _part(self, connection: Connection) -> None:
        """The end of a connection."""
        try:
            connection.flush()
            if connection.farewell:
                deadline = time.monotonic() + _FAREWELL_SECONDS
                while connection.receive() and (left := deadline - time.monotonic()) > 0:
                    self._wait(connection.link, left)
        finally:
            if connection.farewell:
                self._last = None
            elif connection.resumes is None or connection.resumed:
                self._last = connection
            # Else its RESUME was not answered: the slots may be those of the one before still.
            connection.link.close()
            connection.usable = False
            self.evicted += connection.evicted
            self.events.append((LOST, connection))
        if not connection.farewell and not self._closing:
            _log.warning("the connection to the agent has ended; serving without it")

    def _tell_stats(
        self, connection: Connection, base: Mapping[str, int], told: dict[str, int]
    ) -> dict[str, int]:
        """STATS, if anything has changed; what was told last."""
        assert self._counters is not None
        now = {name: value - base.get(name, 0) for name, value in self._counters().items()}
        now.update(self._gauges())
        if now == told:
            return told
        try:
            connection.link.tell(frames.STATS, frames.encode_stats(now))
        except (LinkFull, LinkClosed):
            return told
        return now

    def _wait(self, link: Link | None, seconds: float) -> None:
        """Until the link is readable, wake() was called, or the time is over."""
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if link is not None:
            poll.register(link.fileno(), select.POLLIN)
        if any(fd == self._wake_fd for fd, _ in poll.poll(seconds * 1000)):
            lockheld.take_wakes(self._wake_fd)
