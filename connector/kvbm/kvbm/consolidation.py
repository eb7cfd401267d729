"""The consolidated event stream for Dynamo's workers, configured by KVBM's variables.

KVBM's connector merges the events of the engine and of the block manager, and publishes the result.
Dynamo's worker then subscribes to that stream instead of the engine's. Here the node's agent
publishes the stream at the same address: see blockyard.consolidation. Without such an agent, set
DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR to 0. Otherwise the worker subscribes to a port without a
publisher.
"""

from __future__ import annotations

import logging

from blockyard import consolidation

ENABLE = consolidation.ENABLE
MODE = consolidation.MODE
LEADER_PORT = consolidation.LEADER_PORT
TRTLLM_PORT = "DYN_KVBM_TRTLLM_ZMQ_PORT"

logger = logging.getLogger("kvbm")


def enabled() -> bool:
    """Whether the environment enables the consolidated stream. Logs that it is off."""
    if consolidation.switch(ENABLE, True):
        return True
    logger.info("no consolidated KV events: %s is off", ENABLE)
    return False


def mode() -> str:
    """`dedup`, `passthrough` or Blockyard's `tiered`. An unset variable means `dedup`.

    ValueError for another value.
    """
    return consolidation.mode("dedup")


def output_endpoints() -> tuple[str, str]:
    """The address at which the consolidated stream is bound, and the address to connect to."""
    output = consolidation.output_port()
    return f"tcp://0.0.0.0:{output}", f"tcp://127.0.0.1:{output}"


def engine_port() -> int | None:
    """The port of TensorRT-LLM's events: its own variable, or the leader's. None: none is set."""
    for name in (TRTLLM_PORT, LEADER_PORT):
        if consolidation.named(name):
            return consolidation.port(name, 0)
    return None
