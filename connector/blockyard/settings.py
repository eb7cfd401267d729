"""Settings of the connector, from the engine's JSON and from the environment.

Every setting is optional. A key of kv_connector_extra_config comes before the environment
variable BLOCKYARD_<KEY>, which comes before the default. An unknown key is an error, because a
misspelt setting that is silently ignored costs more than an engine that does not start. An unknown
variable is only warned of: it may be another program's.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

DEFAULT_SOCKET = "/run/blockyard/agent.sock"
ENVIRONMENT_PREFIX = "BLOCKYARD_"
LOG_LEVELS = ("debug", "info", "warning", "error")
MAX_TEXT = 1024
MAX_U64 = 2**64 - 1

# Variables that others read: the agent's own, those of the package `kvbm` and of tests, and what
# Kubernetes sets in every container for a service whose name begins with "blockyard".
_OTHERS = frozenset(
    ENVIRONMENT_PREFIX + name
    for name in (
        "ADMIN ALLOW_UID CLUSTER DIRECT_IO DISCARD_HOST DISK_ALLOCATOR DISK_DIR DISK_FILTER"
        " DISK_SIZE DRAIN_TIMEOUT EXTENT_SIZE HOST_DIR HOST_SIZE IO_DEADLINE KVBM_METRICS NATS NODE"
        " NO_PREFETCH QUOTA ROUTER_HTTP ROUTER_MODE SCRUB_RATE ZERO_FILL BIN"
        " COSTS MODEL_SEED MODEL_STEPS VLLM_ENV"
    ).split()
)
_FOREIGN = re.compile(
    r"BLOCKYARD_(E2E|TEST)_|\w+_(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT|PORT_\d+_\w+)$"
)

_log = logging.getLogger(__name__)
_warned: set[str] = set()

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class SettingsError(ValueError):
    """A setting that cannot be used; the message names key, value and what is allowed."""


@dataclass(frozen=True)
class Settings:
    """What a connector was told to do.

    socket: path of the agent's socket.
    worker_id: the worker that a router sends requests to, unique in the cluster; 0 means that the
        engine's adapter derives it.
    enabled: False makes the connector answer "no cache" and connect to nothing.
    load, store: whether blocks are loaded and stored.
    min_load_blocks: hits of fewer blocks beyond the engine's own are not loaded.
    lookup_wait_ms: how long a lookup may wait for blocks on their way from disk, milliseconds.
    max_inflight_blocks: device blocks that stores may hold at a time; 0 means a tenth of the
        blocks that are free at the start.
    weights: fingerprint of the weights, given by a user who knows better than the connector.
    namespace_salt: engines with different salts share nothing.
    want_evicted: whether the agent tells the scheduler what it evicts (for counters only).
    stats: whether counters are sent to the agent, once a second.
    serving_endpoint: URL at which the engine takes requests, for those who route them.
    log_level: one of LOG_LEVELS, or empty for what the process's logging has.
    """

    socket: str = DEFAULT_SOCKET
    worker_id: int = 0
    enabled: bool = True
    load: bool = True
    store: bool = True
    min_load_blocks: int = 1
    lookup_wait_ms: int = 1000
    max_inflight_blocks: int = 0
    weights: str = ""
    namespace_salt: str = ""
    want_evicted: bool = False
    stats: bool = True
    serving_endpoint: str = ""
    log_level: str = ""

    @classmethod
    def read(
        cls, extra: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """The settings of one engine: `extra` is its kv_connector_extra_config.

        Raises SettingsError for a key that is unknown and for a value outside its range.
        """
        environ = os.environ if environ is None else environ
        given: dict[str, Any] = {}
        _warn_of_unknown(environ)
        for key in _CHECKS:
            variable = ENVIRONMENT_PREFIX + key.upper()
            if environ.get(variable):
                given[key] = _CHECKS[key](variable, environ[variable])
        for key, value in (extra or {}).items():
            if key not in _CHECKS:
                known = ", ".join(sorted(_CHECKS))
                raise SettingsError(f"kv_connector_extra_config has no key {key!r}; known: {known}")
            given[key] = _CHECKS[key](f"kv_connector_extra_config.{key}", value)
        return cls(**given)


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    """One line for each variable that looks like a setting and is none."""
    for name in environ:
        key = name.removeprefix(ENVIRONMENT_PREFIX)
        if key == name or key.lower() in _CHECKS or name in _OTHERS or name in _warned:
            continue
        if _FOREIGN.match(name):
            continue
        _warned.add(name)
        known = ", ".join(ENVIRONMENT_PREFIX + key.upper() for key in sorted(_CHECKS))
        _log.warning("environment variable %s is not a setting; known: %s", name, known)


def _flag(where: str, value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise SettingsError(f"{where}: {value!r}, want true or false")


def _number(low: int, high: int) -> Callable[[str, Any], int]:
    def check(where: str, value: Any) -> int:
        try:
            if isinstance(value, (bool, float)):
                raise ValueError
            number = int(value, 0) if isinstance(value, str) else int(value)
        except (TypeError, ValueError):
            raise SettingsError(f"{where}: {value!r}, want a whole number") from None
        if not low <= number <= high:
            raise SettingsError(f"{where}: {number}, want {low}..{high}")
        return number

    return check


def _text(low: int, high: int = MAX_TEXT) -> Callable[[str, Any], str]:
    def check(where: str, value: Any) -> str:
        if not isinstance(value, str):
            raise SettingsError(f"{where}: {value!r}, want a string")
        size = len(value.encode("utf-8", "surrogateescape"))
        if not low <= size <= high:
            raise SettingsError(f"{where}: {size} bytes, want {low}..{high}")
        return value

    return check


def _socket(where: str, value: Any) -> str:
    # 107 bytes is what fits into the kernel's socket address beside the final zero.
    path = _text(1, 107)(where, value)
    if not path.startswith("/"):
        raise SettingsError(f"{where}: {path!r}, want an absolute path")
    return path


def _level(where: str, value: Any) -> str:
    word = str(value).strip().lower()
    if word not in LOG_LEVELS:
        raise SettingsError(f"{where}: {value!r}, want one of {', '.join(LOG_LEVELS)}")
    return word


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "socket": _socket,
    "worker_id": _number(0, MAX_U64),
    "enabled": _flag,
    "load": _flag,
    "store": _flag,
    "min_load_blocks": _number(1, 2**20),
    "lookup_wait_ms": _number(0, 60_000),
    "max_inflight_blocks": _number(0, 2**24),
    "weights": _text(0, 512),
    "namespace_salt": _text(0, 256),
    "want_evicted": _flag,
    "stats": _flag,
    "serving_endpoint": _text(0, 256),
    "log_level": _level,
}

assert set(_CHECKS) == {field.name for field in fields(Settings)}
