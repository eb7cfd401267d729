"""The routers under test: ours, and those that people use, with the flags that make them exact."""

from __future__ import annotations

import contextlib
import pathlib
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

from bench.model import BLOCK_TOKENS
from e2e.case import free_ports
from front.door import Door
from front.server import MODEL
from serve.fleet import Fleet
from tests.agentproc import end_process, wait_until

ROUTERS = (
    "round-robin",
    "vllm-router-cache_aware",
    "vllm-router-kv_aware",
    "smg-cache_aware",
    "blockyard",
)
# The lookups of a router that follows events, by their result.
_LOOKUPS = {"vllm-router-kv_aware": r'_kv_placement_lookups_total\{result="(\w+)"\} (\S+)$'}


class Running(NamedTuple):
    """A router that serves clients at the URL."""

    url: str
    log: pathlib.Path
    metrics: str  # address of its metrics; empty for ours

    def lookups(self, name: str) -> dict[str, int]:
        """What a rival counts of its own lookups by events, by result. {} without such a counter.

        ValueError for a rival without hits: it did not route by events, whatever the share of
        cached tokens.
        """
        if name not in _LOOKUPS:
            return {}
        with urllib.request.urlopen(self.metrics, timeout=10) as answer:
            found = re.findall(_LOOKUPS[name], answer.read().decode(), re.MULTILINE)
        counts = {result: int(float(count)) for result, count in found}
        if not counts.get("hit"):
            raise ValueError(f"{name} has no hit in its index, its lookups: {counts}")
        return counts


@contextlib.contextmanager
def router(name: str, fleet: Fleet, peers: str, directory: pathlib.Path) -> Iterator[Running]:
    """Starts a router in front of the fleet, and ends it.

    name: one of ROUTERS. peers: directory of the programs vllm-router and smg.
    """
    log = directory / f"{fleet.tier}-{name}.log"
    if name == "blockyard":
        with _ours(fleet, log) as running:
            yield running
        return
    port, metrics = free_ports(2)
    command = _command(name, fleet, pathlib.Path(peers), port, metrics)
    with open(log, "ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    running = Running(f"http://127.0.0.1:{port}", log, f"http://127.0.0.1:{metrics}/metrics")
    try:
        wait_until(f"{name} serves", lambda: _serves(running, process), 120.0, pause=0.2)
        yield running
    finally:
        end_process(process, 10)


@contextlib.contextmanager
def _ours(fleet: Fleet, log: pathlib.Path) -> Iterator[Running]:
    flags = [f"--worker={server.url}" for server in fleet.servers]
    if fleet.agent is not None:
        flags.append(f"--agents={fleet.agent.admin}")
    door = Door(log, *flags)
    try:
        door.wait_for_workers(len(fleet.servers))
        yield Running(door.url, log, "")
    finally:
        door.close()


def _serves(running: Running, process: subprocess.Popen[bytes]) -> bool:
    if process.poll() is not None:
        raise AssertionError(f"the router has ended:\n{running.log.read_text()[-2000:]}")
    try:
        with urllib.request.urlopen(running.url + "/health", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def _command(
    name: str, fleet: Fleet, peers: pathlib.Path, port: int, metrics: int
) -> list[str]:
    urls = [server.url for server in fleet.servers]
    common = ["--host=127.0.0.1", f"--port={port}", f"--prometheus-port={metrics}"]
    common += ["--worker-startup-check-interval=1"]
    if name == "smg-cache_aware":
        command = [str(peers / "smg"), "launch", *common, "--policy=cache_aware"]
        command += ["--log-level=warn", "--disable-tokenizer-autoload"]
        return [*command, "--worker-urls", *urls]
    policy = name.removeprefix("vllm-router-").replace("-", "_")
    command = [str(peers / "vllm-router"), *common, f"--policy={policy}", "--log-level=warning"]
    if policy == "kv_aware":
        command += [f"--kv-event-block-size={BLOCK_TOKENS}", f"--kv-event-model={MODEL}"]
        for url, events in zip(urls, fleet.events, strict=True):
            command += ["--kv-event-source", f"{url}=tcp://127.0.0.1:{events.live}"]
            command += ["--kv-event-replay-source", f"{url}=tcp://127.0.0.1:{events.replay}"]
    return [*command, "--worker-urls", *urls]
