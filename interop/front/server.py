"""A vLLM server as a child process: `vllm serve` with the model of the tests."""

from __future__ import annotations

import json
import pathlib
import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from typing import Any

from e2e import model
from e2e.session import Session
from tests.agentproc import wait_until

MODEL = "tiny"  # the name under which clients ask for the model
DEVICE_BLOCKS = 512

_START_SECONDS = 300.0  # the first start reads gigabytes of libraries
_STOP_SECONDS = 30.0
_LOG_TAIL = 40  # lines


class VllmServer:
    """One server, its engine core and its workers. The constructor does not wait; ready() does.

    options: arguments of `vllm serve`, which replace the defaults below. True is a flag without a
    value, a mapping becomes JSON, and a list has several values.
    """

    def __init__(
        self,
        name: str,
        directory: pathlib.Path,
        weights: pathlib.Path,
        port: int,
        env: Mapping[str, str],
        options: Mapping[str, Any],
    ) -> None:
        self.name = name
        self.url = f"http://127.0.0.1:{port}"
        self._log = directory / f"{name}.log"
        self._env = dict(env)
        blocks = options.get("num_gpu_blocks_override", DEVICE_BLOCKS)
        arguments: dict[str, Any] = {
            "host": "127.0.0.1",
            "port": port,
            "served_model_name": MODEL,
            "dtype": "float32",
            "seed": 0,
            "enforce_eager": True,
            "block_size": model.BLOCK_TOKENS,
            "max_model_len": model.MAX_TOKENS,
            "max_num_seqs": 16,
            "max_num_batched_tokens": model.MAX_TOKENS,
            "num_gpu_blocks_override": blocks,
            "kv_cache_memory_bytes": 2 * blocks * model.BLOCK_BYTES,
            "generation_config": "vllm",
            "enable_prompt_tokens_details": True,
            **options,
        }
        self._command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "serve", str(weights)]
        for key, value in arguments.items():
            self._command += _flag(key, value)
        self._session: Session | None = None
        self.start()

    def start(self) -> None:
        """Starts the server, also again after kill9()."""
        assert self._session is None, f"{self.name} runs already"
        with open(self._log, "ab") as log:
            process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._session = Session(process)

    def ready(self) -> VllmServer:
        """Waits until the server answers. Returns the server."""
        wait_until(f"{self.name} serves", self._healthy, _START_SECONDS, pause=0.2)
        return self

    def _healthy(self) -> bool:
        session = self._session
        if session is None or session.process.poll() is not None:
            raise AssertionError(f"{self.name} has ended\n{self.log()}")
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """The sum of a metric over its labels."""
        with urllib.request.urlopen(self.url + "/metrics", timeout=10) as answer:
            return metric_sum(answer.read().decode(), name)

    def kill9(self) -> None:
        """Kills all processes of the server."""
        if self._session is not None:
            self._session.kill9(_STOP_SECONDS)
            self._session = None

    def close(self) -> None:
        """Stops the server, and kills what is left after a time limit. May be called again."""
        if self._session is not None:
            self._session.terminate(_STOP_SECONDS)
            self.kill9()

    def log(self) -> str:
        """The end of the server's log, for error messages."""
        try:
            lines = self._log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return "\n".join(f"  {self.name}: {line[:400]}" for line in lines[-_LOG_TAIL:])


def _flag(key: str, value: Any) -> list[str]:
    flag = "--" + key.replace("_", "-")
    if value is True:
        return [flag]
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    if isinstance(value, list):
        return [flag, *map(str, value)]
    return [flag, str(value)]


def metric_sum(text: str, name: str) -> float:
    """The sum of a metric over its labels, in Prometheus text. AssertionError without the metric."""
    rows = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    assert rows, f"there is no metric {name}"
    return sum(map(float, rows))
