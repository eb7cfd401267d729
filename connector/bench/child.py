"""A child process that answers requests in lines of JSON, and the parent's side of it.

Every engine has its own process. vLLM allows one in-process engine for each process, and a
measurement must not share the parent's interpreter lock. The child answers on its original standard
output. vLLM's output goes to the log.
"""

from __future__ import annotations

import json
import os
import pathlib
import select
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

_LOG_TAIL = 3000


class ChildFailed(Exception):
    """A child answered with an error, ended, or did not answer in time. The text ends with its log.
    """


class Child:
    """One `python -m bench.MODULE OPTIONS` and its answers, one at a time, in order."""

    def __init__(self, name: str, module: str, options: dict[str, Any], log: pathlib.Path) -> None:
        self.name = name
        self._log = log
        with open(log, "ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"bench.{module}", json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        self._pending = b""

    def start(self, seconds: float = 300.0) -> None:
        """Waits until the child serves."""
        self._answer("start", seconds)

    def ask(self, op: str, seconds: float = 900.0, **fields: Any) -> Any:
        """Runs an operation in the child and returns its result. ChildFailed after `seconds`."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(json.dumps({"op": op, **fields}).encode() + b"\n")
            stdin.flush()
        except BrokenPipeError:
            raise ChildFailed(self._failure(op, "the child has ended")) from None
        return self._answer(op, seconds)

    def _answer(self, op: str, seconds: float) -> Any:
        stdout = self._process.stdout
        assert stdout is not None
        deadline = time.monotonic() + seconds
        while b"\n" not in self._pending:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([stdout], [], [], left)[0]:
                raise ChildFailed(self._failure(op, f"no answer in {seconds:.0f} s"))
            piece = os.read(stdout.fileno(), 1 << 16)
            if not piece:
                status = self._process.wait()
                raise ChildFailed(self._failure(op, f"the child ended with status {status}"))
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise ChildFailed(self._failure(op, answer["error"]))
        return answer["result"]

    def _failure(self, op: str, why: str) -> str:
        tail = self._log.read_text(errors="replace")[-_LOG_TAIL:]
        return f"{self.name}, {op}: {why}\n{tail}"

    def close(self) -> None:
        """Ends the child's input, and kills the child if it has not ended after 30 s."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


def serve(start: Callable[[dict[str, Any]], Any]) -> None:
    """The child's side: calls `op_NAME` methods of an object until the input ends.

    start(options) makes the object. Standard output is redirected to standard error first.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(**fields: Any) -> None:
        answers.write(json.dumps(fields) + "\n")
        answers.flush()

    target = start(json.loads(sys.argv[1]))
    answer(result=None)
    for line in sys.stdin:
        request = json.loads(line)
        operation = getattr(target, "op_" + request.pop("op"))
        try:
            answer(result=operation(**request))
        except Exception as err:  # the parent gets the error
            answer(error=f"{type(err).__name__}: {err}")
