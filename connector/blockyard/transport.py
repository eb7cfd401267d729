"""One connection to the agent: a SEQPACKET socket that never blocks its caller.

Several threads may use a Link. A send succeeds at once or fails. A thread receives only if it gets
the receive lock at once, so an engine's hook never waits for a helper thread.
"""

from __future__ import annotations

import itertools
import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

from . import frames, lockheld
from .frames import FrameError
from .replies import decode_body

_log = logging.getLogger(__name__)

_MAX_FDS = 4  # a frame has one at most; extra room reveals further ones, which are closed
_CORR_MASK = 0xFFFFFFFF


class LinkClosed(Exception):
    """The connection has ended: either side closed it, or a message was malformed."""


class LinkFull(Exception):
    """The frame was not sent, because the agent reads its socket too slowly."""


class Frame(NamedTuple):
    """One frame from the agent. body has every field of its type, in range (see replies).

    fd is the descriptor of EXTENT_READY, which the receiver owns. Other frames have -1.
    """

    type: int
    corr: int
    body: dict[str, Any]
    fd: int


class Link:
    """A connection, made by the constructor. Thread-safe.

    close() ends the connection for both sides at once. The descriptors are closed only with the
    last reference to the Link. Otherwise a concurrent call of another thread could use a reused
    descriptor number.
    """

    _wake_fd = -1

    def __init__(self, path: str) -> None:
        """Connects to the agent's socket at path. OSError when the connection fails."""
        self._sock = _connect(path)
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._corr = itertools.count(1)
        self._receiving = threading.Lock()
        self._inbox = lockheld.Inbox(frames.MAX_FRAME + 1, _MAX_FDS)  # + 1 reveals larger frames
        self._buffer = memoryview(self._inbox.message)
        self._unsendable: str | None = None  # reason that ended sending
        self._unreadable: str | None = None  # reason that ended receiving
        self.skipped = 0  # frames of unknown types

    def __del__(self) -> None:
        if self._wake_fd >= 0:  # -1: the constructor failed
            os.close(self._wake_fd)
            self._sock.close()

    def fileno(self) -> int:
        """The socket's descriptor, for poll(). Valid as long as the Link."""
        return self._sock.fileno()

    @property
    def closed(self) -> bool:
        """Whether the connection has ended. Received frames may still be drained."""
        return self._unsendable is not None

    def call(self, frame_type: int, body: bytes) -> int:
        """Sends a frame that needs an answer. Returns the correlation of the answer.

        LinkFull when the socket is full. LinkClosed when the connection has ended.
        """
        corr = self.correlation()
        self.send(frame_type, corr, body)
        return corr

    def tell(self, frame_type: int, body: bytes) -> None:
        """Sends a frame without an answer. Raises as call() does."""
        self.send(frame_type, 0, body)

    def correlation(self) -> int:
        """A new correlation for send()."""
        corr = next(self._corr) & _CORR_MASK
        return corr or next(self._corr) & _CORR_MASK  # 0 means no answer

    def send(self, frame_type: int, corr: int, body: bytes) -> None:
        """Sends a frame with this correlation, 0 for none. Raises as call() does."""
        if self._unsendable is not None:
            raise LinkClosed(self._unsendable)
        message = frames.pack_header(frame_type, corr, len(body)) + body
        try:
            lockheld.send(self._sock.fileno(), message)
        except BlockingIOError:
            raise LinkFull(f"{frames.name(frame_type)}: the agent does not read") from None
        except OSError as err:
            # Frames that the agent sent before can still be received.
            self._shut(f"send {frames.name(frame_type)}: {err}")
            raise LinkClosed(self._unsendable) from None

    def drain(self, limit: int = 64) -> list[Frame]:
        """The arrived frames, at most limit, without waiting. Empty while another thread receives.

        LinkClosed at the end of the connection and after a malformed frame. All earlier frames are
        returned first.
        """
        into: list[Frame] = []
        self.drain_to(into.append, limit)
        return into

    def drain_to(self, take: Callable[[Frame], object], limit: int = 64) -> int:
        """Calls take for each arrived frame. Returns the number of frames. Otherwise as drain().

        One thread at a time receives, so take gets the frames in their order. take must not use
        the link.
        """
        if not self._receiving.acquire(blocking=False):
            return 0
        count = 0
        try:
            while count < limit:
                frame = self._receive()
                if frame is None:
                    break
                take(frame)
                count += 1
        except LinkClosed:
            if not count:
                raise
        finally:
            self._receiving.release()
        return count

    def _receive(self) -> Frame | None:
        """The next frame of a known type. None when no frame has arrived."""
        while True:
            if self._unreadable is not None:
                raise LinkClosed(self._unreadable)
            try:
                message, fds, flags = self._receive_message()
            except BlockingIOError:
                return None
            except OSError as err:
                raise self._end(f"receive: {err}") from None
            frame = self._parse(message, fds, flags)
            if frame is not None:
                return frame
            self.skipped += 1

    def _receive_message(self) -> tuple[memoryview, list[int], int]:
        """One message, its descriptors and recvmsg's flags. The next call reuses the buffer."""
        n, fds, flags = self._inbox.receive(self._sock.fileno())
        return self._buffer[:n], fds, flags

    def _parse(self, message: memoryview, fds: list[int], flags: int) -> Frame | None:
        """The frame in a message. None for an unknown type.

        A malformed message ends the connection. Descriptors that are not returned are closed.
        """
        unused = fds
        try:
            if not message:
                raise self._end("the agent closed the connection")
            if flags & lockheld.CUT:
                raise FrameError(
                    f"more than {frames.MAX_FRAME} bytes or {_MAX_FDS} descriptors in a message"
                )
            header = frames.parse_header(message)
            body = decode_body(header.type, bytes(message[frames.HEADER_BYTES :]))
            if body is None:
                return None
            want = 1 if header.type == frames.EXTENT_READY else 0
            if len(fds) != want:
                raise FrameError(
                    f"{frames.name(header.type)} carries {len(fds)} descriptors: want {want}"
                )
            unused = []
            return Frame(header.type, header.corr, body, fds[0] if fds else -1)
        except FrameError as err:
            _log.error("the connection to the agent ends: malformed frame: %s", err)
            raise self._end(f"malformed frame: {err}") from None
        finally:
            for fd in unused:
                os.close(fd)

    def wait(self, timeout: float | None) -> bool:
        """Waits until frames may have arrived, the connection has ended or wake() was called.

        False after timeout seconds. None is no timeout.
        """
        poll = select.poll()
        poll.register(self._sock.fileno(), select.POLLIN)
        poll.register(self._wake_fd, select.POLLIN)
        ready = poll.poll(None if timeout is None else max(0.0, timeout) * 1000)
        if any(fd == self._wake_fd for fd, _ in ready):
            lockheld.take_wakes(self._wake_fd)
        return bool(ready)

    def wake(self) -> None:
        """Ends the current wait() of another thread, or else the next wait()."""
        lockheld.wake(self._wake_fd)

    def close(self) -> None:
        """Ends the connection and wakes a waiting thread. May be called again."""
        self._end("closed")
        self.wake()

    def _end(self, reason: str) -> LinkClosed:
        """Ends both directions. Returns the error to raise, with the first reason."""
        if self._unreadable is None:
            self._unreadable = reason
        self._shut(reason)
        return LinkClosed(self._unreadable)

    def _shut(self, reason: str) -> None:
        if self._unsendable is None:
            self._unsendable = reason
        try:
            self._sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the agent has closed the connection already


def _connect(path: str) -> socket.socket:
    """A connected socket. OSError when the agent's queue of connections is full."""
    sock = socket.socket(
        socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK
    )
    try:
        sock.connect(path)
    except BaseException:
        sock.close()
        raise
    return sock
