"""The channel between the leader and the workers of one engine.

TensorRT-LLM carries metadata only from the leader to the workers, and only in steps with work. So
the workers connect to a Unix socket of the leader. The first metadata has its name. The leader
sends copies to make, and the workers send reports of ended copies. The socket is in the abstract
namespace, has a random name, and accepts only processes of the same user. All ranks must be on the
agent's node.

A message is a msgpack map behind a u32 length. One thread uses each end. Any thread may use wake()
and the properties.
"""

from __future__ import annotations

import os
import secrets
import select
import socket
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, NamedTuple

from blockyard import msgpack

MAX_MESSAGE = 64 << 20
SEND_SECONDS = 5.0  # limit for a peer that reads no message; then the peer is lost
JOIN_SECONDS = 10.0
BYE = {"bye": True}  # the last message of a worker that ends
_READ = 1 << 18
_length = struct.Struct("<I")
_done = struct.Struct("<QII")


_here = ""  # name of the newest leader of this process


class Metadata(NamedTuple):
    """The leader's metadata in the engine's channel: the leader's name and the step's number."""

    crew: str
    step: int


def here() -> str:
    """The name of this process's newest leader, or empty."""
    return _here


class CrewError(Exception):
    """The channel cannot be made, the peer has closed it, or the peer sent a malformed message."""


class Channel:
    """One connection; messages in both directions. Owns its socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._socket.settimeout(SEND_SECONDS)
        self._unread = bytearray()

    def fileno(self) -> int:
        """For select()."""
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Waits until the kernel has the message. CrewError after SEND_SECONDS."""
        body = msgpack.encode(message)
        if len(body) > MAX_MESSAGE:
            raise CrewError(f"message of {len(body)} bytes, at most {MAX_MESSAGE}")
        try:
            self._socket.sendall(_length.pack(len(body)) + body)
        except OSError as err:
            raise CrewError(f"send: {err}") from err

    def receive(self) -> list[dict[str, Any]]:
        """The arrived messages. CrewError at the end of the connection. May wait: poll first."""
        try:
            piece = self._socket.recv(_READ)
        except OSError as err:
            raise CrewError(f"receive: {err}") from err
        if not piece:
            raise CrewError("the other end is gone")
        self._unread += piece
        return self._complete()

    def _complete(self) -> list[dict[str, Any]]:
        messages = []
        while len(self._unread) >= _length.size:
            size = _length.unpack_from(self._unread)[0]
            if size > MAX_MESSAGE:
                raise CrewError(f"message of {size} bytes, at most {MAX_MESSAGE}")
            end = _length.size + size
            if len(self._unread) < end:
                break
            try:
                message = msgpack.decode(bytes(self._unread[_length.size : end]))
            except ValueError as err:
                raise CrewError(f"malformed message: {err}") from err
            if not isinstance(message, dict):
                raise CrewError(f"message is {type(message).__name__}, want a map")
            del self._unread[:end]
            messages.append(message)
        return messages

    def close(self) -> None:
        """Ends the connection. May be called again."""
        self._socket.close()


