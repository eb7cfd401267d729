"""Child processes of a case.

Dynamo's Python environment runs this file without the connector's test kit.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_STOP_SECONDS = 10.0
_TAIL = 3000  # bytes of a log that a failed case shows
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class Ended(AssertionError):
    """A child ended, or wrote no line in time. The text ends with its log."""


def wait_until(
    what: str | Callable[[], str], condition: Callable[[], Any], seconds: float = 15.0
) -> Any:
    """Waits for the first true value of condition() and returns it.

    AssertionError with the text `what` after `seconds`.
    """
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            text = what() if callable(what) else what
            raise AssertionError(f"not within {seconds:g} s: {text}")
        time.sleep(0.02)


class Child:
    """A process with a log of its standard error.

    piped: the process answers requests over pipes. Otherwise the log has its output too.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: pathlib.Path,
        env: Mapping[str, str],
        piped: bool = False,
    ) -> None:
        self.name, self._log = name, log
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                list(command),
                env=dict(env),
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else file,
                stderr=file,
            )

    @property
    def alive(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def line(self, seconds: float = 30.0) -> Any:
        """The next line of the output, parsed as JSON. Only for a piped child."""
        out = self._process.stdout
        assert out is not None
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            if not selector.select(seconds):
                raise Ended(f"{self.name}: no line in {seconds:g} s\n{self.tail()}")
        line = out.readline()
        if not line:
            status = self._process.wait()
            raise Ended(f"{self.name}: ended with status {status}\n{self.tail()}")
        return json.loads(line)

    def send(self, value: Any) -> None:
        """Writes a line of JSON to the input. Only for a piped child."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def request(self, value: Any, seconds: float = 30.0) -> Any:
        """Writes a line of JSON and returns the line of the answer."""
        self.send(value)
        return self.line(seconds)

    def logged(self, text: str) -> int:
        """The number of log lines that contain `text`."""
        return sum(text in line for line in self.log().splitlines())

    def log(self) -> str:
        """The whole log."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return _COLOUR.sub("", text)

    def tail(self) -> str:
        """The end of the log, each line with the child's name."""
        return "\n".join(f"  {self.name}: {line}" for line in self.log()[-_TAIL:].splitlines())

    def kill9(self) -> None:
        """Kills the process with SIGKILL."""
        self._process.kill()
        self._process.wait()

    def close(self) -> None:
        """Ends the process. May be called again."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                try:
                    stream.close()
                except OSError:
                    pass  # unwritten input of a process that has ended


def clean_env() -> dict[str, str]:
    """The environment without settings of either product."""
    foreign = ("BLOCKYARD_", "DYN_", "NATS_", "ETCD_")
    return {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
