"""The test bed of the cases: directories, models, agents, engines, and queries to them."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from e2e import model, planes
from e2e.engineproc import EngineProcess, Output
from e2e.slow_file import ENV as SLOW_ENV
from e2e.slow_file import Throttle
from tests.agentproc import AgentProcess, wait_until

# Device blocks of an engine. A few requests fill them.
DEVICE_BLOCKS = 64
# Limit of tokens in a step. Longer prompts are computed in chunks.
STEP_TOKENS = 256
MODEL_LEN = 1024

# Enough for all blocks of a run. A case that tests eviction has an agent of its own.
HOST_BYTES = 128 << 20
_DISK_BYTES = "512MiB"

# Limit of a wait for the end of copies, which a busy machine makes slowly.
_SETTLE_SECONDS = 120.0

# Settings of vLLM for a machine without a GPU and with few cores, without downloads and reports.
_VLLM_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    # Otherwise vLLM manages the blocks of chunks as full attention.
    "VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE": "1",
}


def engine_env(directory: pathlib.Path) -> dict[str, str]:
    """The environment of an engine with this repository's connector. `directory` has its files."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BLOCKYARD_", "VLLM_"))}
    connector = str(pathlib.Path(__file__).resolve().parents[1])
    for scratch in ("tmp", "cache"):
        (directory / scratch).mkdir(exist_ok=True)
    return {
        **kept,
        **_VLLM_ENV,
        "TMPDIR": str(directory / "tmp"),
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        "PYTHONPATH": connector,
    }


def block_count(tokens: int) -> int:
    """The number of complete blocks of so many tokens."""
    return tokens // model.BLOCK_TOKENS


def _connections(agent: AgentProcess) -> int:
    """The number of connections that the agent has accepted, from the kernel's list."""
    connected = "03"
    rows = pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]
    fields = (row.split() for row in rows)
    return sum(f[5] == connected and f[7:] == [agent.socket] for f in fields)


def _all_zero(what: str, counts: Callable[[], dict[str, int]]) -> None:
    """Waits until all counts are 0. AssertionError with the last counts after two minutes."""
    last: dict[str, int] = {}

    def none() -> bool:
        last.update(counts())
        return not any(last.values())

    try:
        wait_until(what, none, _SETTLE_SECONDS, pause=0.01)
    except AssertionError as err:
        raise AssertionError(f"{err}: {last}") from None


