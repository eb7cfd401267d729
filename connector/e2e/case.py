"""The agents and engines that cases share."""

from __future__ import annotations

import socket
from functools import cached_property
from typing import Any

from e2e.testbed import TestBed
from e2e.engineproc import EngineProcess
from e2e.planes import C, Plane
from e2e.services import NatsServer
from tests.agentproc import AgentProcess


# Options of engines that take LoRA adapters.
LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


class SharedTestBed(TestBed):
    """A test bed with shared agents and engines. The first access to one starts it.

    hybrid: the bed of the current hybrid model (shapes.HybridBed). hybrid_models: names of the
    hybrid models whose prompts came from the pool.
    """

    def __init__(self, keep: bool = False, plane: Plane = C) -> None:
        super().__init__(keep, plane)
        self.hybrid: Any = None
        self.hybrid_models: set[str] = set()

    @cached_property
    def nats(self) -> str:
        """URL of a NATS server."""
        server = NatsServer(self.dir / "nats")
        self.at_end(server.close)
        return server.url

    @cached_property
    def main(self) -> AgentProcess:
        """The agent of most cases."""
        return self.agent(nats=self.nats)

    @cached_property
    def first(self) -> EngineProcess:
        """The engine of most cases. Takes LoRA adapters and publishes its KV events."""
        port, replay = free_ports(2)
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": f"tcp://*:{port}",
            "replay_endpoint": f"tcp://*:{replay}",
            "topic": "kv-events",
        }
        return self.engine("first", self.main, kv_events_config=events, **LORA)

    @cached_property
    def second(self) -> EngineProcess:
        """Another engine of the same model and agent. A case that ends it deletes the attribute."""
        return self.engine("second", self.main, **LORA)

    @cached_property
    def slow_agent(self) -> AgentProcess:
        """The agent of the engine `slow`."""
        return self.agent(disk=False)

    @cached_property
    def slow(self) -> EngineProcess:
        """An engine whose copies wait for `throttle`. Stores cannot hold all of its blocks, so that
        requests can run."""
        return self.engine(
            "slow",
            self.slow_agent,
            connector="e2e.slow:SlowConnector",
            settings={"max_inflight_blocks": 12},
        )

    def clear(self) -> None:
        """Ends all engines and agents. The next case gets new ones."""
        super().clear()
        self.hybrid = None
        for shared in ("main", "first", "second", "slow_agent", "slow"):
            self.__dict__.pop(shared, None)


def free_ports(count: int) -> list[int]:
    """Unused TCP ports."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
