"""Input that no honest client or server sends."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator

import openai

from e2e.runner import case
from front import scripted_server
from front.bed import Bed
from front.door import Door
from tests.agentproc import wait_until

_GROWTH = 32 << 20  # bytes of resident memory that may be left
_CONNECTIONS = 2000
_HALVES = 20  # clients that send half a body


@case("hostile", "bad input gets a clear error, and the router keeps serving in its memory")
def hostile(bed: Bed) -> str:
    servers = bed.plain()
    url, close = scripted_server.start()
    with contextlib.closing(_Closer(close)):
        scripted = f"--worker={url},block-size=32,model={scripted_server.MODEL}"
        door = bed.door(scripted, servers=servers, workers=len(servers) + 1)
        _serves(bed, door)
        start = door.resident()
        with _crowd(door):
            _large(door)
            _malformed(door)
            _nonsense(door)
            _serves(bed, door)
        most = door.resident()
        door.idle()
        wait_until(
            f"resident memory is back within {_GROWTH} bytes of {start}",
            lambda: door.resident() - start <= _GROWTH,
            90.0,
            pause=1.0,
        )
        _serves(bed, door)
        end = door.resident()
    return f"resident memory {start >> 20} MiB, {most >> 20} under load, {end >> 20} at the end"


class _Closer:
    def __init__(self, close: object) -> None:
        self.close = close


def _serves(bed: Bed, door: Door) -> None:
    assert len(door.complete(bed.text(10), 4).tokens) == 4


def _send(door: Door, data: bytes, pieces: int = 1) -> tuple[int, str]:
    """Sends bytes, `pieces` times, and returns status and body of the answer.

    The answer is read while the bytes are sent, as clients do that get an early error.
    """
    with socket.create_connection(door.address, timeout=60) as connection:
        answer: list[bytes] = []

        def read() -> None:
            with contextlib.suppress(ConnectionResetError):
                while piece := connection.recv(65536):
                    answer.append(piece)

        reader = threading.Thread(target=read)
        reader.start()
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            for _ in range(pieces):
                connection.sendall(data)
        reader.join(90)
        head, _, body = b"".join(answer).partition(b"\r\n\r\n")
    assert head, "the connection ended without an answer"
    return int(head.split()[1]), body.decode(errors="replace")


def _post(body: bytes, length: int | None = None, more: bytes = b"") -> bytes:
    size = len(body) if length is None else length
    head = f"POST /v1/completions HTTP/1.1\r\nHost: door\r\nConnection: close\r\nContent-Length: {size}\r\n"
    return head.encode() + more + b"\r\n" + body


def _large(door: Door) -> None:
    status, body = _send(door, _post(b"{}", more=b"X-Long: " + b"x" * (1 << 20) + b"\r\n"))
    assert status == 431, f"a header of 1 MiB: status {status}"
    _error(body)
    mebibyte = b"x" * (1 << 20)
    with socket.create_connection(door.address, timeout=60) as connection:
        # The error comes before the body.
        connection.sendall(_post(b"", length=64 << 20))
        answer = connection.recv(65536)
    assert answer.split()[1:2] == [b"413"], f"a body of 64 MiB: {answer[:200]!r}"
    chunked = (
        b"POST /v1/completions HTTP/1.1\r\nHost: door\r\nConnection: close\r\n"
        b"Transfer-Encoding: chunked\r\n\r\n"
    )
    chunk = b"100000\r\n" + mebibyte + b"\r\n"
    status, body = _send(door, chunked + chunk * 64)
    assert status == 413, f"a chunked body of 64 MiB: status {status}"
    _error(body)


def _malformed(door: Door) -> None:
    bodies = [b"", b"{", b"[]", b"null", b'{"prompt": 1e999}', b'{"prompt":"\xff"}', b"{" * 100_000]
    bodies += [b'{"prompt":"a","prompt":"b"}', b'{"model":"tiny","prompt":"a","max_tokens":-1}']
    for body in bodies:
        status, text = _send(door, _post(body))
        assert 400 <= status < 500, f"{body[:60]!r}: status {status}"
        _error(text)


def _error(body: str) -> dict[str, str]:
    error = json.loads(body)["error"]
    assert error["message"] and error["type"], body
    return error


def _nonsense(door: Door) -> None:
    """Asks the server that answers nonsense. Each answer must be a clear error, in time."""
    for prompt in scripted_server.ANSWERS:
        wait_until(
            f"{scripted_server.MODEL} is served",
            lambda: any(m.id == scripted_server.MODEL for m in door.client.models.list()),
            60.0,
            pause=0.2,
        )
        began = time.monotonic()
        try:
            chunks = list(
                door.client.completions.create(
                    model=scripted_server.MODEL, prompt=prompt, stream=True, max_tokens=4
                )
            )
        except openai.APIError as err:
            status = getattr(err, "status_code", None)
            refused = status in (400, 502, 503) and str(err)
            assert refused or err.code == "worker_lost", f"{prompt}: {status} {err!r}"
        else:
            raise AssertionError(f"{prompt}: an answer without an error: {chunks[:3]}")
        took = time.monotonic() - began
        assert took < 30, f"{prompt}: the error took {took:.0f} s"


@contextlib.contextmanager
def _crowd(door: Door) -> Iterator[None]:
    """Connections that send nothing, and some with half a body."""
    connections = [socket.create_connection(door.address, timeout=60) for _ in range(_CONNECTIONS)]
    try:
        half = _post(b'{"prompt": "' + b"x" * (1 << 20), length=2 << 20)
        for connection in connections[:_HALVES]:
            connection.sendall(half)
        yield
    finally:
        for connection in connections:
            connection.close()
