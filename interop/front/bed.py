"""The test bed of the cases: the model, pairs of servers, doors, and the comparison of tokens."""

from __future__ import annotations

import itertools
import pathlib
import random
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

from e2e import model
from e2e.case import free_ports
from e2e.testbed import engine_env
from front.door import Door
from front.recorder import Recorder
from front.server import VllmServer
from front.tokenizer import words, write_tokenizer
from tests.agentproc import AgentProcess

ADAPTERS = ("adapter-a", "adapter-b")


class Bed:
    """Servers, doors and files of one run. close() ends every process and removes every file.

    One pair of servers runs at a time. The first case that needs another pair starts it.
    """

    def __init__(self, keep: bool = False) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-front-"))
        self.mismatched = 0  # tokens that differed from the expected ones
        self.agent: AgentProcess | None = None
        self.model = self.dir / "model"
        self._keep = keep
        self._kind = ""
        self._servers: list[VllmServer] = []
        self._doors: list[Door] = []
        self._numbers = itertools.count(1)
        self._random = random.Random(7)
        model.write_model(self.model, seed=1)
        write_tokenizer(self.model)
        for number, name in enumerate(ADAPTERS):
            model.write_adapter(self.dir / name, seed=11 + number)

    # Servers

    def plain(self) -> list[VllmServer]:
        """Two servers that publish KV events and have adapters."""
        adapters = [f"{name}={self.dir / name}" for name in ADAPTERS]
        lora = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, "lora_modules": adapters}
        return self._pair("plain", lambda _: {"kv_events_config": _events(), **lora})

    def rendering(self) -> list[VllmServer]:
        """Two servers that render prompts and publish no KV events."""
        return self._pair("rendering", lambda _: {"enable_scale_out": True})

    def with_agent(self) -> list[VllmServer]:
        """Two servers with the connector and an agent. Their device caches are small."""

        def options(url: str) -> dict[str, Any]:
            agent = self.agent
            if agent is None:
                agent = self.agent = AgentProcess(host_size="1GiB", flags=("--extent-size=16MiB",))
            settings: dict[str, Any] = {"socket": agent.socket, "serving_endpoint": url}
            settings["min_load_blocks"] = 1  # a case counts cached tokens: load every hit
            connector = {
                "kv_connector": "BlockyardConnector",
                "kv_connector_module_path": "blockyard.vllm",
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": settings,
            }
            return {
                "kv_events_config": _events(),
                "kv_transfer_config": connector,
                "num_gpu_blocks_override": 72,
            }

        return self._pair("agent", options)

    def _pair(self, kind: str, options: Callable[[str], dict[str, Any]]) -> list[VllmServer]:
        if self._kind != kind:
            self.clear()
            self._kind = kind
            for suffix in "ab":
                port = free_ports(1)[0]
                name = f"{kind}-{suffix}"
                more = options(f"http://127.0.0.1:{port}")
                env = engine_env(self.dir)
                self._servers.append(VllmServer(name, self.dir, self.model, port, env, more))
        for server in self._servers:
            server.ready()
        return self._servers

    # Doors

    def door(
        self, *flags: str, servers: Sequence[VllmServer | Recorder] = (), workers: int = 0
    ) -> Door:
        """Starts a router with a door in front of the servers, and waits until it has them.

        flags: further flags of the router. workers: number of servers to wait for; 0 means all.
        The end of the case closes the door.
        """
        named = [f"--worker={s.url}" for s in servers]
        door = Door(self.dir / f"router-{next(self._numbers)}.log", *named, *flags)
        self._doors.append(door)
        door.wait_for_workers(workers or len(servers))
        return door

    def close_doors(self) -> None:
        """Ends the routers of a case."""
        for door in self._doors:
            door.close()
        self._doors.clear()

    # Prompts and tokens

    def text(self, count: int) -> str:
        """Random words that no other prompt of the run begins with."""
        return f"{next(self._numbers)} " + words(next(self._numbers), count)

    def tokens(self, count: int) -> list[int]:
        """A random prompt of token ids, which no other request has."""
        return [self._random.randrange(8, model.VOCABULARY) for _ in range(count)]

    def salt(self) -> str:
        """A cache salt that nobody else uses."""
        return f"salt-{next(self._numbers)}"

    def compare(self, what: str, got: list[int], want: list[int]) -> None:
        """Counts the tokens that differ. AssertionError if there are any, or none to compare."""
        assert want, f"{what}: no tokens to compare with"
        different = sum(a != b for a, b in itertools.zip_longest(got, want))
        self.mismatched += different
        assert not different, f"{what}: {different} tokens differ: {got}, want {want}"

    # The run

    def logs(self) -> str:
        """The ends of all logs, for the report of a failed case."""
        parts = [server.log() for server in self._servers] + [door.log() for door in self._doors]
        if self.agent is not None:
            parts.append(f"agent: {self.agent.log()}")
        return "\n".join(parts)

    def clear(self) -> None:
        """Ends all processes. The next case starts new servers."""
        self.close_doors()
        for server in self._servers:
            server.close()
        self._servers.clear()
        self._kind = ""
        if self.agent is not None:
            self.agent.close()
            self.agent = None

    def close(self) -> None:
        """Ends all processes and removes all files, unless `keep` was given."""
        self.clear()
        if not self._keep:
            shutil.rmtree(self.dir, ignore_errors=True)


def _events() -> dict[str, Any]:
    port, replay = free_ports(2)
    return {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": f"tcp://*:{port}",
        "replay_endpoint": f"tcp://*:{replay}",
        "topic": "kv-events",
    }
