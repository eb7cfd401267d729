"""The questions of Dynamo's vLLM worker about the consolidated event stream."""

from __future__ import annotations

from typing import Any

from kvbm import consolidation

_NAMES = ("DynamoConnector", "BlockyardConnector")


def get_consolidator_mode() -> str:
    """`dedup`, `passthrough` or `tiered`, from DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE."""
    return consolidation.mode()


def should_enable_consolidator(vllm_config: Any) -> bool:
    """Whether the engine has a consolidated event stream. Logs the reason when it has none.

    The stream needs the connector, alone or in PdConnector, prefix caching, and an engine that
    publishes events. DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR turns it off.
    """
    if not consolidation.enabled():
        return False
    reason = _why_none(vllm_config)
    if reason:
        consolidation.logger.warning("no consolidated KV events: %s", reason)
    return not reason


def get_consolidator_endpoints(vllm_config: Any) -> tuple[str, str, str] | None:
    """The addresses of the engine's events, of the stream's socket, and for its subscribers.

    The engine's endpoint is the one of data-parallel rank 0, because a stream has one rank. None:
    Dynamo's worker subscribes to the engine's own events.
    """
    if not should_enable_consolidator(vllm_config):
        return None
    rank = getattr(vllm_config.parallel_config, "data_parallel_rank", 0) or 0
    if rank:
        consolidation.logger.warning(
            "no consolidated KV events of data-parallel rank %d: only rank 0 has a stream",
            rank,
        )
    engine = vllm_config.kv_events_config.endpoint.replace("*", "127.0.0.1")
    bind, connect = consolidation.output_endpoints()
    return engine, bind, connect


def _why_none(vllm_config: Any) -> str:
    """Why this configuration has no stream. Empty: it has one."""
    transfer = getattr(vllm_config, "kv_transfer_config", None)
    name = getattr(transfer, "kv_connector", None)
    names = [name]
    if name == "PdConnector":
        extra = getattr(transfer, "kv_connector_extra_config", None) or {}
        names = [child.get("kv_connector") for child in extra.get("connectors", [])]
    if not any(n in _NAMES for n in names):
        return f"the connector is {name}, not {_NAMES[0]}"
    if not vllm_config.cache_config.enable_prefix_caching:
        return "prefix caching is off"
    events = getattr(vllm_config, "kv_events_config", None)
    if events is None or not getattr(events, "enable_kv_cache_events", True):
        return "the engine publishes no KV events (--kv-events-config)"
    return ""
