"""The engines of a run: vLLM servers on CPU with one kind of cache tier."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
import sys
from typing import Any, NamedTuple

from bench import engine, model
from e2e.case import free_ports
from e2e.testbed import engine_env
from front.server import VllmServer
from front.tokenizer import write_tokenizer
from tests.agentproc import AgentProcess, wait_until

TIERS = ("none", "native", "lmcache", "agent")
MAX_TOKENS = 768
SHAPE = model.MEDIUM
BLOCK_BYTES = SHAPE.token_bytes * model.BLOCK_TOKENS


class Sizes(NamedTuple):
    """Bytes of the caches, and the agent's rule of eviction.

    host is the whole node's: private tiers get an equal part each.
    """

    servers: int
    device: int  # blocks of each server
    host: int
    eviction: str


class Events(NamedTuple):
    """Ports at which a server publishes its KV events."""

    live: int
    replay: int


class Fleet:
    """The servers of one tier. close() ends every process.

    lmcache: directory with the packages of LMCache, which is not part of vLLM's environment.
    """

    def __init__(self, tier: str, directory: pathlib.Path, sizes: Sizes, lmcache: str) -> None:
        self.tier = tier
        self.servers: list[VllmServer] = []
        self.events: list[Events] = []
        self.agent: AgentProcess | None = None
        self.model = directory / "model"
        self._dir = directory
        self._sizes = sizes
        self._lmcache = lmcache
        self._mp: subprocess.Popen[bytes] | None = None
        self._mp_port = 0
        if not self.model.exists():
            self.model.mkdir()
            model.write(self.model, SHAPE, MAX_TOKENS)
            write_tokenizer(self.model)
        try:
            self._start()
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        if self.tier == "agent":
            flags = ("--extent-size=16MiB", f"--host-eviction={self._sizes.eviction}")
            self.agent = AgentProcess(host_size=str(self._sizes.host), flags=flags)
        if self.tier == "lmcache":
            self._start_lmcache()
        for number in range(self._sizes.servers):
            port, live, replay = free_ports(3)
            self.events.append(Events(live, replay))
            self.servers.append(self._server(number, port, self.events[-1]))
        for server in self.servers:
            server.ready()

    def _server(self, number: int, port: int, events: Events) -> VllmServer:
        options: dict[str, Any] = {
            "max_model_len": MAX_TOKENS,
            "max_num_batched_tokens": 2 * MAX_TOKENS,
            "num_gpu_blocks_override": self._sizes.device,
            "kv_cache_memory_bytes": 2 * self._sizes.device * BLOCK_BYTES,
            "enable_scale_out": True,  # routers may have prompts rendered
            "kv_events_config": {
                "enable_kv_cache_events": True,
                "publisher": "zmq",
                "endpoint": f"tcp://*:{events.live}",
                "replay_endpoint": f"tcp://*:{events.replay}",
                # vllm-router drops events of other topics than its sources', which is "".
                "topic": "",
            },
        }
        connector = self._connector(f"http://127.0.0.1:{port}")
        if connector is not None:
            options["kv_transfer_config"] = connector
        name = f"{self.tier}-{number}"
        return VllmServer(name, self._dir, self.model, port, self._env(), options)

    def _env(self) -> dict[str, str]:
        # LMCache hashes blocks with Python's hash function, which must agree between processes.
        env = {**engine_env(self._dir), "PYTHONHASHSEED": "0"}
        if self.tier == "lmcache":
            env["PYTHONPATH"] += f":{self._lmcache}"
            env["LMCACHE_TRACK_USAGE"] = "false"
        return env

    def _connector(self, url: str) -> dict[str, Any] | None:
        """The transfer configuration of the tier for the server at the URL."""
        if self.tier == "native":
            return engine.native("HostTier", self._sizes.host // self._sizes.servers)
        if self.tier == "lmcache":
            extra = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": self._mp_port}
            return {
                "kv_connector": "LMCacheMPConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": extra,
            }
        if self.agent is not None:
            return {
                "kv_connector": "BlockyardConnector",
                "kv_connector_module_path": "blockyard.vllm",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {
                    "socket": self.agent.socket,
                    "serving_endpoint": url,
                },
            }
        return None

    def _start_lmcache(self) -> None:
        """Starts LMCache's server, which all engines share."""
        self._mp_port, web = free_ports(2)
        command = [sys.executable, "-m", "lmcache.cli.main", "server"]
        command += ["--port", str(self._mp_port), "--http-port", str(web)]
        command += ["--l1-size-gb", str(self._sizes.host / 2**30), "--eviction-policy", "LRU"]
        # Its default way of transfer needs a GPU.
        command += ["--chunk-size", "64", "--supported-transfer-mode", "auto"]
        log = self._dir / "lmcache.log"
        with open(log, "ab") as out:
            self._mp = subprocess.Popen(command, env=self._env(), stdout=out, stderr=out)

        def listening() -> bool:
            assert self._mp is not None
            if self._mp.poll() is not None:
                raise AssertionError(f"LMCache's server has ended:\n{log.read_text()[-2000:]}")
            return f":{self._mp_port:04X} " in pathlib.Path("/proc/net/tcp").read_text()

        wait_until("LMCache's server listens", listening, 120.0, pause=0.2)

    def served(self) -> list[float]:
        """Requests that each server has answered."""
        return [server.metric("vllm:request_success_total") for server in self.servers]

    def idle(self) -> None:
        """Waits until no server runs a request, and the agent has no work."""
        for server in self.servers:
            wait_until(
                f"{server.name} runs no request",
                lambda s=server: not s.metric("vllm:num_requests_running"),
                60.0,
                pause=0.05,
            )
        agent = self.agent
        if agent is not None:
            wait_until("the agent is quiet", lambda: agent.stats()["quiet"], 60.0, pause=0.05)

    def log(self) -> str:
        """The ends of the servers' logs."""
        return "\n".join(server.log() for server in self.servers)

    def close(self) -> None:
        """Ends all processes."""
        for server in self.servers:
            server.close()
        self.servers.clear()
        if self._mp is not None:
            self._mp.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._mp.wait(10)
            self._mp = None
        if self.agent is not None:
            self.agent.close()
            self.agent = None
