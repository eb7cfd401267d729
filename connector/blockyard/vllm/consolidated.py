"""Where Dynamo's worker expects this rank's consolidated events, from vLLM's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blockyard import consolidation

# Dynamo's worker puts the engine's endpoint, where to bind and where to connect to under this key.
KEY = "consolidator_endpoints"


def stream_of(vllm_config: Any) -> dict[str, str]:
    """HelloFields for the consolidated stream of a rank that publishes events."""
    extra = getattr(vllm_config, "additional_config", None)
    endpoints = extra.get(KEY) if isinstance(extra, Mapping) else None
    bind = None
    if isinstance(endpoints, (list, tuple)) and len(endpoints) == 3:
        bind = str(endpoints[1])
    # The rank's number in its worker. With external load balancing each rank is a worker with its
    # own environment and port.
    local = getattr(vllm_config.parallel_config, "data_parallel_rank_local", None)
    return consolidation.stream(bind, int(local or 0))
