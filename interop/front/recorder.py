"""A proxy in front of a server, which keeps the requests that reach the server."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

_SECONDS = 120.0  # longest wait for an answer
_HOP_BY_HOP = ("connection", "content-length", "transfer-encoding", "date", "server")


class Recorder:
    """Forwards every request to one server, and keeps route and JSON body of each POST.

    An answer is forwarded when it is complete, so that streams arrive at once.
    """

    def __init__(self, target: str) -> None:
        self._target = urlsplit(target).netloc
        self._lock = threading.Lock()
        self._posts: list[tuple[str, Any]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                recorder._forward(self, None)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"] or 0))
                recorder._keep(self.path, body)
                recorder._forward(self, body)

            def handle(self) -> None:
                with contextlib.suppress(ConnectionResetError):  # the router has ended
                    super().handle()

            def log_message(self, *_: object) -> None:
                """Logs nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def posts(self, route: str) -> list[Any]:
        """The bodies of the requests to a route, in the order of their arrival."""
        with self._lock:
            return [body for path, body in self._posts if path == route]

    def close(self) -> None:
        """Ends the proxy."""
        self._server.shutdown()
        self._server.server_close()

    def _keep(self, path: str, body: bytes) -> None:
        with self._lock:
            self._posts.append((path, json.loads(body)))

    def _forward(self, client: BaseHTTPRequestHandler, body: bytes | None) -> None:
        connection = http.client.HTTPConnection(self._target, timeout=_SECONDS)
        try:
            headers = {k: v for k, v in client.headers.items() if k.lower() != "host"}
            connection.request(client.command, client.path, body, headers)
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        client.send_response_only(answer.status)
        for key, value in answer.getheaders():
            if key.lower() not in _HOP_BY_HOP:
                client.send_header(key, value)
        client.send_header("Content-Length", str(len(content)))
        client.end_headers()
        client.wfile.write(content)
