"""Servers that die or drain, and clients that leave."""

from __future__ import annotations

import collections
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import openai

from e2e.runner import case
from front.bed import Bed
from front.door import Door, Endpoint, sampling
from front.server import VllmServer
from tests.agentproc import wait_until

_STREAMS = 12
_DRAINED = 6  # requests that would go to the drained server
_WHOLE = 6  # requests at a time that are not streamed
_TOKENS = 300  # of an answer: seconds, so that the kill meets all stages
_EACH = 3  # requests of each stage at the server that is killed


class Ended(NamedTuple):
    """How a stream ended."""

    tokens: list[int]
    error: str  # code of the error, or its text; empty after a whole answer


def stream(
    door: Endpoint, text: str, count: int, begun: Callable[[str], None] | None = None
) -> Ended:
    """Reads a streamed completion. begun: called at the first token, with the worker."""
    tokens: list[int] = []
    try:
        fields: dict[str, Any] = {}
        chunks = door.client.completions.create(prompt=text, stream=True, **sampling(count, fields))
        for chunk in chunks:
            if begun is not None and not tokens:
                begun(chunks.response.headers["X-Blockyard-Worker"])
            for choice in chunk.choices:
                tokens += choice.token_ids or []
    except openai.APIError as err:
        return Ended(tokens, err.code or f"{type(err).__name__}: {err}")
    return Ended(tokens, "")


class _Load:
    """Clients that ask again and again until stop(), some streamed and some not."""

    def __init__(self, door: Door, texts: list[str]) -> None:
        self.streams: list[tuple[str, Ended]] = []  # prompts, and how their streams ended
        self.whole: list[tuple[str, list[int]]] = []  # prompts and tokens that are not streamed
        self._door = door
        self._lock = threading.Lock()
        self._begun: collections.Counter[str] = collections.Counter()
        self._stopped = threading.Event()
        self._clients = [
            threading.Thread(target=self._stream, args=(texts[n % len(texts)],))
            for n in range(_STREAMS)
        ]
        # Equal requests: the death of a server is no fault of theirs.
        self._clients += [
            threading.Thread(target=self._complete, args=(texts[0],)) for _ in range(_WHOLE)
        ]
        for c in self._clients:
            c.start()

    def begun(self, worker: str) -> int:
        """Streams at a worker that have a token and have not ended."""
        with self._lock:
            return self._begun[worker]

    def stop(self) -> None:
        """Waits for the requests in progress."""
        self._stopped.set()
        for c in self._clients:
            c.join(120)

    def _stream(self, text: str) -> None:
        while not self._stopped.is_set():
            at: list[str] = []

            def begun(worker: str, at: list[str] = at) -> None:
                at.append(worker)
                self._count(worker, 1)

            self.streams.append((text, stream(self._door, text, _TOKENS, begun)))
            for worker in at:
                self._count(worker, -1)

    def _count(self, worker: str, change: int) -> None:
        with self._lock:
            self._begun[worker] += change

    def _complete(self, text: str) -> None:
        while not self._stopped.is_set():
            self.whole.append((text, self._door.complete(text, _TOKENS).tokens))


@case("worker-killed", "a server killed under load costs only the answers that had begun")
def worker_killed(bed: Bed) -> str:
    servers = bed.plain()
    door = bed.door(servers=servers)
    texts = [bed.text(150) for _ in range(6)]
    direct = Endpoint(servers[0].url)
    want = {t: direct.complete(t, _TOKENS, cache_salt=bed.salt()).tokens for t in texts}
    load = _Load(door, texts)
    try:
        victim, begun, running = wait_until(
            "a server has requests of all stages", lambda: _crowded(door, load, servers), 300.0
        )
        victim.kill9()
        done = len(load.streams)
        more = done + 2 * _STREAMS
        wait_until("requests meet the dead server", lambda: len(load.streams) > more, 300.0)
    finally:
        load.stop()
    lost = _check(bed, load.streams, want)
    assert len(load.whole) >= _WHOLE, f"{len(load.whole)} answers that are not streamed"
    for text, tokens in load.whole:
        bed.compare("answer that is not streamed", tokens, want[text])
    retried = int(door.metric("blockyard_frontend_retries_total"))
    stages = f"{begun} of {running} requests at the killed server had begun"
    assert retried and lost, f"{stages}, {retried} were retried and {lost} lost"
    door.idle()
    assert stream(door, texts[0], 4) == (want[texts[0]][:4], "")
    victim.start()
    victim.ready()
    wait_until("both servers are used", lambda: len(_used(bed, door)) == 2, 60.0, pause=0.5)
    total = len(load.streams) + len(load.whole)
    return f"{total} requests, {stages}: {retried} retried, {lost} broken off after tokens"


