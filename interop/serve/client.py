"""Clients that send the requests of a plan and take the times of the answers."""

from __future__ import annotations

import http.client
import json
import threading
import time
import urllib.parse
from typing import Any, NamedTuple

from front.server import MODEL
from serve.workload import Request

CLIENTS = 4
ANSWER_TOKENS = 8
_ANSWER_SECONDS = 300.0


class Result(NamedTuple):
    """What one streamed answer has shown. Times are seconds."""

    scenario: str
    prompt: int  # tokens of the prompt
    cached: int  # tokens of the prompt that the engine reports as cached
    first: float  # from sending to the first token
    gaps: list[float]  # between the events of the stream


class ClientError(Exception):
    """A request has failed."""


def run(url: str, requests: list[Request]) -> list[Result]:
    """Sends the requests, CLIENTS at a time, in their order. ClientError when one fails."""
    results: list[Result | None] = [None] * len(requests)
    done = [threading.Event() for _ in requests]
    errors: list[str] = []
    lock = threading.Lock()
    left = iter(range(len(requests)))

    def client() -> None:
        while not errors:
            with lock:
                index = next(left, None)
            if index is None:
                return
            request = requests[index]
            try:
                if request.after >= 0 and not done[request.after].wait(_ANSWER_SECONDS):
                    raise ClientError(f"request {request.after} has not ended")
                results[index] = _ask(url, request)
            except (OSError, ClientError, http.client.HTTPException, ValueError) as err:
                errors.append(f"request {index} ({request.scenario}): {err}")
            finally:
                done[index].set()

    threads = [threading.Thread(target=client, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise ClientError("; ".join(errors))
    return [r for r in results if r is not None]


def _ask(url: str, request: Request) -> Result:
    body: dict[str, Any] = {
        "model": MODEL,
        "messages": request.messages,
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    address = urllib.parse.urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(
        address.hostname, address.port, timeout=_ANSWER_SECONDS
    )
    try:
        sent = time.monotonic()
        connection.request(
            "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        if answer.status != 200:
            raise ClientError(f"status {answer.status}: {answer.read(400)!r}")
        return _read(answer, request.scenario, sent)
    finally:
        connection.close()


def _read(answer: http.client.HTTPResponse, scenario: str, sent: float) -> Result:
    times: list[float] = []
    usage: dict[str, Any] | None = None
    for line in answer:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise ClientError(f"error in the stream: {event['error']}")
        if event.get("choices"):
            times.append(time.monotonic())
        usage = event.get("usage") or usage
    if not times or usage is None:
        raise ClientError(f"a stream of {len(times)} events, usage {usage}")
    details = usage.get("prompt_tokens_details") or {}
    gaps = [after - before for before, after in zip(times, times[1:], strict=False)]
    return Result(
        scenario,
        usage["prompt_tokens"],
        details.get("cached_tokens") or 0,
        times[0] - sent,
        gaps,
    )
