"""The test's end of one engine: starts e2e.engine, asks it, ends it and what belongs to it."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

from e2e import probe_file
from tests.agentproc import wait_until

_START_SECONDS = 240.0  # a cold file system reads gigabytes of libraries
_ANSWER_SECONDS = 60.0
_STOP_SECONDS = 30.0
_LOG_TAIL = 60  # lines


class EngineError(AssertionError):
    """The engine refused, failed or died; the text says which, and ends with its log."""


class Output(NamedTuple):
    """What a request came to."""

    tokens: list[int]
    cached: int  # tokens of the prompt that were not computed
    finish: str


class Pending:
    """One question on its way. Filled in by the engine's reader thread."""

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
        """Whether the answer is there."""
        return self._done.is_set()

    def started(self, seconds: float = _ANSWER_SECONDS) -> None:
        """Waits for a request's first token."""
        if not self._started.wait(seconds):
            raise EngineError(f"no first token in {seconds} s\n{self._engine.log()}")

    def wait(self, seconds: float = _ANSWER_SECONDS) -> dict[str, Any]:
        """The answer. EngineError for one that says error, and when there is none in time."""
        if not self._done.wait(seconds):
            raise EngineError(f"no answer in {seconds} s\n{self._engine.log()}")
        if "error" in self._fields:
            raise EngineError(f"{self._fields['error']}\n{self._engine.log()}")
        return self._fields

    def output(self, seconds: float = _ANSWER_SECONDS) -> Output:
        """The answer of a generate."""
        fields = self.wait(seconds)
        return Output(fields["tokens"], fields["cached"], fields["finish"])


class EngineProcess:
    """One engine: the process that asks, its engine cores and their workers.

    The constructor returns at once; ready() waits. All processes are in a session of their own,
    by which they are found again, whoever of them has died.
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
        """Waits until the engine serves."""
        self._ready.wait(_START_SECONDS)
        return self

    def ask(self, op: str, **fields: Any) -> Pending:
        """Sends one operation of e2e.engine."""
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
        """Starts a request; see op_generate for the fields."""
        return self.ask("generate", tokens=tokens, max_tokens=max_tokens, **fields)

    def generate(self, tokens: list[int], max_tokens: int = 8, **fields: Any) -> Output:
        """Runs a request to its end."""
        return self.begin(tokens, max_tokens, **fields).output()

    def forget(self) -> None:
        """Empties the engine's own prefix cache. It is refused while a block is referenced, so
        that it also shows that the connector lets go of what it held."""
        wait_until(
            f"engine {self.name} resets its prefix cache: no block is referenced",
            lambda: self.ask("reset").wait()["done"],
            20.0,
        )

    def counts(self) -> list[probe_file.Counts]:
        """What e2e.probe counted, by rank."""
        return probe_file.read(self._probe)

    def pids(self) -> list[int]:
        """Every living process of the engine."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                text = (entry / "stat").read_text()
            except OSError:
                continue  # it has just ended
            state, _, _, session = text.rpartition(")")[2].split()[:4]
            if int(session) == self._process.pid and state != "Z":
                found.append(int(entry.name))
        return found

    def log(self) -> str:
        """The end of the engine's log, for messages of failed cases."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {self.name}: {line[:400]}" for line in lines[-_LOG_TAIL:])

    def logged(self, pattern: str) -> list[str]:
        """Lines of the log that contain a match."""
        lines = self._log.read_text(errors="replace").splitlines()
        return [line for line in lines if re.search(pattern, line)]

    def kill9(self) -> None:
        """Ends every process of the engine at once, and cleans up the shared memory that they
        had no time to unlink. Python's own helper, which does the same for semaphores, is left
        alone: it ends when the others have."""
        self._note_shared_memory()
        for pid in self.pids():
            try:
                if b"resource_tracker" not in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
            except OSError:
                continue  # it has just ended
        self._process.wait()
        wait_until(
            f"every process of engine {self.name} is gone", lambda: not self.pids(), _STOP_SECONDS
        )
        self._reader.join(_STOP_SECONDS)
        self._unlink_shared_memory()

    def leave(self) -> None:
        """Asks for an orderly end, which takes seconds; close() waits for it."""
        if self._process.poll() is None and self._ready.done and not self._leaving:
            self._leaving = True
            self._note_shared_memory()
            try:
                self.ask("shutdown")
            except (EngineError, OSError):
                pass  # it has ended by itself

    def close(self) -> None:
        """An orderly end; what does not end in time is killed. May be called again."""
        self.leave()
        if self._leaving:
            try:
                self._process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass  # killed below
        self.kill9()

    def _note_shared_memory(self) -> None:
        """Remembers the shared memory files that vLLM's processes have mapped: ours and, by the
        names that Python and vLLM give theirs, nobody else's."""
        for pid in self.pids():
            try:
                maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
            except OSError:
                continue
            self._shared.update(re.findall(r"/dev/shm/(?:psm_|sem\.|vllm|nccl|torch_)\S+", maps))

    def _unlink_shared_memory(self) -> None:
        for path in self._shared:
            pathlib.Path(path).unlink(missing_ok=True)
