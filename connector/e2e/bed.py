"""What the cases share: directories, models, agents, engines, and questions to all of them."""

from __future__ import annotations

import json
import os
import pathlib
import random
import shutil
import tempfile
from collections.abc import Callable
from typing import Any

from e2e import model
from e2e.engineproc import EngineProcess, Output
from e2e.slow_file import ENV as SLOW_ENV
from e2e.slow_file import Throttle
from tests.agentproc import AgentProcess, wait_until

# Device blocks of an engine: so few that a handful of requests needs all of them.
DEVICE_BLOCKS = 64
# Tokens that one step computes: longer prompts are computed in chunks.
STEP_TOKENS = 256
MODEL_LEN = 1024

# Enough for everything that a run stores: no case is about eviction.
_HOST_BYTES = "128MiB"
_DISK_BYTES = "512MiB"

# vLLM on a machine without a GPU and with few cores; nothing may be downloaded or reported.
_VLLM_ENV = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_CI_ENV": "1",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


def block_count(tokens: int) -> int:
    """Complete blocks of that many tokens."""
    return tokens // model.BLOCK_TOKENS


def _connections(agent: AgentProcess) -> int:
    """Connections that the agent has accepted, as the kernel lists them."""
    connected = "03"
    rows = pathlib.Path("/proc/net/unix").read_text().splitlines()[1:]
    fields = (row.split() for row in rows)
    return sum(f[5] == connected and f[7:] == [agent.socket] for f in fields)


