"""Blockyard's processes for the cases in which Dynamo reads them: agent, engines and router."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from typing import Any

from live.child import wait_until
from live.overlap import Overlaps
from live.testbed import BLOCK, Server, TestBed

MODEL = "simulated"
DEVICE_BLOCKS = 24


class Cluster:
    """An agent, a simulated engine for each rank of one worker, and Blockyard's router.

    The router reads the native stream. The cases compare Dynamo's routers with it.
    """

    def __init__(
        self, bed: TestBed, worker: int, ranks: int, agent_flags: list[str], drop_frames: int = 0
    ) -> None:
        self._bed = bed
        memory = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
        self._host = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-dynamo-", dir=memory))
        bed.at_end(lambda: shutil.rmtree(self._host, ignore_errors=True))
        self._socket = bed.dir / "agent.sock"
        self._agent_flags = agent_flags
        self.router = bed.router()
        self.agent = self._start_agent()
        ports = bed.engine_ports(ranks)
        self.engines = [self._engine(worker, r, ports[r], drop_frames) for r in range(ranks)]
        wait_until(
            lambda: f"our router has {ranks} ranks: {self.router.get('/v1/workers')}",
            lambda: len(self.router.get("/v1/workers")) == ranks,
        )

    def _start_agent(self) -> Server:
        child = self._bed.ours(
            "agent",
            "agent",
            "--node=test",
            f"--socket={self._socket}",
            "--admin=127.0.0.1:0",
            f"--host-dir={self._host}",
            "--host-size=1MiB",
            "--disk-size=0",
            f"--nats={self._bed.nats}",
            *self._agent_flags,
        )
        return Server(child, "admin")

    def _engine(self, worker: int, rank: int, port: int, drop_frames: int) -> Server:
        return Server(
            self._bed.ours(
                f"engine-{rank}",
                "sim-engine",
                f"--worker-id={worker}",
                f"--rank={rank}",
                f"--agent-socket={self._socket}",
                f"--events=tcp://127.0.0.1:{port}",
                f"--block-size={BLOCK}",
                f"--device-blocks={DEVICE_BLOCKS}",
                "--speed-up=20",
                f"--drop-frames={drop_frames}",
                f"--seed={rank + 1}",
            )
        )

    def generate(self, rank: int, tokens: list[int], output: int = 1) -> None:
        """Runs a request on an engine to its end."""
        body = {"request_id": "r", "tokens": tokens, "output_tokens": output}
        last = self.engines[rank].post("/v1/generate", body)
        assert last["event"] == "done", last

    def reset(self, rank: int) -> None:
        """Resets an engine's prefix cache."""
        engine = self.engines[rank]
        path = "/v1/reset_prefix_cache"
        wait_until("the engine resets", lambda: engine.post(path, {})["success"])

    def settle(self) -> None:
        """Waits until the engines are idle and the router's index agrees with their devices."""
        wait_until("the engines are idle", lambda: all(self._idle(e) for e in self.engines))
        wait_until(self._differences, lambda: not self._differences(), 40.0)

    def _idle(self, engine: Server) -> bool:
        return bool(engine.get("/v1/state")["idle"])

    def _differences(self) -> str:
        """How the router's index differs from the engines' devices. Empty: they agree."""
        dump = self.router.dump()
        for engine in self.engines:
            state: dict[str, Any] = engine.get("/v1/state")
            owner = ("worker", state["worker_id"], state["rank"])
            held = {f"{h:016x}" for h, tiers in dump.get(owner, {}).items() if "device" in tiers}
            if held != set(state["blocks"]):
                return (
                    f"rank {state['rank']}: our router has {len(held)} blocks on the device, "
                    f"the engine {len(state['blocks'])}, {len(held & set(state['blocks']))} in both"
                )
        return ""

    def overlaps(self, tokens: list[int]) -> Overlaps:
        """The blocks that Blockyard's router credits to each worker."""
        return self.router.overlaps(tokens)

    def sink(self, rank: int) -> str:
        """The address of the agent's stream in vLLM's format for a rank."""
        host, _, port = self.engines[rank].ready["events"].rpartition(":")
        return f"{host}:{int(port) + 1000}"

    def restart_agent(self, resume: bool = False) -> None:
        """Kills the agent and starts a new agent with its files.

        resume: waits until every engine has a session with the new agent. An engine without a
        session runs requests, but tells no agent their tokens.
        """
        before = [self._sessions(e) for e in self.engines]
        self.agent.child.kill9()
        self.agent = self._start_agent()
        if resume:
            wait_until(
                "the engines have sessions with the new agent",
                lambda: all(self._sessions(e) > n for e, n in zip(self.engines, before)),
            )

    @staticmethod
    def _sessions(engine: Server) -> int:
        """The number of sessions that an engine has begun."""
        return engine.get("/v1/state")["stats"]["sessions"]
