"""The records between the two roles of the connector, which vLLM carries once per step.

The records are small and flat, because vLLM pickles them to and from every worker process. A step
without copies carries the shared EMPTY.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from blockyard.vllm.facts import Format
from blockyard.vllm.short_loads import Named
from blockyard.work import EMPTY_WORK, Done, Mapped, Work


class StepMetadata(KVConnectorMetadata):
    """Scheduler to workers: the copies to make.

    idle: the step computes nothing and a load is in flight, so workers may wait for its end.
    short: the loads that must end before the step's forward pass, see short_loads.py.
    """

    __slots__ = ("idle", "short", "work")

    def __init__(
        self, work: Work = EMPTY_WORK, idle: bool = False, short: tuple[Named, ...] = ()
    ) -> None:
        self.work = work
        self.idle = idle
        self.short = short

    def __reduce__(self) -> Any:
        # Empty metadata is EMPTY in every process, so that workers recognize it by identity.
        if self.work or self.idle or self.short:
            return StepMetadata, (self.work, self.idle, self.short)
        return "EMPTY"


EMPTY = StepMetadata()


@dataclass(frozen=True)
class Handshake(KVConnectorHandshakeMetadata):
    """Worker to scheduler, once: this worker's part of a block.

    total_bytes: bytes of a block, see geometry.Share. group_bytes: of a hybrid model, see
    geometry.group_ends. host: equal for workers on one node. problem:
    why this worker cannot use the connector, for people; the connector then stays off.
    """

    pp_rank: int
    tp_rank: int
    total_bytes: int
    host: str
    format: Format
    problem: str = ""
    group_bytes: tuple[int, ...] = ()


class WorkerReport(KVConnectorWorkerMetadata):
    """Workers to scheduler: ended jobs, mapped and pinned extents, undelivered handshakes."""

    __slots__ = ("done", "handshakes", "mapped")

    def __init__(
        self,
        done: Done | None,
        handshakes: tuple[Handshake, ...] = (),
        mapped: tuple[Mapped, ...] = (),
    ) -> None:
        self.done = done
        self.handshakes = handshakes
        self.mapped = mapped

    def __reduce__(self) -> tuple[type, tuple[Any, ...]]:
        return WorkerReport, (self.done, self.handshakes, self.mapped)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> WorkerReport:
        """The sum of two workers' reports. `other` does not change."""
        if not isinstance(other, WorkerReport):
            return self
        if self.done is None:
            self.done = other.done
        elif other.done is not None:
            self.done.merge(other.done)
        self.handshakes += other.handshakes
        self.mapped += other.mapped
        return self