class Bed:
    """Made once for a run; close() ends every process and removes every file.

    Engines and agents are started when the first case asks for them and serve the later ones.
    """

    def __init__(self, keep: bool = False) -> None:
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-vllm-"))
        self.model = self.dir / "model"
        self.adapters = {name: self.dir / name for name in ("adapter-a", "adapter-b")}
        self.throttle = Throttle(self.dir / "throttle")
        self.loads = 0  # blocks that agents had copied to a device, over the run
        self.stores = 0  # blocks that agents were given
        self._keep = keep
        self._random = random.Random(7)
        self._salts = 0
        self._agents: list[AgentProcess] = []
        self._engines: dict[str, EngineProcess] = {}
        self._agent_of: dict[str, AgentProcess | None] = {}
        self._starts = 0
        self._on_close: list[Callable[[], None]] = []
        model.write_model(self.model, seed=1)
        for number, path in enumerate(self.adapters.values()):
            model.write_adapter(path, seed=11 + number)

    # Agents and engines

    def agent(self, nats: str = "", disk: bool = True) -> AgentProcess:
        """A new agent that writes every block to disk at once and leaves checking to lookups, so
        that a case finds what it expects where it expects it."""
        agent = AgentProcess(
            host_size=_HOST_BYTES,
            disk_size=_DISK_BYTES if disk else "0",
            flags=("--disk-filter=none", "--scrub-rate=0", "--extent-size=4MiB"),
            env={"BLOCKYARD_NATS": nats} if nats else {},
        )
        self._agents.append(agent)
        return agent

    def engine(self, name: str, agent: AgentProcess | None, **options: Any) -> EngineProcess:
        """A new engine that serves. `options` go over the usual ones; a `connector` among them
        names the connector's module and class, and `settings` are its. Without an agent there is
        none, but for `by_hand`: settings with the socket of an agent that is none of ours."""
        settings = options.pop("settings", {})
        by_hand = options.pop("by_hand", None)
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
        extra = by_hand if agent is None else {"socket": agent.socket, **settings}
        if extra is not None:
            arguments["kv_transfer_config"] = {
                "kv_connector": class_name,
                "kv_connector_module_path": module_path,
                "kv_role": "kv_both",
                "kv_load_failure_policy": "recompute",
                "kv_connector_extra_config": extra,
            }
        arguments.update(options)
        self._starts += 1
        directory = self.dir / f"{self._starts}-{name}"
        engine = EngineProcess(name, directory, arguments, self._engine_env())
        self._engines[name] = engine
        self._agent_of[name] = agent
        engine.ready()
        if agent is not None:
            self.connected(agent)
        return engine

    def _engine_env(self) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("BLOCKYARD_", "VLLM_"))}
        connector = str(pathlib.Path(__file__).resolve().parents[1])
        for scratch in ("tmp", "cache"):  # so that vLLM leaves nothing elsewhere
            (self.dir / scratch).mkdir(exist_ok=True)
        return {
            **kept,
            **_VLLM_ENV,
            "TMPDIR": str(self.dir / "tmp"),
            "VLLM_CACHE_ROOT": str(self.dir / "cache"),
            "PYTHONPATH": connector,
            SLOW_ENV: str(self.throttle.path),
        }

    def running(self) -> list[EngineProcess]:
        """The engines that serve now."""
        return list(self._engines.values())

    def stop(self, engine: EngineProcess, hard: bool = False) -> None:
        """Ends an engine: in order, or with kill -9."""
        del self._engines[engine.name]
        if hard:
            engine.kill9()
        else:
            engine.close()

    def kill(self, agent: AgentProcess) -> None:
        """Kills an agent, after its counters were added up."""
        self._add_up(agent)
        agent.kill9()

    def at_end(self, close: Callable[[], None]) -> None:
        """Has something else closed at the end of the run, last first, before agents are."""
        self._on_close.append(close)

    # Questions

    def connected(self, agent: AgentProcess) -> None:
        """Waits until every engine core of this agent's engines, and every worker, has its
        connection: two for each rank."""
        ranks = sum(len(e.counts()) for e in self.running() if self._agent_of[e.name] is agent)
        wait_until(
            f"{ranks} sessions with a worker each are connected to the agent",
            lambda: agent.stats()["sessions"] == ranks and _connections(agent) == 2 * ranks,
            30.0,
        )

    def prompt(self, tokens: int) -> list[int]:
        """A prompt that no other request has had."""
        return [self._random.randrange(3, model.VOCABULARY) for _ in range(tokens)]

    def computed(
        self, engine: EngineProcess, tokens: list[int], count: int = 8, **f: Any
    ) -> list[int]:
        """What the engine answers without a hit: under a salt of its own, which changes the
        identity of the blocks and nothing else."""
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
        """Runs a new prompt and waits until the agent has all of its complete blocks, sealed and
        written; then empties the engine's own cache."""
        before = self.kept(agent)
        out = engine.generate(tokens, count, **f)
        want = before + block_count(len(tokens))
        wait_until(f"{want} blocks are stored", lambda: self.kept(agent) >= want, 20.0)
        self.forget(agent, engine)
        return out

    def forget(self, agent: AgentProcess, engine: EngineProcess) -> None:
        """Empties the engine's own cache and waits until the agent is done with everything."""
        engine.forget()
        wait_until("the agent is quiet", lambda: agent.stats()["quiet"], 20.0)

    def kept(self, agent: AgentProcess) -> int:
        """Blocks that were committed or that were there when they were offered, ever."""
        return sum(p["committed"] + p["present"] for p in agent.stats()["pools"])

    def loaded(self, agent: AgentProcess) -> int:
        """Blocks that went to a device, ever."""
        cache = agent.stats()["cache"]
        return cache["onboarded_host"] + cache["onboarded_disk"]

    def count(self, agent: AgentProcess, key: str) -> int:
        """A counter of all pools of an agent."""
        return sum(p[key] for p in agent.stats()["pools"])

    def settled(self, agent: AgentProcess) -> None:
        """Waits until no slot of host memory is granted, pinned or in quarantine. (One on disk
        stays in quarantine after damage.)"""

        def held() -> dict[str, int]:
            pools = agent.stats()["pools"]
            kinds = ("granted", "staging", "quarantined")
            counts = {kind: sum(p["host"][kind] for p in pools) for kind in kinds}
            return {**counts, "pins": sum(p["pins"] for p in pools)}

        try:
            wait_until("no slot is held", lambda: not any(held().values()), 20.0)
        except AssertionError as err:
            raise AssertionError(f"{err}: {held()}") from None

    def logs(self) -> str:
        """The ends of all logs and the agents' counters, for a case that failed."""
        out = [e.log() for e in self.running()]
        for agent in self._agents:
            out.append(f"agent: {agent.log()}")
            if agent.process is not None:
                stats = agent.stats()
                kept = {k: stats[k] for k in ("pools", "engines", "cache")}
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
        """Ends everything and removes it."""
        self.clear()
        for close in reversed(self._on_close):
            close()
        self.throttle.close()
        if not self._keep:
            shutil.rmtree(self.dir, ignore_errors=True)
