"""What Dynamo's workers are told of the consolidated event stream, by KVBM's rules.

In KVBM the connector itself merges the engine's events with the block manager's and publishes the
result for Dynamo's worker, which then follows that stream and no longer the engine's. Here the
node's agent does that, at the same place: see blockyard.consolidation. Where no agent of this
version or later is, switch it off, or the worker follows a port that nobody serves.
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
    """Whether there is a consolidated stream, as far as variables say; says in the log why not."""
    if consolidation.switch(ENABLE, True):
        return True
    logger.info("no consolidated KV events: %s is off", ENABLE)
    return False


def mode() -> str:
    """`dedup`, `passthrough`, or our own `tiered`. ValueError for another value; blank is `dedup`.

    What is not said in the variable is up to the agent, whose default is `tiered`.
    """
    return consolidation.mode("dedup")


def output_endpoints() -> tuple[str, str]:
    """Where the consolidated stream is bound, and where to connect to it."""
    output = consolidation.output_port()
    return f"tcp://0.0.0.0:{output}", f"tcp://127.0.0.1:{output}"


def engine_port() -> int | None:
    """Where TensorRT-LLM's events are published: its variable, or the leader's. None: neither."""
    for name in (TRTLLM_PORT, LEADER_PORT):
        if consolidation.named(name):
            return consolidation.port(name, 0)
    return None
