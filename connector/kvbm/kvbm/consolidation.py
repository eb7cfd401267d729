"""Where a consolidated stream of KV events would be, by KVBM's rules.

In KVBM the connector itself merges the engine's events with the block manager's and publishes the
result for Dynamo's worker, which then follows that stream and no longer the engine's. Blockyard's
agent takes the engine's events, and publishes them and its own to its routers. Telling Dynamo's
worker of a stream that nobody publishes would blind its router. So consolidation counts as off
unless BLOCKYARD_CONSOLIDATED_EVENTS says that something publishes there.
"""

from __future__ import annotations

import logging
import os

SWITCH = "BLOCKYARD_CONSOLIDATED_EVENTS"
ENABLE = "DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR"
MODE = "DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE"
LEADER_PORT = "DYN_KVBM_LEADER_ZMQ_PUB_PORT"
TRTLLM_PORT = "DYN_KVBM_TRTLLM_ZMQ_PORT"

DEFAULT_LEADER_PORT = 56001
OUTPUT_OFFSET = 1000  # the consolidated stream is this far above the leader's port
MAX_PORT = 65535

_YES = ("1", "true", "on", "yes")
_NO = ("0", "false", "off", "no")

logger = logging.getLogger("kvbm")


def switch(name: str, default: bool) -> bool:
    """A yes-or-no variable. ValueError naming it when it is neither; blank is the default."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    word = value.lower()
    if word not in _YES and word not in _NO:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(_YES + _NO)}")
    return word in _YES


def port(name: str, default: int) -> int:
    """A port from a variable, 1..65535. ValueError naming it for anything else."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MAX_PORT:
        raise ValueError(f"{name}: {value!r} is no port of 1..{MAX_PORT}")
    return int(value)


def enabled() -> bool:
    """Whether there is a consolidated stream, as far as variables say; says in the log why not."""
    if not switch(ENABLE, True):
        logger.info("no consolidated KV events: %s is off", ENABLE)
        return False
    if not switch(SWITCH, False):
        logger.info(
            "no consolidated KV events: the engine's own are followed as they are (%s is off)",
            SWITCH,
        )
        return False
    return True


def mode() -> str:
    """`dedup` or `passthrough`. ValueError for another value; blank is `dedup`."""
    value = os.environ.get(MODE, "").strip().lower() or "dedup"
    if value not in ("dedup", "passthrough"):
        raise ValueError(f"{MODE}: {value!r} is neither dedup nor passthrough")
    return value


def output_endpoints() -> tuple[str, str]:
    """Where the consolidated stream is bound, and where to connect to it."""
    leader = port(LEADER_PORT, DEFAULT_LEADER_PORT)
    output = leader + OUTPUT_OFFSET
    if output > MAX_PORT:
        raise ValueError(
            f"{LEADER_PORT}: {leader} + {OUTPUT_OFFSET} is above {MAX_PORT}: "
            f"take at most {MAX_PORT - OUTPUT_OFFSET}"
        )
    return f"tcp://0.0.0.0:{output}", f"tcp://127.0.0.1:{output}"
