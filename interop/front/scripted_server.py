"""A server that looks like an inference server and answers requests with nonsense."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MODEL = "scripted"

_MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": 4096}]}


def _head(kind: str, length: int | None = None) -> bytes:
    size = f"Content-Length: {length}\r\n" if length is not None else ""
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n{size}Connection: close\r\n\r\n".encode()


_EVENT = b'data: {"id":"1","choices":[{"index":0,"text":"word"}]}\n\n'

# What the server sends, by the prompt of the request.
ANSWERS: dict[str, bytes] = {
    "nothing": b"",
    "noise": bytes(range(256)) * 16,
    "endless header": b"HTTP/1.1 200 OK\r\n" + b"X-Header: 1\r\n" * 100_000,
    "half an answer": _head("application/json", 1000) + b'{"id": "1", "choices": [',
    "no events": _head("text/event-stream"),
    "half an event": _head("text/event-stream", 1000) + b'data: {"id": "1", "choi',
    "huge event": _head("text/event-stream") + b"data: " + b"x" * (16 << 20),
    "half a stream": _head("text/event-stream", 1000) + _EVENT * 3,
}


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        known = {"/health": b"", "/v1/models": json.dumps(_MODELS).encode()}
        body = known.get(self.path)
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body or b"")))
        self.end_headers()
        self.wfile.write(body or b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.close_connection = True
        if self.path != "/v1/completions":
            self.wfile.write(b"HTTP/1.1 500 Oops\r\nConnection: close\r\n\r\n")
            return
        try:
            self.wfile.write(ANSWERS[body["prompt"]])
        except OSError:
            pass  # the router has read enough

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def start() -> tuple[str, Callable[[], None]]:
    """Starts the server. Returns its URL and the function that ends it."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()

    def close() -> None:
        server.shutdown()
        server.server_close()

    return f"http://127.0.0.1:{server.server_port}", close
