"""BlockyardConnector: the class that vLLM loads. Its methods only delegate.

vLLM makes one instance in the scheduler's process and one in every worker. A vLLM release calls
only the methods that it knows. A method missing here keeps the base class's answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1 import base

from blockyard.settings import Settings
from blockyard.vllm.assembly import make_scheduler, make_worker, show_log
from blockyard.vllm.handshakes import Assembly
from blockyard.vllm.layout import required_layout
from blockyard.vllm.records import EMPTY, Handshake, StepMetadata, WorkerReport
from blockyard.vllm.stats import BlockyardMetrics, BlockyardStats, register

_RESULTS = getattr(base, "KVConnectorTransferResults", None)
# vLLM only reads the results, so one object serves all empty steps.
_NOTHING = None if _RESULTS is None else _RESULTS()


class BlockyardConnector(base.KVConnectorBase_V1, base.SupportsHMA):
    """Keeps KV cache blocks in the node's Blockyard agent."""

    def __init__(self, vllm_config: Any, role: base.KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        settings = _settings(vllm_config)
        show_log(settings)
        self._scheduler: Any = None
        self._worker: Any = None
        self._assembly: Assembly | None = None
        if role == base.KVConnectorRole.SCHEDULER:
            self._scheduler = make_scheduler(vllm_config, kv_cache_config, settings)
            self._assembly = Assembly(vllm_config, kv_cache_config, settings, self._scheduler)
        else:
            self._worker = make_worker(vllm_config, kv_cache_config, settings)

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        register(cls)

    # What kind of connector this is.

    @property
    def requires_kv_delivery(self) -> bool:
        """False: a cache may lose blocks."""
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        """True: sleep ends all copies first, and the KV tensors return to their addresses."""
        return True

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        """The layout that the setting kv_layout asks for."""
        settings = _settings(vllm_config)
        show_log(settings)
        return required_layout(settings)

    # vLLM's metrics and log, in its front end and in both roles.

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> BlockyardStats:
        return BlockyardStats(data={} if data is None else data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> BlockyardMetrics:
        return BlockyardMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def get_kv_connector_stats(self) -> BlockyardStats | None:
        """What has changed since the last answer, or None. vLLM calls it at the end of a step."""
        return (self._worker or self._scheduler).stats()

    # Scheduler.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self._scheduler.bind(gpu_block_pool)

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Mapping[Any, Any]) -> None:
        if self._assembly.add(metadata.values()):
            self._assembly.await_agent()

    def set_xfer_handshake_metadata(self, metadata: Mapping[int, Any]) -> None:
        self.set_xfer_handshake_metadata_pp_aware(metadata)

    def on_new_request(self, request: Any) -> None:
        self._scheduler.on_new_request(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return self._scheduler.get_num_new_matched_tokens(request, num_computed_tokens)

    def get_loaded_kv_cache_group_ids(self, request: Any) -> tuple[int, ...]:
        return self._scheduler.loaded_group_ids(request)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self._scheduler.update_state_after_alloc(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(
        self, request: Any, num_external_tokens: int
    ) -> Mapping[Any, int]:
        return self._scheduler.get_external_cache_hit_sources(request, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> StepMetadata:
        return self._scheduler.build_connector_meta(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        if report is not None and isinstance(report, WorkerReport) and report.handshakes:
            self._assembly.add(report.handshakes)
        self._scheduler.update_connector_output(connector_output)

    def request_finished(
        self, request: Any, block_ids: Sequence[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: Sequence[Sequence[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        self._scheduler.request_finished(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self._assembly.waiting() or self._scheduler.busy()

    def has_pending_block_frees(self) -> bool:
        return self._scheduler.frees_soon()

    def reset_cache(self) -> bool | None:
        return self._scheduler.reset_cache()

    # Worker.

    def has_connector_metadata(self) -> bool:
        """False: vLLM then skips two calls for each attention layer, which would have no effect."""
        return False

    def register_kv_caches(self, kv_caches: Mapping[str, Any]) -> None:
        self._worker.register_kv_caches(kv_caches)

    def get_handshake_metadata(self) -> Handshake | None:
        """The handshake, or None inside a MultiConnector.

        vLLM's MultiConnector gives one connector's handshake to all its connectors. So a nested
        connector sends its handshake in the report of the first step.
        """
        return None if _is_nested(self) else self._worker.take_handshake()

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        if kv_connector_metadata is not EMPTY:
            self._worker.begin(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        if self._connector_metadata is not EMPTY:
            self._worker.load(self._connector_metadata)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """The device blocks of short loads that failed. Failures of others are named by request."""
        return self._worker.invalid_blocks()

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return

    def wait_for_save(self) -> None:
        return

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        finished, failed = self._worker.transfer_results()
        if not finished:
            return _NOTHING
        return _RESULTS(finished_recving=finished, failed_recving=failed)

    def build_connector_worker_meta(self) -> WorkerReport | None:
        return self._worker.report()

    def unregister_kv_caches(self) -> None:
        self._worker.suspend()

    def restore_kv_caches(self) -> None:
        self._worker.resume()

    def shutdown(self) -> None:
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.shutdown()


register(BlockyardConnector)


def _settings(vllm_config: Any) -> Settings:
    return Settings.read(vllm_config.kv_transfer_config.kv_connector_extra_config)


def _is_nested(connector: base.KVConnectorBase_V1) -> bool:
    """Whether vLLM reaches this connector through another one (MultiConnector)."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group

    return not has_kv_transfer_group() or get_kv_transfer_group() is not connector
