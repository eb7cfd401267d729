"""Stand-ins for the base classes of vLLM's connectors, with the members that the connector uses."""

from __future__ import annotations

import enum
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any


@dataclass
class KVConnectorTransferResults:
    """A worker's ended transfers."""

    finished_sending: set[str] = field(default_factory=set)
    finished_recving: set[str] = field(default_factory=set)
    failed_recving: set[str] = field(default_factory=set)


class SupportsHMA(ABC):
    """A connector that works with several KV cache groups."""

    @abstractmethod
    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        """Called at the end of a request."""


class KVConnectorRole(enum.Enum):
    """The process of an instance."""

    SCHEDULER = 0
    WORKER = 1


class KVConnectorMetadata(ABC):  # noqa: B024
    """Scheduler to workers."""


class KVConnectorHandshakeMetadata(ABC):  # noqa: B024
    """Workers to scheduler, once."""


class KVConnectorWorkerMetadata(ABC):
    """Workers to scheduler, every step."""

    @abstractmethod
    def aggregate(self, other: KVConnectorWorkerMetadata) -> KVConnectorWorkerMetadata:
        """The sum of two workers' reports."""


class KVConnectorBase_V1(ABC):
    """A connector."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        self._connector_metadata: KVConnectorMetadata | None = None
        self._vllm_config = vllm_config
        self._kv_transfer_config = vllm_config.kv_transfer_config
        self._kv_cache_config = kv_cache_config
        self._role = role

    def bind_connector_metadata(self, connector_metadata: KVConnectorMetadata) -> None:
        """Called before a step."""
        self._connector_metadata = connector_metadata

    def clear_connector_metadata(self) -> None:
        """Called after a step."""
        self._connector_metadata = None

    def bind_kv_cache_manager(self, kv_cache_manager: Any) -> None:
        """Called with the scheduler's cache manager."""
        self.bind_gpu_block_pool(kv_cache_manager.block_pool)

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        """Called with the scheduler's block pool."""

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """None: any layout."""
        return None

    @classmethod
    def requires_piecewise_for_cudagraph(cls, extra_config: Any) -> bool:
        """False: the connector has no hooks between layers."""
        return False

    def take_events(self) -> Any:
        """No events."""
        return ()

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The failed device blocks."""
        return set()

    def get_kv_connector_stats(self) -> Any:
        """Called at the end of every step."""
        return None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> Any:
        """The stats of a serialized form."""
        return None

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> Any:
        """The metrics of the front end."""
        return None

    @abstractmethod
    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Called in every step."""

    @abstractmethod
    def wait_for_layer_load(self, layer_name: str) -> None:
        """Called in every layer."""

    @abstractmethod
    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Called in every layer."""

    @abstractmethod
    def wait_for_save(self) -> None:
        """Called at the end of every step."""

    @abstractmethod
    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """The number of loadable tokens."""

    @abstractmethod
    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Called after the allocation of blocks."""

    @abstractmethod
    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """The metadata of this step for the workers."""
