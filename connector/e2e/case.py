"""What a case is, and the agents and engines that cases share."""

from __future__ import annotations

import socket
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

from e2e.bed import Bed
from e2e.engineproc import EngineProcess
from e2e.services import NatsServer
from tests.agentproc import AgentProcess


# Options of engines that take LoRA adapters.
LORA = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}


class Yard(Bed):
    """The bed with the agents and engines that several cases share, each started when it is
    first asked for."""

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
        """The engine of most cases: takes LoRA adapters, publishes its KV events."""
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
        """Another engine of the same model on the same agent. Who ends it deletes the attribute."""
        return self.engine("second", self.main, **LORA)

    @cached_property
    def slow_agent(self) -> AgentProcess:
        """The agent of the engine whose copies the test can hold."""
        return self.agent(disk=False)

    @cached_property
    def slow(self) -> EngineProcess:
        """An engine whose copies begin when the test lets them. Its stores may hold fewer device
        blocks than it has, so that others are left for requests."""
        return self.engine(
            "slow",
            self.slow_agent,
            connector="e2e.slow:SlowConnector",
            settings={"max_inflight_blocks": 12},
        )

    def clear(self) -> None:
        """Ends all engines and agents; the next case gets new ones."""
        super().clear()
        for shared in ("main", "first", "second", "slow_agent", "slow"):
            self.__dict__.pop(shared, None)


class Skipped(Exception):
    """A case cannot be run here; the text says why."""


class Case(NamedTuple):
    """One behaviour that the product promises."""

    name: str
    reason: str
    run: Callable[[Yard], str]  # returns a remark for the result's line; raises when it fails


def case(name: str, reason: str) -> Callable[[Callable[[Yard], str]], Case]:
    """Decorator: makes a case of a function."""
    return lambda run: Case(name, reason, run)


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for s in sockets:
            s.bind(("", 0))
        return [s.getsockname()[1] for s in sockets]
    finally:
        for s in sockets:
            s.close()
