"""The keeper: the thread that keeps the scheduler connected to the agent.

The keeper connects, sends HELLO, and connects again when a connection has ended. It sends the
outbox, sends STATS once a second, and receives. The keeper changes none of the engine's state. Its
event queue delivers connections and their ends to the engine's thread.
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
_REFUSED_BACKOFF = 30.0  # after a refusal that is not retryable
_ANSWER_SECONDS = 15.0
_FAREWELL_SECONDS = 2.0
# While frames flow, the keeper sends and receives at these intervals. A wake for each frame would
# cost the engine's thread as much as a send.
_TICK = 0.002
_TICK_SECONDS = 0.05  # how long after the last frame
_SLOW_TICK = 0.01
_BUSY_SECONDS = 2.0  # how long after the last frame; longer than a step of the engine
_FULL_TICK = 0.05  # interval between sends to a full socket
_STATS_SECONDS = 1.0
_ABSENT_SECONDS = 30.0  # without an agent until the warning


class Refused(Exception):
    """The agent refused HELLO. retryable: the next HELLO may be accepted."""

    def __init__(self, text: str, retryable: bool) -> None:
        super().__init__(text)
        self.retryable = retryable


class Keeper:
    """Keeps one connection. counters returns the cumulative values of STATS. gauges returns the
    current values of STATS, or nothing."""

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
        self.errors = 0  # exceptions in the thread, and the keeper's own RESUMEs that were refused
        self.evicted = 0  # blocks named by EVICTED on ended connections
        self._path = path
        self._counters = counters
        self._gauges = gauges
        self._hello: HelloFields | None = None
        self._last: Connection | None = None  # ended without BYE and not resumed
        self._closing = False
        self._thread: threading.Thread | None = None
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._said = ""  # the last failure that was logged
        self._absent_since: float | None = None  # infinity after the warning

    def __del__(self) -> None:
        os.close(self._wake_fd)

    def start(self, hello: HelloFields) -> None:
        """Starts the thread, which sends this HELLO."""
        self._hello = hello
        self._thread = threading.Thread(target=self._run, name="blockyard-keeper", daemon=True)
        self._thread.start()

    def rename(self, weights: str) -> None:
        """Sets the weights in HELLO, from the next connection on."""
        hello = self._hello
        assert hello is not None and hello.namespace is not None
        self._hello = replace(hello, namespace={**hello.namespace, "weights": weights})

    def wake(self) -> None:
        """Wakes the thread to check its link, its outbox and BYE."""
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
                self._absent_since = None
                for stage in (self._attend, self._part):
                    try:
                        stage(connection)
                    except Exception:  # the LOST event and the next connection must follow
                        self.errors += 1
                        _log.exception("the keeper continues after an error")
                if time.monotonic() - began > _MAX_BACKOFF:
                    backoff = _FIRST_BACKOFF
                wait = backoff
            self._wait(None, wait)
            backoff = min(2 * backoff, _MAX_BACKOFF)

    def _note_failure(self, err: Exception, backoff: float) -> float:
        """Logs a new kind of failure. Returns the seconds to wait."""
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
        self._absent_since = now if self._absent_since is None else self._absent_since
        if now - self._absent_since >= _ABSENT_SECONDS:
            self._absent_since = math.inf
            _log.warning(
                "still no agent at %s after %d s (%s); all requests run without it",
                self._path,
                _ABSENT_SECONDS,
                text,
            )
        return _REFUSED_BACKOFF if refused and not err.retryable else backoff

    def _connect(self) -> Connection:
        """Makes a welcomed connection and queues it for the engine's thread."""
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
        if "groups" in hello.namespace and frame.body["minor"] < frames.GROUPS_MINOR:
            raise Refused(
                f"the agent speaks protocol {frame.body['major']}.{frame.body['minor']}, and a"
                f" model with KV groups needs {frames.VERSION_MAJOR}.{frames.GROUPS_MINOR}",
                False,
            )
        connection = Connection(link, frame.body, dict(hello.namespace), self.wake)
        for other in early:
            connection.take(other)
        return connection

    def _answer(self, link: Link, corr: int, other: Callable[[Frame], Any]) -> Frame:
        """Waits for the answer to a frame. Gives all other frames to `other`."""
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
        """Sends RESUME without slots for an ended connection without work in flight.

        So an idle engine frees the ended session's slots before its next request. With slots in
        flight, the engine's thread sends RESUME.
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
        """Serves a connection until it ends."""
        base = self._counters() if self._counters else {}
        reported: dict[str, int] = {}
        stats_at = time.monotonic() + _STATS_SECONDS
        received, asked, last_frame = 0, 0, -math.inf
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
                reported = self._send_stats(connection, base, reported)
                stats_at = now + _STATS_SECONDS
            left = max(0.0, stats_at - now) if self._counters else _MAX_BACKOFF
            if sent or received != connection.received or asked != connection.asked:
                received, asked = connection.received, connection.asked
                last_frame = now
            if now - last_frame < _BUSY_SECONDS:
                tick = _TICK if now - last_frame < _TICK_SECONDS else _SLOW_TICK
                self._wait(None, min(left, tick))
            else:
                self._sleep(connection, left)

    def _sleep(self, connection: Connection, seconds: float) -> None:
        """Waits for a frame to receive or to send, at most `seconds`."""
        connection.asleep = True
        if connection.full:
            self._wait(connection.link, min(seconds, _FULL_TICK))
        elif connection.backlog:  # a new frame, or another thread is sending
            self._wait(None, min(seconds, _TICK))
        else:
            self._wait(connection.link, seconds)
        connection.asleep = False

    def _farewell(self, connection: Connection) -> bool:
        """Sends BYE for an idle engine, whose thread makes no call. Returns whether BYE is sent."""
        connection.usable = False  # before quiet(): a request that begins now sees the change
        if not connection.quiet():
            return False
        connection.say_bye("the agent stops")
        return connection.farewell

    def _part(self, connection: Connection) -> None:
        """Ends a connection and queues LOST."""
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
            # Otherwise RESUME was not answered: the earlier connection may still have the slots.
            connection.link.close()
            connection.usable = False
            self.evicted += connection.evicted
            self.events.append((LOST, connection))
        if not connection.farewell and not self._closing:
            _log.warning("the connection to the agent has ended; serving without it")

    def _send_stats(
        self, connection: Connection, base: Mapping[str, int], reported: dict[str, int]
    ) -> dict[str, int]:
        """Sends STATS if a value has changed. Returns the values that were sent last."""
        assert self._counters is not None
        now = {name: value - base.get(name, 0) for name, value in self._counters().items()}
        now.update(self._gauges())
        if now == reported:
            return reported
        try:
            connection.link.tell(frames.STATS, frames.encode_stats(now))
        except (LinkFull, LinkClosed):
            return reported
        return now

    def _wait(self, link: Link | None, seconds: float) -> None:
        """Waits until the link is readable, wake() was called, or `seconds` have passed."""
        poll = select.poll()
        poll.register(self._wake_fd, select.POLLIN)
        if link is not None:
            poll.register(link.fileno(), select.POLLIN)
        if any(fd == self._wake_fd for fd, _ in poll.poll(seconds * 1000)):
            lockheld.take_wakes(self._wake_fd)
