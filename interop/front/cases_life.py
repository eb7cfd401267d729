"""Servers that die or drain, and clients that leave."""

from __future__ import annotations

import json
import socket
import threading
import time
from typing import Any, NamedTuple

import openai

from front.bed import Bed, case
from front.door import Door, Endpoint, sampling
from tests.agentproc import wait_until

_STREAMS = 12
_DRAINED = 6  # requests that would go to the drained server
_WHOLE = 6  # requests at a time that are not streamed
_TOKENS = 160  # of an answer: some seconds, so that the kill meets all stages


class Ended(NamedTuple):
    """How a stream ended."""

    tokens: list[int]
    error: str  # code of the error, or its text; empty after a whole answer


def stream(door: Endpoint, text: str, count: int, seen: threading.Semaphore | None = None) -> Ended:
    """Reads a streamed completion. seen: released at the first token."""
    tokens: list[int] = []
    try:
        fields: dict[str, Any] = {}
        chunks = door.client.completions.create(
            prompt=text, stream=True, **sampling(count, fields)
        )
        for chunk in chunks:
            if seen is not None and not tokens:
                seen.release()
            for choice in chunk.choices:
                tokens += choice.token_ids or []
    except openai.APIError as err:
        return Ended(tokens, err.code or f"{type(err).__name__}: {err}")
    return Ended(tokens, "")


@case("worker-killed", "a killed server costs only the answers that had begun")
def worker_killed(bed: Bed) -> str:
    servers = bed.plain()
    door = bed.door(servers=servers)
    victim, survivor = servers
    texts = [bed.text(150) for _ in range(6)]
    direct = Endpoint(survivor.url)
    want = {t: direct.complete(t, _TOKENS, cache_salt=bed.salt()).tokens for t in texts}
    results: list[tuple[str, Ended]] = []
    whole: list[list[int]] = []
    stop, seen = threading.Event(), threading.Semaphore(0)

    def client(number: int) -> None:
        text = texts[number % len(texts)]
        while not stop.is_set():
            results.append((text, stream(door, text, _TOKENS, seen)))

    def patient() -> None:
        # The death of a server with these equal requests is no fault of theirs.
        while not stop.is_set():
            whole.append(door.complete(texts[0], _TOKENS).tokens)

    clients = [threading.Thread(target=client, args=(n,)) for n in range(_STREAMS)]
    clients += [threading.Thread(target=patient) for _ in range(_WHOLE)]
    for c in clients:
        c.start()
    for _ in range(_STREAMS):
        assert seen.acquire(timeout=60), "not every stream has begun"
    running = victim.metric("vllm:num_requests_running")
    victim.kill9()
    time.sleep(3)  # requests that meet the dead server
    stop.set()
    for c in clients:
        c.join(120)
    lost = _check(bed, results, want)
    assert len(whole) >= _WHOLE, f"{len(whole)} answers that are not streamed"
    for tokens in whole:
        bed.compare("answer that is not streamed", tokens, want[texts[0]])
    retried = int(door.metric("blockyard_frontend_retries_total"))
    assert retried, "no request was sent to another server"
    assert running and lost, f"the killed server had {running} requests, and {lost} were lost"
    door.idle()
    assert stream(door, texts[0], 4) == (want[texts[0]][:4], "")
    victim.start()
    victim.ready()
    wait_until("both servers are used", lambda: len(_used(bed, door)) == 2, 60.0, pause=0.5)
    return f"{len(results) + len(whole)} requests, {retried} retried, {lost} broken off after tokens"


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
    running = threading.Thread(
        target=lambda: ends.append(stream(door.pinned(away), bed.text(20), 200, seen))
    )
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