def _crowded(
    door: Door, load: _Load, servers: list[VllmServer]
) -> tuple[VllmServer, int, int] | None:
    """A server with streams that have begun and requests that have not, and both numbers."""
    for row in door.get("/v1/servers"):
        begun = load.begun(f"{row['worker_id']}/0")
        if begun >= _EACH and row["requests"] >= begun + _EACH:
            return next(s for s in servers if s.url == row["url"]), begun, row["requests"]
    return None


def _check(bed: Bed, results: list[tuple[str, Ended]], want: dict[str, list[int]]) -> int:
    """Checks all streams and returns how many broke off."""
    lost = 0
    for text, ended in results:
        expected = want[text]
        if ended.error:
            lost += 1
            assert ended.tokens, f"a request was lost before its first token: {ended.error}"
            assert ended.error == "worker_lost", ended.error
            expected = expected[: len(ended.tokens)]
        bed.compare("stream", ended.tokens, expected)
    return lost


def _used(bed: Bed, door: Door) -> set[str]:
    """The workers of new prompts that arrive together."""
    workers: set[str] = set()

    def ask() -> None:
        workers.add(door.complete(bed.text(20), 24).worker)

    asking = [threading.Thread(target=ask) for _ in range(4)]
    for a in asking:
        a.start()
    for a in asking:
        a.join(60)
    return workers


@case("client-leaves", "a client that leaves ends its request at the engine and frees its booking")
def client_leaves(bed: Bed) -> str:
    servers = bed.plain()
    door = bed.door(servers=servers)

    def running() -> float:
        return sum(s.metric("vllm:num_requests_running") for s in servers)

    slowest = 0.0
    for streamed in (True, False):
        connections = [_begin(door, bed.text(20), streamed) for _ in range(6)]
        wait_until("6 requests run", lambda: running() == 6, 30.0, pause=0.05)
        for c in connections:
            c.close()
        left = time.monotonic()
        wait_until("the engines abort the requests", lambda: running() == 0, 10.0, pause=0.05)
        door.idle()
        slowest = max(slowest, time.monotonic() - left)
    assert door.complete(bed.text(20)).tokens
    return f"nothing runs and nothing is booked {slowest:.1f} s later"


def _begin(door: Door, text: str, streamed: bool) -> socket.socket:
    """Sends a request for a long answer and does not read."""
    body = {
        "prompt": text,
        "max_tokens": 1500,
        "temperature": 0,
        "ignore_eos": True,
        "stream": streamed,
    }
    data = json.dumps(body).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: door\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    connection = socket.create_connection(door.address, timeout=30)
    connection.sendall(head.encode() + data)
    return connection


@case("drain", "a draining server finishes its requests and gets no new ones")
def drain(bed: Bed) -> str:
    servers = bed.plain()
    door = bed.door(servers=servers)
    away = door.worker_of(servers[0].url)
    number = away.partition("/")[0]
    texts = [bed.text(100) for _ in range(_DRAINED)]
    for text in texts:
        door.caught_up(door.pinned(away).complete(text, 4))
    assert door.complete(texts[0], 4).worker == away, "the server with the blocks is not chosen"
    ends: list[Ended] = []
    seen = threading.Semaphore(0)

    def last() -> None:
        ends.append(stream(door.pinned(away), bed.text(20), 200, lambda _: seen.release()))

    running = threading.Thread(target=last)
    running.start()
    assert seen.acquire(timeout=60), "the request has not begun"
    door.operate(f"/v1/workers/{number}/drain")
    for text in texts:
        assert door.complete(text, 4).worker != away, "a draining server got a request"
    running.join(120)
    assert ends and not ends[0].error and len(ends[0].tokens) == 200, ends
    door.operate(f"/v1/workers/{number}/undrain")
    wait_until("the server is used again", lambda: away in _used(bed, door), 60.0, pause=0.2)
    return f"{_DRAINED} requests passed by it, and a running one ended whole"
