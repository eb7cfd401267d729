"""Dynamo's selection service and ours: the same requests, and engines that tell both."""

from __future__ import annotations

import json
import struct
import urllib.error
import urllib.request
from typing import Any, NamedTuple

import msgpack
import zmq

from live.child import wait_until

_SECONDS = 10


class Answer(NamedTuple):
    """A status and the parsed body, {"error": ""} for a body that is no JSON."""

    status: int
    body: Any


class Service:
    """A selection service at a port of this machine."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self._url = f"http://127.0.0.1:{port}"
        wait_until(f"{name} serves", self._serves)

    def _serves(self) -> bool:
        try:
            return self.ask("GET", "/health").status == 200
        except OSError:
            return False

    def ask(self, method: str, path: str, body: str = "") -> Answer:
        """The answer to a request."""
        q = urllib.request.Request(self._url + path, body.encode() or None, method=method)
        if body:
            q.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(q, timeout=_SECONDS) as answer:
                return _answer(answer.status, answer.read())
        except urllib.error.HTTPError as err:
            return _answer(err.code, err.read())

    def post(self, path: str, **fields: Any) -> Any:
        """The body of the answer to a POST, which must succeed."""
        answer = self.ask("POST", path, json.dumps(fields))
        assert answer.status < 300, f"{self.name}: POST {path} {fields}: {answer}"
        return answer.body


def _answer(status: int, text: bytes) -> Answer:
    try:
        return Answer(status, json.loads(text))
    except ValueError:
        return Answer(status, {"error": ""})


def without_texts(body: Any) -> Any:
    """The body without the texts of errors, which are each product's own."""
    if isinstance(body, dict):
        return {k: "" if k == "error" and v else without_texts(v) for k, v in body.items()}
    if isinstance(body, list):
        return [without_texts(v) for v in body]
    if isinstance(body, str) and body.startswith("reconciliation failed: "):
        return "reconciliation failed"
    return body


class Engine:
    """A publisher of vLLM's KV events for one worker."""

    def __init__(self, context: zmq.Context[Any], block: int) -> None:
        self._socket = context.socket(zmq.XPUB)
        self._socket.linger = 0
        self._socket.xpub_verbose = True  # tell of every subscriber, not of the first one
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        self.endpoint = f"tcp://127.0.0.1:{port}"
        self._block, self._sequence = block, 0

    def wait_for(self, subscribers: int) -> None:
        """Waits until so many have subscribed."""
        for _ in range(subscribers):
            assert self._socket.poll(_SECONDS * 1000), f"no subscriber at {self.endpoint}"
            self._socket.recv()

    def stored(self, first: int, tokens: list[int]) -> None:
        """Says that a prompt's blocks are on the device. Their hashes are `first` and up."""
        count = len(tokens) // self._block
        hashes = list(range(first, first + count))
        event = ["BlockStored", hashes, None, tokens[: count * self._block], self._block, None]
        batch = msgpack.packb([0.0, [event], 0])
        self._socket.send_multipart([b"", struct.pack(">Q", self._sequence), batch])
        self._sequence += 1

    def close(self) -> None:
        """Ends the publisher."""
        self._socket.close()
