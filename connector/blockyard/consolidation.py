"""The endpoint and mode of a rank's consolidated event stream, by KVBM's rules.

The agent merges the engine's events with its own and publishes them in vLLM's format. Dynamo's
worker subscribes to this stream instead of the engine's. KVBM's connector publishes the stream
itself. Blockyard's connector sends the endpoint and the mode to the agent in HELLO.
"""

from __future__ import annotations

import logging
import os
import re

ENABLE = "DYN_KVBM_KV_EVENTS_ENABLE_CONSOLIDATOR"
MODE = "DYN_KVBM_KV_EVENTS_CONSOLIDATOR_MODE"
LEADER_PORT = "DYN_KVBM_LEADER_ZMQ_PUB_PORT"

DEFAULT_LEADER_PORT = 56001
OUTPUT_OFFSET = 1000  # the consolidated stream is this far above the leader's port
MAX_PORT = 65535
# KVBM has no "tiered" mode. It reports each tier; the other modes report one tier.
MODES = ("tiered", "dedup", "passthrough")

_YES = ("1", "true", "on", "yes")
_NO = ("0", "false", "off", "no")
_BIND = re.compile(r"tcp://(.+):([0-9]{1,5})")

_log = logging.getLogger(__name__)


def switch(name: str, default: bool) -> bool:
    """A yes-or-no variable; blank is the default. ValueError names the variable."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    word = value.lower()
    if word not in _YES and word not in _NO:
        raise ValueError(f"{name}: {value!r} is none of {', '.join(_YES + _NO)}")
    return word in _YES


def port(name: str, default: int) -> int:
    """A port from a variable, 1..65535; blank is the default. ValueError names the variable."""
    value = os.environ.get(name, "").strip()
    if not value:
        return default
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= MAX_PORT:
        raise ValueError(f"{name}: {value!r} is no port of 1..{MAX_PORT}")
    return int(value)


def named(variable: str) -> bool:
    """Whether a variable is set and not blank."""
    return bool(os.environ.get(variable, "").strip())


def mode(default: str) -> str:
    """The mode: one of MODES, or the default when blank. ValueError for another value."""
    value = os.environ.get(MODE, "").strip().lower() or default
    if value not in (*MODES, default):
        raise ValueError(f"{MODE}: {value!r} is none of {', '.join(MODES)}")
    return value


def output_port() -> int:
    """The consolidated stream's port. ValueError when that port exceeds 65535."""
    leader = port(LEADER_PORT, DEFAULT_LEADER_PORT)
    if leader + OUTPUT_OFFSET > MAX_PORT:
        raise ValueError(
            f"{LEADER_PORT}: {leader} + {OUTPUT_OFFSET} is above {MAX_PORT}: "
            f"take at most {MAX_PORT - OUTPUT_OFFSET}"
        )
    return leader + OUTPUT_OFFSET


def stream(bind: str | None, rank: int = 0) -> dict[str, str]:
    """HelloFields for the consolidated stream; empty where KVBM's switch is off.

    bind is the endpoint in the engine's configuration. With None, KVBM's variable gives the port.
    Without that variable the agent chooses the endpoint. rank is added to the port, because each
    rank on a node has a stream. An unusable value is logged, and the agent chooses.
    """
    try:
        if not switch(ENABLE, True):
            return {}
        if bind is None and named(LEADER_PORT):
            bind = f"tcp://0.0.0.0:{output_port()}"
        found = {"consolidator_mode": mode("")}
        if bind is not None:
            found["consolidated_endpoint"] = _shifted(bind, rank)
        return found
    except ValueError as err:
        _log.warning("the agent chooses the endpoint of consolidated events: %s", err)
        return {}


def _shifted(bind: str, rank: int) -> str:
    match = _BIND.fullmatch(bind)
    if match is None or not 1 <= int(match[2]) + rank <= MAX_PORT:
        raise ValueError(f"{bind!r} for rank {rank} is no tcp://HOST:PORT, 1..{MAX_PORT}")
    return f"tcp://{match[1]}:{int(match[2]) + rank}"
