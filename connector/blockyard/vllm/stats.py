"""The connector's counters in vLLM's own metrics and log.

Both roles send what has changed since their last answer. vLLM adds the answers of all workers and
of the scheduler, carries the sum to its front end, and calls the classes of this module there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
    KVConnectorPromMetrics,
    KVConnectorStats,
)

if TYPE_CHECKING:
    from blockyard.pace import Pace
    from blockyard.scheduler import SchedulerSession
    from blockyard.vllm.short_loads import ShortLoads

# Interval of the scheduler role's answers while a later step must follow. Scrapes are far apart.
INTERVAL_SECONDS = 0.1
PREFIX = "vllm:blockyard_"  # vLLM removes metrics with its own prefix when it starts again

# Counters of the scheduler role: the session's name, the metric and its help.
SESSION_COUNTERS = (
    ("lookups", "lookups", "Requests that were looked up in Blockyard's agent."),
    ("hit_blocks", "hit_blocks", "Blocks that lookups found."),
    ("loads", "loads", "Requests with a load."),
    ("loaded_blocks", "loaded_blocks", "Blocks that all workers have loaded."),
    ("failed_loads", "failed_loads", "Load jobs that failed on a worker."),
    ("stored_blocks", "stored_blocks", "Blocks that all workers have stored."),
    ("dropped_stores", "dropped_blocks", "Blocks that were offered and not stored."),
    ("errors", "errors", "Frames that the agent refused."),
)
DECLINED = "declined_hits"
SHORT = "short_loads"
LOAD_BYTES, STORE_BYTES, COPY_SECONDS = "load_bytes", "store_bytes", "copy_seconds"
_COUNTERS = {metric: text for _, metric, text in SESSION_COUNTERS} | {
    DECLINED: "Hits that the engine computes, because that is expected to be sooner than a load.",
    SHORT: "Requests whose load ran within the step that computes the rest of their prompt.",
    LOAD_BYTES: "Bytes of the slots that the workers have loaded, summed over the workers.",
    STORE_BYTES: "Bytes of the slots that the workers have stored, summed over the workers.",
    COPY_SECONDS: "Seconds with a copy in progress, summed over the workers.",
}
CONNECTED, LEAST = "connected", "min_load_blocks"
_GAUGES = {
    CONNECTED: "1 while the connector has a session with Blockyard's agent.",
    LEAST: "Smallest hit in blocks that is loaded now, a power of two unless the user set it.",
}


class BlockyardStats(KVConnectorStats):
    """Changes of counters, and values of gauges, by their names."""

    def reset(self) -> None:
        self.data = {}

    def aggregate(self, other: KVConnectorStats) -> KVConnectorStats:
        """Adds the counters of `other` and takes its gauges. `other` does not change."""
        for name, value in other.data.items():
            self.data[name] = value if name in _GAUGES else self.data.get(name, 0) + value
        return self

    def reduce(self) -> dict[str, int | float]:
        """The values for vLLM's log line of the last interval."""
        return {
            f"Blockyard {name}": round(value, 6) if isinstance(value, float) else value
            for name, value in self.data.items()
        }

    def is_empty(self) -> bool:
        return not self.data


class BlockyardMetrics(KVConnectorPromMetrics):
    """The metrics vllm:blockyard_* with vLLM's labels."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: Mapping[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        super().__init__(vllm_config, metric_types, labelnames, per_engine_labelvalues)
        self._counters = {
            name: self._of_engines(self._counter_cls(PREFIX + name, text, labelnames))
            for name, text in _COUNTERS.items()
        }
        self._gauges = {
            name: self._of_engines(
                self._gauge_cls(PREFIX + name, text, labelnames, multiprocess_mode="mostrecent")
            )
            for name, text in _GAUGES.items()
        }

    def _of_engines(self, metric: Any) -> dict[int, Any]:
        return {
            engine: metric.labels(*values) for engine, values in self.per_engine_labelvalues.items()
        }

    def observe(self, transfer_stats_data: dict[str, Any], engine_idx: int = 0) -> None:
        """Adds the changes of one engine."""
        for name, value in transfer_stats_data.items():
            if name in self._gauges:
                self._gauges[name][engine_idx].set(value)
            elif name in self._counters:
                self._counters[name][engine_idx].inc(value)


class Changes:
    """Finds the changes of counters between two answers. last: the values of the last one."""

    __slots__ = ("_counters", "last")

    def __init__(self, counters: tuple[str, ...]) -> None:
        self._counters = counters
        self.last: tuple[float, ...] = (0,) * len(counters)

    def of(self, values: tuple[float, ...]) -> dict[str, Any]:
        """The changes of `values`, in the order of the counters. Empty without one."""
        last, self.last = self.last, values
        return {
            name: now - then
            for name, now, then in zip(self._counters, values, last, strict=True)
            if now != then
        }


class SchedulerStats:
    """The answers of the scheduler role."""

    _SESSION = tuple(name for name, _, _ in SESSION_COUNTERS)

    def __init__(self, session: SchedulerSession, pace: Pace, short: ShortLoads) -> None:
        self._session = session
        self._pace = pace
        self._short = short
        metrics = (metric for _, metric, _ in SESSION_COUNTERS)
        self._changes = Changes((*metrics, DECLINED, SHORT))
        self._connected = False
        self._next_at = 0.0

    def take(self, now: float) -> BlockyardStats | None:
        """What has changed since the last answer, with both gauges. None without a change.

        None also within INTERVAL_SECONDS of the last comparison while a later step must follow.
        now: of any monotonic clock.
        """
        session, pace, changes = self._session, self._pace, self._changes
        if now < self._next_at and session.busy():
            return None
        self._next_at = now + INTERVAL_SECONDS
        session.changed = False
        values = (*session.counted(self._SESSION), pace.declined, self._short.loads)
        connected = session.connected
        if values == changes.last and connected == self._connected:
            return None
        self._connected = connected
        data = changes.of(values)
        data[CONNECTED] = int(connected)
        data[LEAST] = pace.least_blocks()
        return BlockyardStats(data)


def register(connector: type) -> None:
    """Makes a connector's class known to vLLM by its name.

    vLLM's MultiConnector reads the stats of its connectors by the names of their classes, and its
    front end dies from an unknown name.
    """
    name = connector.__name__
    if name not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(name, connector.__module__, name)
