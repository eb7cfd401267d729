"""What Dynamo's TensorRT-LLM worker asks: is there a consolidated event stream, and where?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockyard.consolidation import DEFAULT_LEADER_PORT

from kvbm import consolidation

_MODULE = "kvbm.trtllm_integration.connector"


def get_consolidator_mode() -> str:
    """`dedup`, `passthrough` or `tiered`, from DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE."""
    return consolidation.mode()


def should_enable_consolidator(arg_map: Any) -> bool:
    """Whether the engine's events are merged with the block manager's.

    arg_map holds the engine's arguments; its kv_connector_config, a map or an object, must name
    this package's connector, and one of the two ports must be named: the agent cannot know where
    an engine that runs without Dynamo publishes, so it does not look at KVBM's default port.
    """
    if not consolidation.enabled():
        return False
    config = arg_map.get("kv_connector_config") if isinstance(arg_map, Mapping) else None
    if isinstance(config, Mapping):
        module = config.get("connector_module")
    else:
        module = getattr(config, "connector_module", None)
    if _MODULE not in (module or ""):
        consolidation.logger.warning(
            "no consolidated KV events: connector_module is %s, not %s", module, _MODULE
        )
        return False
    if consolidation.engine_port() is None:
        consolidation.logger.warning(
            "no consolidated KV events: neither %s nor %s is set",
            consolidation.TRTLLM_PORT,
            consolidation.LEADER_PORT,
        )
        return False
    return True


def get_consolidator_endpoints() -> tuple[str, str, str]:
    """(where the engine's events are bound, where the stream is bound, where to connect to it).

    The engine's port is DYN_KVBM_TRTLLM_ZMQ_PORT, and without it the leader's port, as in KVBM.
    """
    bind, connect = consolidation.output_endpoints()
    return f"tcp://*:{consolidation.engine_port() or DEFAULT_LEADER_PORT}", bind, connect
