"""Where the agent is to bind a rank's consolidated event stream, by KVBM's rules.

KVBM's connector merged the engine's events with its block manager's and published them, in vLLM's
format, on a port that Dynamo's worker follows instead of the engine. Here the agent does that; the
connector tells it in HELLO where the worker expects the stream, and in which mode.
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
# tiered is not KVBM's: tiers as they are, instead of all as one.
MODES = ("tiered", "dedup", "passthrough")

_YES = ("1", "true", "on", "yes")
_NO = ("0", "false", "off", "no")
_BIND = re.compile(r"tcp://(.+):([0-9]{1,5})")

_log = logging.getLogger(__name__)


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


def named(variable: str) -> bool:
    """Whether a variable says anything."""
    return bool(os.environ.get(variable, "").strip())


def mode(default: str) -> str:
    """One of MODES. ValueError for another value; blank is the default."""
    value = os.environ.get(MODE, "").strip().lower() or default
    if value not in (*MODES, default):
        raise ValueError(f"{MODE}: {value!r} is none of {', '.join(MODES)}")
    return value


def output_port() -> int:
    """The consolidated stream's port. ValueError where none is so far above the leader's."""
    leader = port(LEADER_PORT, DEFAULT_LEADER_PORT)
    if leader + OUTPUT_OFFSET > MAX_PORT:
        raise ValueError(
            f"{LEADER_PORT}: {leader} + {OUTPUT_OFFSET} is above {MAX_PORT}: "
            f"take at most {MAX_PORT - OUTPUT_OFFSET}"
        )
    return leader + OUTPUT_OFFSET


def stream(bind: str | None, rank: int = 0) -> dict[str, str]:
    """What HELLO says of the consolidated stream, as HelloFields names it.

    bind is where the engine's configuration says that the stream is; None takes KVBM's port, if its
    variable names one, and leaves the place to the agent otherwise. rank is added to the port:
    ranks of one engine on one node each have a stream. Nothing is said where KVBM's switch is off.
    Of a value that cannot be used the log tells, and the agent decides.
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
        _log.warning("the agent decides where it publishes consolidated events: %s", err)
        return {}


def _shifted(bind: str, rank: int) -> str:
    match = _BIND.fullmatch(bind)
    if match is None or not 1 <= int(match[2]) + rank <= MAX_PORT:
        raise ValueError(f"{bind!r} for rank {rank} is no tcp://HOST:PORT, 1..{MAX_PORT}")
    return f"tcp://{match[1]}:{int(match[2]) + rank}"
