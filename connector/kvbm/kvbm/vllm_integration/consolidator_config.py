"""What Dynamo's vLLM worker asks: is there a consolidated event stream, and where?"""

from __future__ import annotations

from typing import Any

from kvbm import consolidation

_NAMES = ("DynamoConnector", "BlockyardConnector")


def get_consolidator_mode() -> str:
    """`dedup`, `passthrough` or `tiered`, from DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE."""
    return consolidation.mode()


def should_enable_consolidator(vllm_config: Any) -> bool:
    """Whether the engine's events are merged with the block manager's.

    That takes the connector, alone or in PdConnector, prefix caching, an engine that publishes
    events, and that DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR is not off.
    """
    if not consolidation.enabled():
        return False
    why = _missing(vllm_config)
    if why:
        consolidation.logger.warning("no consolidated KV events: %s", why)
    return not why


def get_consolidator_endpoints(vllm_config: Any) -> tuple[str, str, str] | None:
    """(the engine's endpoint, where the stream is bound, where to connect to it), or None.

    None makes Dynamo's worker follow the engine's own events. The engine's endpoint is that of
    rank 0: one stream cannot carry several ranks.
    """
    if not should_enable_consolidator(vllm_config):
        return None
    rank = getattr(vllm_config.parallel_config, "data_parallel_rank", 0) or 0
    if rank:
        consolidation.logger.warning(
            "consolidated KV events: data-parallel rank %d is left out, only rank 0 has a stream",
            rank,
        )
    engine = vllm_config.kv_events_config.endpoint.replace("*", "127.0.0.1")
    bind, connect = consolidation.output_endpoints()
    return engine, bind, connect


def _missing(vllm_config: Any) -> str:
    """What keeps the stream from being there; empty when nothing does."""
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
