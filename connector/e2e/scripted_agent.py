"""An agent of the test: welcomes an engine, stores no blocks, and sends the case's queries."""

from __future__ import annotations

import contextlib
import pathlib
import socket
import threading
from typing import Any

from blockyard import frames, msgpack
from tests.agentproc import wait_until

_SLOT_BYTES = 1 << 20
_ANSWER_SECONDS = 10.0
# The answer to a worker that connects before its scheduler.
_NOT_YET = {"code": frames.NOT_FOUND, "retryable": True, "req": 0, "text": "no session yet"}


class ScriptedAgent:
    """Serves the connections of one engine at a time, each in its own thread.

    hello: the scheduler's HELLO, stats: its last STATS.
    """

    def __init__(self, directory: pathlib.Path) -> None:
        self.socket = str(directory / "hand.sock")
        self.hello: dict[str, Any] = {}
        self.stats: dict[str, Any] = {}
        self._scheduler: socket.socket | None = None
        self._lists: dict[int, list[int]] = {}
        self._final: set[int] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(self.socket)
        self._listener.listen(16)
        threading.Thread(target=self._accept, name="hand agent", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):  # a killed engine
            while message := connection.recv(frames.MAX_FRAME + 1):
                header = frames.parse_header(message)
                body = msgpack.decode(message[frames.HEADER_BYTES :])
                self._take(connection, header, body)

    def _take(self, connection: socket.socket, header: frames.Header, body: Any) -> None:
        if header.type == frames.HELLO:
            if body["role"] == "scheduler":
                self.hello, self._scheduler = body, connection
            elif not self.hello:
                _send(connection, frames.ERROR, header.corr, _NOT_YET)
                return
            _send(connection, frames.WELCOME, header.corr, _welcome(self.hello["namespace"]))
        elif header.type == frames.STATS and connection is self._scheduler:
            self.stats = body
        elif header.type == frames.CACHED:
            hashes = body["hashes"]
            at = range(0, len(hashes), 8)
            part = [int.from_bytes(hashes[i : i + 8], "little") for i in at]
            self._lists.setdefault(body["list"], []).extend(part)
            assert not body.get("unavailable"), "the engine has no list"
            if body["final"]:
                self._final.add(body["list"])
        elif header.corr:
            _send(connection, frames.OK, header.corr, None)

    def cached(self) -> list[int]:
        """Asks the engine for its cached hashes, in the order of its blocks."""
        number = len(self._lists) + 1
        assert self._scheduler is not None
        _send(self._scheduler, frames.LIST_CACHED, 0, {"list": number})
        wait_until("the engine has listed", lambda: number in self._final, _ANSWER_SECONDS)
        return self._lists[number]

    def close(self) -> None:
        """Stops listening. Engines find no agent from then on."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _welcome(namespace: dict[str, Any]) -> dict[str, Any]:
    sizes = ("num_layers", "outer_dim", "page_size", "inner_dim", "dtype_width_bytes")
    size = 1
    for name in sizes:
        size *= namespace[name]
    return {
        "major": frames.VERSION_MAJOR,
        "minor": frames.VERSION_MINOR,
        "session": 1,
        "agent_nonce": 1,
        "namespace_id": bytes(16),
        "pool": 1,
        "block_bytes": size,
        "slot_bytes": max(size, _SLOT_BYTES),
        "max_requests": 64,
        "max_pins": 64,
        "host_enabled": False,
    }


def _send(connection: socket.socket, kind: int, corr: int, body: dict[str, Any] | None) -> None:
    packed = b"" if body is None else msgpack.encode(body)
    connection.send(frames.pack_header(kind, corr, len(packed)) + packed)
