"""Stand-in for vLLM's base classes of a connector's metrics."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Counter:
    """Stands for prometheus_client's class in the mapping of metric types."""


class Gauge:
    """Stands for prometheus_client's class in the mapping of metric types."""


class Histogram:
    """Stands for prometheus_client's class in the mapping of metric types."""


@dataclass
class KVConnectorStats:
    """What a connector's role has counted."""

    data: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The serializable form."""
        return self.data


class KVConnectorPromMetrics:
    """A connector's metrics in vLLM's front end."""

    def __init__(
        self,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> None:
        self._gauge_cls = metric_types[Gauge]
        self._counter_cls = metric_types[Counter]
        self._histogram_cls = metric_types[Histogram]
        self._labelnames = labelnames
        self.per_engine_labelvalues = per_engine_labelvalues
