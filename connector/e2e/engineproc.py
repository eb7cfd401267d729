"""The test's side of one engine: starts e2e.engine, sends requests, ends all its processes."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from e2e import probe_file
from e2e.session import Session
from tests.agentproc import wait_until

_START_SECONDS = 600.0  # the first start reads gigabytes of libraries
_ANSWER_SECONDS = 180.0
_STOP_SECONDS = 30.0
_LOG_TAIL = 60  # lines


class EngineError(AssertionError):
    """The engine refused, failed or died. The text ends with the engine's log."""


class Output(NamedTuple):
    """The result of a request."""

    tokens: list[int]
    cached: int  # tokens of the prompt that were not computed
    finish: str


class Pending:
    """An operation without an answer yet. The engine's reader thread sets the answer."""

    def __init__(self, engine: EngineProcess, number: int) -> None:
        self._engine = engine
        self.number = number
        self._started = threading.Event()
        self._done = threading.Event()
        self._fields: dict[str, Any] = {}

    def _take(self, fields: dict[str, Any]) -> None:
        if fields.pop("started", False):
            self._started.set()
            return
        self._fields = fields
        self._started.set()
        self._done.set()

    @property
    def done(self) -> bool:
        """Whether the answer has arrived."""
        return self._done.is_set()

    def started(self, seconds: float = _ANSWER_SECONDS) -> None:
        """Waits for a request's first token. EngineError after `seconds`."""
        if not self._started.wait(seconds):
            raise EngineError(f"no first token in {seconds} s\n{self._engine.log()}")

    def wait(self, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """Waits for the answer. EngineError for an answer with an error, or after `seconds`."""
        if not self._done.wait(seconds):
            raise EngineError(f"no answer in {seconds} s\n{self._engine.log()}")
        if "error" in self._fields:
            raise EngineError(f"{self._fields['error']}\n{self._engine.log()}")
        return self._fields

    def output(self, seconds: float = _ANSWER_SECONDS) -> Output:
        """Waits for the answer of a `generate`."""
        fields = self.wait(seconds)
        return Output(fields["tokens"], fields["cached"], fields["finish"])


class EngineProcess:
    """One engine: the process of e2e.engine, its engine cores and their workers.

    The constructor does not wait; ready() does.
    """

    def __init__(
        self, name: str, directory: pathlib.Path, options: Mapping[str, Any], env: Mapping[str, str]
    ) -> None:
        self.name = name
        self._probe = directory / "probe"
        self._probe.mkdir(parents=True)
        self._log = directory / "engine.log"
        self._lock = threading.Lock()
        self._pending: dict[int, Pending] = {}
        self._next = 1
        self._ready = Pending(self, 0)
        self._pending[0] = self._ready
        self._shared: set[str] = set()
        self._leaving = False
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "e2e.engine", json.dumps(dict(options))],
                env={**env, probe_file.ENV: str(self._probe)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
                text=True,
            )
        self._session = Session(self._process)
        self._reader = threading.Thread(target=self._read, name=f"{name} answers", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            fields = json.loads(line)
            number = fields.pop("id")
            with self._lock:
                pending = self._pending[number]
                if "started" not in fields:
                    del self._pending[number]
            pending._take(fields)
        with self._lock:
            left, self._pending = list(self._pending.values()), {}
        for pending in left:
            pending._take({"error": "the engine's process ended"})

    def ready(self) -> EngineProcess:
        """Waits until the engine serves. Returns the engine."""
        self._ready.wait(_START_SECONDS)
        return self

    def ask(self, op: str, **fields: Any) -> Pending:
        """Sends an operation of e2e.engine."""
        with self._lock:
            pending = Pending(self, self._next)
            self._next += 1
            if self._process.poll() is not None:
                raise EngineError(f"the engine's process has ended\n{self.log()}")
            self._pending[pending.number] = pending
            assert self._process.stdin is not None
            line = json.dumps({"id": pending.number, "op": op, **fields})
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return pending

    def begin(self, tokens: list[int], max_tokens: int = 8, **fields: Any) -> Pending:
        """Begins a request. fields: arguments of op_generate."""
        return self.ask("generate", tokens=tokens, max_tokens=max_tokens, **fields)

    def generate(self, tokens: list[int], max_tokens: int = 8, **fields: Any) -> Output:
        """Runs a request to its end."""
        return self.begin(tokens, max_tokens, **fields).output()

    def reset_cache(self) -> None:
        """Resets the engine's own prefix cache.

        vLLM refuses while a block is referenced. So a reset also shows that the connector holds no
        block.
        """
        wait_until(
            f"engine {self.name} resets its prefix cache: no block is referenced",
            lambda: self.ask("reset").wait()["done"],
            20.0,
        )

    def metrics(self, prefix: str = "vllm:blockyard_") -> dict[str, float]:
        """The metrics in vLLM's registry that have the prefix, by the rest of the name.

        The default is the connector's own prefix. vLLM logs its statistics too.
        """
        found = self.ask("metrics", prefix=prefix).wait()["metrics"]
        return {name.removeprefix(prefix): value for name, value in found.items()}

    def failed_loads(self, least: float = 0) -> float:
        """vLLM's number of failed loads, at least `least`. It may come 0.1 s after the load."""
        found: dict[str, float] = {}

        def enough() -> bool:
            found.update(self.metrics())
            return found["failed_loads_total"] >= least

        wait_until(f"{least:.0f} failed loads in vLLM's metrics", enough, 5.0, pause=0.01)
        return found["failed_loads_total"]

    def counts(self) -> list[probe_file.Counts]:
        """The counters of e2e.probe, by rank."""
        return probe_file.read(self._probe)

    def pids(self) -> list[int]:
        """Every living process of the engine."""
        return self._session.pids()

    def log(self) -> str:
        """The end of the engine's log, for error messages."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {self.name}: {line[:400]}" for line in lines[-_LOG_TAIL:])

    def logged(self, pattern: str) -> list[str]:
        """The lines of the log that match a regular expression."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(pattern, line)]

    def kill9(self) -> None:
        """Kills every process of the engine and unlinks their shared memory."""
        self._session.kill9(_STOP_SECONDS)
        self._reader.join(_STOP_SECONDS)

    def leave(self) -> None:
        """Asks the engine to shut down, which takes seconds. close() waits for the end."""
        if self._process.poll() is None and self._ready.done and not self._leaving:
            self._leaving = True
            self._session.note_shared_memory()
            try:
                self.ask("shutdown")
            except (EngineError, OSError):
                pass  # the engine has ended already

    def close(self) -> None:
        """Shuts the engine down, and kills the rest after a time limit. May be called again."""
        self.leave()
        if self._leaving:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass  # killed below
        self.kill9()
