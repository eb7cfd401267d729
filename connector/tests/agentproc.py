"""A real agent as a child process, which tests start, kill, restart and query.

Every agent has its own socket, host tier and optional disk tier in temporary directories. Its HTTP
servers listen on unused ports. close() ends the process and removes the directories. The exit of
the interpreter closes all agents.
"""

from __future__ import annotations

import atexit
import json
import os
import pathlib
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from typing import Any

_REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
_START_SECONDS = 60.0  # a busy machine populates its host tier slowly
_LOG_TAIL = 4000


def binary() -> pathlib.Path:
    """The path of the agent's binary: $BLOCKYARD_BIN, else bin/blockyard."""
    return pathlib.Path(os.environ.get("BLOCKYARD_BIN") or _REPOSITORY / "bin" / "blockyard")


def needs_agent(test: Any) -> Any:
    """A decorator that skips a test case or test without the agent's binary."""
    path = binary()
    return unittest.skipUnless(
        os.access(path, os.X_OK), f"no agent: {path} is missing (make build, or BLOCKYARD_BIN)"
    )(test)


def end_process(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Ends a process: SIGTERM, and SIGKILL when it still runs after `seconds`.

    Does nothing to a process that has ended.
    """
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def wait_until(
    what: str, condition: Callable[[], Any], seconds: float = 60.0, pause: float = 0.001
) -> Any:
    """Waits for the first true value of condition() and returns it.

    AssertionError with the text `what` after `seconds`. pause: seconds between two calls.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(pause)


class AgentProcess:
    """One agent. The constructor starts the agent and waits until it serves.

    host_size, disk_size, flags: arguments of the agent's command line. env: variables for the
    agent, which does not get BLOCKYARD_* and DYN_KVBM_* variables of this process.
    """

    def __init__(
        self,
        *,
        host_size: str = "64MiB",
        disk_size: str = "0",
        flags: Sequence[str] = (),
        env: dict[str, str] | None = None,
    ) -> None:
        if not os.access(binary(), os.X_OK):
            raise unittest.SkipTest(f"no agent: {binary()} is missing (make build)")
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-test-"))
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.host_dir = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-test-", dir=memory))
        self.disk_dir = self.dir / "disk"
        self.socket = str(self.dir / "agent.sock")
        self.log_path = self.dir / "agent.log"
        self.admin = self.control = ""
        self._command = [
            str(binary()),
            "agent",
            "--node=test",
            f"--socket={self.socket}",
            "--admin=127.0.0.1:0",
            "--control=127.0.0.1:0",
            f"--host-dir={self.host_dir}",
            f"--host-size={host_size}",
            f"--disk-dir={self.disk_dir}",
            f"--disk-size={disk_size}",
            *flags,
        ]
        foreign = ("BLOCKYARD_", "DYN_KVBM_")
        self._env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        self._env.update(env or {})
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int:
        """The agent's process id. 0: no agent runs."""
        return self.process.pid if self.process is not None else 0

    def start(self) -> None:
        """Starts the agent on its directories and waits for its ready line."""
        if self.process is not None:
            raise RuntimeError(f"agent {self.process.pid} runs already")
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        ready = json.loads(self._ready_line())
        self.admin, self.control = f"http://{ready['admin']}", f"http://{ready['control']}"

    def _ready_line(self) -> bytes:
        process = self.process
        assert process is not None and process.stdout is not None
        deadline = time.monotonic() + _START_SECONDS
        line = b""
        while not line.endswith(b"\n"):
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                raise AssertionError(f"agent not ready in {_START_SECONDS} s:\n{self.log()}")
            piece = os.read(process.stdout.fileno(), 4096)
            if not piece:
                raise AssertionError(f"agent ended before it was ready:\n{self.log()}")
            line += piece
        return line

    def kill9(self) -> None:
        """Kills the agent with SIGKILL and waits for its end."""
        self._end(signal.SIGKILL)

    def terminate(self, seconds: float = 30.0) -> int:
        """Stops the agent with SIGTERM. Returns its exit status."""
        return self._end(signal.SIGTERM, seconds)

    def signal(self, number: int) -> None:
        """Sends a signal, such as SIGSTOP or SIGCONT. Does not wait."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait_gone(self, seconds: float = 30.0) -> int:
        """Waits for the end of a process after a signal. Returns its exit status."""
        process = self.process
        assert process is not None
        status = process.wait(seconds)
        self._forget()
        return status

    def restart(self) -> None:
        """Kills a running agent with SIGKILL, and starts an agent with the same directories."""
        if self.process is not None:
            self.kill9()
        self.start()

    def _end(self, number: int, seconds: float = 30.0) -> int:
        process = self.process
        if process is None:
            return 0
        process.send_signal(number)
        process.send_signal(signal.SIGCONT)  # a process stopped by SIGSTOP must get the signal too
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._forget()
            raise AssertionError(f"agent did not end in {seconds} s:\n{self.log()}") from None
        self._forget()
        return status

    def _forget(self) -> None:
        if self.process is not None and self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def get(self, path: str) -> Any:
        """The answer of a GET: parsed JSON, or the text of another format."""
        return self._ask(path, None)

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        """The answer of a POST with a JSON body to the operators' listener."""
        return self._ask(path, json.dumps(body or {}).encode())

    def _ask(self, path: str, body: bytes | None) -> Any:
        server = self.admin if body is None and path != "/v1/pools" else self.control
        request = urllib.request.Request(server + path, data=body)
        if body is not None:
            request.add_header("Content-Type", "application/json")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as err:
            detail = err.read().decode(errors="replace")
            raise AssertionError(f"{path}: status {err.code}: {detail}") from None
        try:
            return json.loads(text)
        except ValueError:
            return text

    def stats(self) -> dict[str, Any]:
        """The answer of GET /v1/stats."""
        return self.get("/v1/stats")

    def log(self) -> str:
        """The end of the agent's log, for error messages."""
        try:
            return self.log_path.read_text(errors="replace")[-_LOG_TAIL:]
        except OSError:
            return ""

    def close(self) -> None:
        """Kills the agent and removes its directories. May be called again."""
        atexit.unregister(self.close)
        try:
            self.kill9()
        finally:
            shutil.rmtree(self.dir, ignore_errors=True)
            shutil.rmtree(self.host_dir, ignore_errors=True)

    def __enter__(self) -> AgentProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