class TestBed:
    """The agents, engines and files of one run. close() ends every process and removes every file.

    The first case that needs an engine or agent starts it. Later cases use it again. The engines
    copy on `plane`.
    """

    def __init__(self, keep: bool = False, plane: planes.Plane = planes.C) -> None:
        self.plane = plane
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-vllm-"))
        self.model = self.dir / "model"
        self.adapters = {name: self.dir / name for name in ("adapter-a", "adapter-b")}
        self.throttle = Throttle(self.dir / "throttle")
        self.loads = 0  # blocks copied to devices in this run
        self.stores = 0  # blocks committed to agents in this run
        self._keep = keep
        self._random = random.Random(7)
        self._salts = 0
        self._agents: list[AgentProcess] = []
        self._engines: dict[str, EngineProcess] = {}
        self._agent_of: dict[str, AgentProcess | None] = {}
        self._workers_of: dict[str, int] = {}  # of each data-parallel rank
        self._starts = 0
        self._on_close: list[Callable[[], None]] = []
        model.write_model(self.model, seed=1)
        for number, path in enumerate(self.adapters.values()):
            model.write_adapter(path, seed=11 + number)

    # Agents and engines

    def agent(
        self, nats: str = "", disk: bool = True, host_bytes: int = HOST_BYTES
    ) -> AgentProcess:
        """A new agent. Every block goes to disk at once, and only lookups verify blocks."""
        agent = AgentProcess(
            host_size=str(host_bytes),
            disk_size=_DISK_BYTES if disk else "0",
            flags=("--disk-filter=none", "--scrub-rate=0", "--extent-size=4MiB"),
            env={"BLOCKYARD_NATS": nats} if nats else {},
        )
        self._agents.append(agent)
        return agent

    def engine(self, name: str, agent: AgentProcess | None, **options: Any) -> EngineProcess:
        """Starts an engine and waits until it serves. AssertionError on another plane.

        options: arguments of AsyncEngineArgs, which replace the defaults below, and five keys of
        the connector. policy: vLLM's policy for failed loads. connector: module and class.
        settings: its settings. measured: min_load_blocks keeps its default, instead of 1.
        extra_config: its settings without `agent`, including the socket. Without agent and
        extra_config the engine has no connector.
        """
        settings = options.pop("settings", {})
        if not options.pop("measured", False):
            settings = {"min_load_blocks": 1, **settings}  # cases count loads: load every hit
        extra = options.pop("extra_config", None)
        policy = options.pop("policy", "recompute")
        module = options.pop("connector", "blockyard.vllm:BlockyardConnector")
        module_path, _, class_name = module.partition(":")
        arguments: dict[str, Any] = {
            "model": str(self.model),
            "skip_tokenizer_init": True,
            "generation_config": "vllm",
            "dtype": "float32",
            "seed": 0,
            "enforce_eager": True,
            "enable_prefix_caching": True,
            "block_size": model.BLOCK_TOKENS,
            "max_model_len": MODEL_LEN,
            "max_num_seqs": 8,
            "max_num_batched_tokens": STEP_TOKENS,
            "num_gpu_blocks_override": DEVICE_BLOCKS,
            "kv_cache_memory_bytes": 2 * DEVICE_BLOCKS * model.BLOCK_BYTES,
            "scheduler_cls": "e2e.probe.CountingScheduler",
        }
        if agent is not None:
            extra = {"socket": agent.socket, **settings}
        if extra is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": class_name,
                "kv_connector_module_path": module_path,
                "kv_role": "kv_both",
                "kv_load_failure_policy": policy,
                "kv_connector_extra_config": extra,
            }
        arguments.update(options)
        self._starts += 1
        directory = self.dir / f"{self._starts}-{name}"
        engine = EngineProcess(name, directory, arguments, self._engine_env())
        self._engines[name] = engine
        self._agent_of[name] = agent
        self._workers_of[name] = arguments.get("tensor_parallel_size", 1)
        engine.ready()
        if agent is not None:
            self.connected(agent)
        self._check_plane(engine)
        return engine

    def _engine_env(self) -> dict[str, str]:
        ours = {SLOW_ENV: str(self.throttle.path), "BLOCKYARD_NATIVE": self.plane.native}
        return {**engine_env(self.dir), **ours}

    def _check_plane(self, engine: EngineProcess) -> None:
        """AssertionError when the engine copies on another plane than the run's."""
        lines = engine.logged(planes.LOGGED)
        workers = len(engine.counts()) * self._workers_of[engine.name]
        # Without an agent the connector may be off, and then logs nothing.
        self.plane.check(lines, len(lines) if self._agent_of[engine.name] is None else workers)

    def running(self) -> list[EngineProcess]:
        """The running engines."""
        return list(self._engines.values())

    def stop(self, engine: EngineProcess, hard: bool = False) -> None:
        """Ends an engine. hard: with kill -9."""
        del self._engines[engine.name]
        if hard:
            engine.kill9()
        else:
            engine.close()

    def kill(self, agent: AgentProcess) -> None:
        """Adds an agent's counters to the run's, then kills the agent."""
        self._add_up(agent)
        agent.kill9()

    def at_end(self, close: Callable[[], None]) -> None:
        """Calls close() at the end of the run. The last one registered is called first."""
        self._on_close.append(close)

    # Queries

    def _engines_of(self, agent: AgentProcess) -> list[EngineProcess]:
        return [e for e in self.running() if self._agent_of[e.name] is agent]

    def connected(self, agent: AgentProcess) -> None:
        """Waits until every rank of the agent's engines has the connections of core and workers."""
        engines = self._engines_of(agent)
        ranks = sum(len(e.counts()) for e in engines)
        workers = sum(len(e.counts()) * self._workers_of[e.name] for e in engines)
        wait_until(
            f"{ranks} sessions with {workers} workers are connected to the agent",
            lambda: agent.stats()["sessions"] == ranks and _connections(agent) == ranks + workers,
            30.0,
        )

    def prompt(self, tokens: int) -> list[int]:
        """A random prompt, which no other request has."""
        return [self._random.randrange(3, model.VOCABULARY) for _ in range(tokens)]

    def computed(
        self, engine: EngineProcess, tokens: list[int], count: int = 8, **f: Any
    ) -> list[int]:
        """The engine's answer without a hit. A new salt changes only the identity of the blocks."""
        self._salts += 1
        out = engine.generate(tokens, count, salt=f"reference-{self._salts}", **f)
        assert out.cached == 0, f"a prompt under a new salt found {out.cached} tokens cached"
        return out.tokens

    def stored(
        self,
        agent: AgentProcess,
        engine: EngineProcess,
        tokens: list[int],
        count: int = 8,
        **f: Any,
    ) -> Output:
        """Runs a new prompt and waits until the agent has stored its complete blocks.

        Waits first for the stores of earlier requests, which must have ended. Resets the engine's
        own cache last. At the end all blocks are sealed and on disk.
        """
        self.quiet(agent)  # a late store would count as one of this prompt
        before = self.blocks_stored(agent)
        out = engine.generate(tokens, count, **f)
        want = before + block_count(len(tokens))
        wait_until(f"{want} blocks are stored", lambda: self.blocks_stored(agent) >= want, 20.0)
        self.reset_cache(agent, engine)
        return out

    def reset_cache(self, agent: AgentProcess, engine: EngineProcess) -> None:
        """Resets the engine's own cache and waits until the agent has no work in flight."""
        engine.reset_cache()
        wait_until("the agent is quiet", lambda: agent.stats()["quiet"], 20.0)

    def blocks_stored(self, agent: AgentProcess) -> int:
        """Blocks that the agent's engines have committed, or offered while present, in total."""
        return sum(p["committed"] + p["present"] for p in agent.stats()["pools"])

    def loaded(self, agent: AgentProcess) -> int:
        """Blocks that were copied to a device, in total."""
        cache = agent.stats()["cache"]
        return cache["onboarded_host"] + cache["onboarded_disk"]

    def count(self, agent: AgentProcess, key: str) -> int:
        """The sum of a counter over the agent's pools."""
        return sum(p[key] for p in agent.stats()["pools"])

    def settled(self, agent: AgentProcess) -> None:
        """Waits until no host slot is granted, pinned or quarantined.

        Disk slots do not count: a damaged one stays in quarantine.
        """

        def held() -> dict[str, int]:
            pools = agent.stats()["pools"]
            kinds = ("granted", "staging", "quarantined")
            counts = {kind: sum(p["host"][kind] for p in pools) for kind in kinds}
            return {**counts, "pins": sum(p["pins"] for p in pools)}

        _all_zero("no slot is held", held)

    def quiet(self, agent: AgentProcess) -> None:
        """Waits until every block that the agent's engines have offered is stored or refused.

        Then no engine has a step to take: its requests have ended, the agent has answered its
        offers, and its copies are made. The agent has taken every COMMIT and written all blocks.
        """

        def left() -> dict[str, int]:
            engines = self._engines_of(agent)
            busy = sum(c.busy for e in engines for c in e.counts())
            # Asked afterwards: a slot is granted until the agent has COMMIT or ABORT, which the
            # engine sends after its last step.
            stats = agent.stats()
            counts = {k: sum(p["host"][k] for p in stats["pools"]) for k in ("granted", "staging")}
            return {"busy engines": busy, **counts, "busy agent": int(not stats["quiet"])}

        _all_zero("all offered blocks are stored or refused", left)

    def logs(self) -> str:
        """The ends of all logs, and the agents' counters, for the report of a failed case."""
        out = [e.log() for e in self.running()]
        for agent in self._agents:
            out.append(f"agent: {agent.log()}")
            if agent.process is not None:
                stats = agent.stats()
                kept = {k: stats[k] for k in ("pools", "engines", "connectors", "cache")}
                out.append(f"agent: {json.dumps(kept)}")
        return "\n".join(out)

    def _add_up(self, agent: AgentProcess) -> None:
        self.loads += self.loaded(agent)
        self.stores += self.count(agent, "committed")

    def clear(self) -> None:
        """Ends all engines and agents."""
        self.throttle.hold()
        for engine in self.running():
            engine.leave()
        for engine in self.running():
            self.stop(engine)
        for agent in self._agents:
            if agent.process is not None:
                self._add_up(agent)
            agent.close()
        self._agents.clear()

    def close(self) -> None:
        """Ends all processes and removes all files, unless `keep` was given."""
        self.clear()
        for close in reversed(self._on_close):
            close()
        self.throttle.close()
        if not self._keep:
            shutil.rmtree(self.dir, ignore_errors=True)