class Waker:
    """Ends another thread's wait."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def fileno(self) -> int:
        """For select()."""
        return self._fd

    def wake(self) -> None:
        """Makes the descriptor readable until clear()."""
        if self._fd >= 0:
            os.eventfd_write(self._fd, 1)

    def clear(self) -> None:
        """Makes the descriptor unreadable again."""
        try:
            os.eventfd_read(self._fd)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Closes the descriptor. A later wake() has no effect."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class Crew:
    """The leader's end: accepts one connection from each of `size` workers.

    welcome(join) gets a worker's first message, which has its `rank`, and returns the answer. A
    ValueError, TypeError or KeyError of welcome refuses the worker with its text. lost: rank and
    reason of a worker that ended without BYE. left: a worker has sent BYE.
    """

    def __init__(self, size: int, welcome: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        self._size = size
        self._welcome = welcome
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.name = f"blockyard-{os.getpid()}-{secrets.token_hex(16)}"
        self._listener.bind(b"\0" + self.name.encode())
        self._listener.listen(size + 8)
        self._members: dict[int, Channel] = {}
        self._joining: list[Channel] = []
        self._waker = Waker()
        self.lost = ""
        self.left = False
        global _here
        _here = self.name

    @property
    def complete(self) -> bool:
        """Whether every worker has joined and none has ended."""
        return len(self._members) == self._size and not self.lost and not self.left

    @property
    def ranks(self) -> Collection[int]:
        """The ranks of the joined workers."""
        return self._members.keys()

    def wake(self) -> None:
        """Ends a poll() in another thread."""
        self._waker.wake()

    def poll(self, timeout: float) -> list[tuple[int, dict[str, Any]]]:
        """Waits up to `timeout` seconds. Returns rank and message of each arrived message.

        Accepts new workers too.
        """
        ranks = {channel.fileno(): rank for rank, channel in self._members.items()}
        newcomers = {channel.fileno(): channel for channel in self._joining}
        sources = [self._listener.fileno(), self._waker.fileno(), *ranks, *newcomers]
        arrived: list[tuple[int, dict[str, Any]]] = []
        for fd in readable(sources, timeout):
            if fd == self._waker.fileno():
                self._waker.clear()
            elif fd == self._listener.fileno():
                self._accept()
            elif fd in newcomers:
                self._join(newcomers[fd])
            else:
                rank = ranks[fd]
                arrived += [(rank, message) for message in self._receive(rank)]
        return arrived

    def _receive(self, rank: int) -> list[dict[str, Any]]:
        try:
            messages = self._members[rank].receive()
        except CrewError as err:
            self._lose(rank, err)
            return []
        if messages and messages[-1] == BYE:
            self.left = True
            self._members.pop(rank).close()
            messages.pop()
        return messages

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends to all workers. A worker that does not read the message is lost."""
        for rank, channel in list(self._members.items()):
            try:
                channel.send(message)
            except CrewError as err:
                self._lose(rank, err)

    def _accept(self) -> None:
        sock, _ = self._listener.accept()
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        _, uid, _ = struct.unpack("iII", credentials)
        if uid != os.getuid() or len(self._joining) >= self._size + 8:
            sock.close()
            return
        self._joining.append(Channel(sock))

    def _join(self, channel: Channel) -> None:
        try:
            messages = channel.receive()
        except CrewError:
            self._joining.remove(channel)
            channel.close()
            return
        if not messages:
            return  # the message is incomplete
        self._joining.remove(channel)
        try:
            rank = self._free_rank(messages[0].get("rank"))
            answer = self._welcome(messages[0])
        except (ValueError, TypeError, KeyError) as err:  # another release may send other fields
            rank, answer = -1, {"refused": f"{type(err).__name__}: {err}"}
        try:
            channel.send(answer)
        except CrewError:
            rank = -1  # the worker has ended
        if rank < 0:
            channel.close()
        else:
            self._members[rank] = channel

    def _free_rank(self, rank: object) -> int:
        if not isinstance(rank, int) or not 0 <= rank < self._size or rank in self._members:
            raise ValueError(f"rank: {rank!r} is taken or not in 0..{self._size - 1}")
        return rank

    def _lose(self, rank: int, err: CrewError) -> None:
        self.lost = f"rank {rank}: {err}"
        self._members.pop(rank).close()

    def close(self) -> None:
        """Ends all connections."""
        for channel in [*self._members.values(), *self._joining]:
            channel.close()
        self._members.clear()
        self._joining.clear()
        self._listener.close()
        self._waker.close()
        global _here
        if _here == self.name:
            _here = ""


def readable(fds: Iterable[int], timeout: float) -> list[int]:
    """The descriptors that are readable or closed within `timeout` seconds.

    Uses poll(), because select() is limited to 1,024 descriptors and engines have more.
    """
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return [fd for fd, _ in poller.poll(timeout * 1000)]


def join(name: str, message: Mapping[str, Any]) -> tuple[Channel, list[dict[str, Any]]]:
    """A worker's channel to the leader of that name, and the leader's messages so far.

    Connects and sends `message`. The first of the leader's messages is the welcome. CrewError after
    JOIN_SECONDS, without such a leader on this machine, or when the leader refuses.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.connect(b"\0" + name.encode())
    except OSError as err:
        sock.close()
        raise CrewError(f"no leader on this machine: {err}") from err
    channel = Channel(sock)
    try:
        channel.send(message)
        answers: list[dict[str, Any]] = []
        while not answers:
            if not readable([channel.fileno()], JOIN_SECONDS):
                raise CrewError(f"no answer from the leader in {JOIN_SECONDS} s")
            answers = channel.receive()
        if "refused" in answers[0]:
            raise CrewError(f"refused by the leader: {answers[0]['refused']}")
    except CrewError:
        channel.close()
        raise
    return channel, answers


def pack_done(jobs: Mapping[int, tuple[int, int] | list[int]]) -> bytes:
    """Packs jobs with their numbers of succeeded and failed workers."""
    return b"".join(_done.pack(job, ok, failed) for job, (ok, failed) in jobs.items())


def unpack_done(packed: bytes) -> list[tuple[int, int, int]]:
    """The jobs of a packed report. struct.error for a wrong length."""
    return list(_done.iter_unpack(packed))
