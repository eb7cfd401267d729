"""The questions of Dynamo's TensorRT-LLM worker about the consolidated event stream."""

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
    """Whether the engine has a consolidated event stream. Logs the reason when it has none.

    arg_map: the engine's arguments. Their kv_connector_config, a map or an object, must name this
    package's connector, and one of the two port variables must be set. KVBM's default port does not
    count, because an engine without Dynamo may publish anywhere.
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
    """The addresses of the engine's events, of the stream's socket, and for its subscribers.

    The engine's port is DYN_KVBM_TRTLLM_ZMQ_PORT, or else the leader's port, as in KVBM.
    """
    bind, connect = consolidation.output_endpoints()
    return f"tcp://*:{consolidation.engine_port() or DEFAULT_LEADER_PORT}", bind, connect
