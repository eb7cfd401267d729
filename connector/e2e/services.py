"""Other processes of a run: a NATS server and the router."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import select
import subprocess
import urllib.request
from typing import Any

from tests.agentproc import binary, end_process, wait_until

_START_SECONDS = 30.0
_STOP_SECONDS = 10.0


class Service:
    """`blockyard ARGUMENTS` as a child process. The constructor waits for its ready line.

    log: file for the process's log; without it errors go to this process's stderr.
    """

    def __init__(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        log: pathlib.Path | None = None,
    ) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BLOCKYARD_", "DYN_"))}
        level = "info" if log else "error"
        with open(log, "ab") if log else contextlib.nullcontext() as stderr:
            self._process = subprocess.Popen(
                [str(binary()), *arguments],
                env={**kept, "BLOCKYARD_LOG_LEVEL": level, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert self._process.stdout is not None
        name = " ".join(["blockyard", *arguments])
        if not select.select([self._process.stdout], [], [], _START_SECONDS)[0]:
            self.close()
            raise AssertionError(f"{name}: not ready in {_START_SECONDS} s")
        line = self._process.stdout.readline()
        if not line:
            self.close()
            raise AssertionError(f"{name}: ended with status {self._process.returncode}")
        self.ready: dict[str, Any] = json.loads(line)

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    def get(self, path: str, key: str = "http") -> Any:
        """The parsed JSON at `path`. key: field of the ready line with the server's address."""
        with urllib.request.urlopen(f"http://{self.ready[key]}{path}", timeout=10) as answer:
            return json.loads(answer.read())

    def close(self) -> None:
        """Ends the process. May be called again."""
        end_process(self._process, _STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()


class NatsServer:
    """A NATS server on an unused port."""

    def __init__(self, directory: pathlib.Path) -> None:
        path = binary().with_name("nats-server")
        assert os.access(path, os.X_OK), f"{path} is missing: scripts/test-vllm.sh builds it"
        directory.mkdir()
        ports = ["--addr=127.0.0.1", "--port=-1", f"--ports_file_dir={directory}"]
        with open(directory / "nats.log", "wb") as log:
            self._process = subprocess.Popen([str(path), *ports], stdout=log, stderr=log)
        file = directory / f"nats-server_{self._process.pid}.ports"
        try:
            wait_until(f"{path} serves", lambda: _complete(file), _START_SECONDS)
        except AssertionError:
            self.close()
            raise
        self.url: str = json.loads(file.read_text())["nats"][0]

    def close(self) -> None:
        """Ends the server. May be called again."""
        self._process.kill()
        self._process.wait()


def _complete(file: pathlib.Path) -> bool:
    try:
        return bool(json.loads(file.read_text())["nats"])
    except (OSError, ValueError):
        return False
