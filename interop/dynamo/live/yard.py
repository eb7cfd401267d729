"""Our side where we are the ones who are read: an agent, simulated engines, and our router."""

from __future__ import annotations

import pathlib
import shutil
import tempfile
from typing import Any

from live.child import wait_until
from live.overlap import Overlaps
from live.place import BLOCK, Ours, Place

MODEL = "simulated"
DEVICE_BLOCKS = 24


class Yard:
    """An agent with one engine for each rank of one worker, and our router on their native
    stream, which is what others are compared with."""

    def __init__(
        self, place: Place, worker: int, ranks: int, agent_flags: list[str], drop_frames: int = 0
    ) -> None:
        self._place = place
        memory = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
        self._host = pathlib.Path(tempfile.mkdtemp(prefix="blockyard-dynamo-", dir=memory))
        place.at_end(lambda: shutil.rmtree(self._host, ignore_errors=True))
        self._socket = place.dir / "agent.sock"
        self._agent_flags = agent_flags
        self.router = place.router()
        self.agent = self._start_agent()
        self.engines = [self._engine(worker, rank, drop_frames) for rank in range(ranks)]
        wait_until(
            lambda: f"our router knows {ranks} ranks: {self.router.get('/v1/workers')}",
            lambda: len(self.router.get("/v1/workers")) == ranks,
        )

    def _start_agent(self) -> Ours:
        child = self._place.ours(
            "agent",
            "agent",
            "--node=test",
            f"--socket={self._socket}",
            "--admin=127.0.0.1:0",
            f"--host-dir={self._host}",
            "--host-size=1MiB",
            "--disk-size=0",
            f"--nats={self._place.nats}",
            *self._agent_flags,
        )
        return Ours(child, "admin")

    def _engine(self, worker: int, rank: int, drop_frames: int) -> Ours:
        return Ours(
            self._place.ours(
                f"engine-{rank}",
                "sim-engine",
                f"--worker-id={worker}",
                f"--rank={rank}",
                f"--agent-socket={self._socket}",
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
        """Has an engine drop its prefix cache."""
        engine = self.engines[rank]
        path = "/v1/reset_prefix_cache"
        wait_until("the engine resets", lambda: engine.post(path, {})["success"])

    def settle(self) -> None:
        """Waits until the engines are idle and our router knows all that they hold."""
        wait_until("the engines are idle", lambda: all(self._idle(e) for e in self.engines))
        wait_until(self._differences, lambda: not self._differences(), 40.0)

    def _idle(self, engine: Ours) -> bool:
        return bool(engine.get("/v1/state")["idle"])

    def _differences(self) -> str:
        """How our router's picture of the devices differs from what the engines hold."""
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
        """What our router credits."""
        return self.router.overlaps(tokens)

    def sink(self, rank: int) -> str:
        """Where the agent's stream in vLLM's format for a rank is bound."""
        host, _, port = self.engines[rank].ready["events"].rpartition(":")
        return f"{host}:{int(port) + 1000}"

    def restart_agent(self) -> None:
        """Kills the agent and starts it again on what it left behind."""
        self.agent.child.kill9()
        self.agent = self._start_agent()
