"""Settings of the connector, from the engine's JSON and from the environment.

Every setting is optional. A key of kv_connector_extra_config overrides the environment variable
BLOCKYARD_<KEY>. The variable overrides the default. An unknown key is an error: a misspelt setting
must not be ignored silently. An unknown variable is a warning: another program may use it.
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
BLOCK_FIRST = "block-first"
KV_LAYOUTS = ("", BLOCK_FIRST, "BLHNC", "BLNHC")
MAX_TEXT = 1024
MAX_U64 = 2**64 - 1

# Variables of other programs: the agent, the package `kvbm` and tests. Kubernetes sets _FOREIGN
# variables in every container for a service whose name begins with "blockyard".
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
    """An invalid setting. The message names the key, the value and the allowed values."""


class NotServedError(RuntimeError):
    """The connector cannot serve an engine whose setting `require` is true."""


@dataclass(frozen=True)
class Settings:
    """The settings of one connector.

    socket: path of the agent's socket.
    worker_id: the engine's worker id for routers, unique in the cluster. With 0 the engine's
        adapter derives the id.
    enabled: False makes the connector answer "no cache" and never connect.
    require: True ends the engine's start if the connector cannot serve its model or configuration.
        An agent that does not run ends no start.
    load, store: whether blocks are loaded and stored.
    min_load_blocks: hits of fewer blocks beyond the engine's own are not loaded. With 0, vLLM's
        connector measures which hits load sooner than the engine computes them.
    short_loads: whether a load may run within the step that computes the rest of the prompt, when
        its copy is expected to take less time than a step. vLLM's connector only.
    lookup_wait_ms: how long a lookup may wait for blocks that load from disk, in milliseconds.
    max_inflight_blocks: limit of device blocks that stores hold. 0 means a tenth of the blocks
        that are free at the start.
    weights: fingerprint of the weights, given by the user instead of the computed one.
    namespace_salt: engines with different salts share no blocks.
    want_evicted: whether the agent sends EVICTED to the scheduler (for counters only).
    stats: whether counters are sent to the agent, once a second.
    serving_endpoint: URL at which the engine takes requests, for routers.
    kv_layout: one of KV_LAYOUTS, which the engine is asked for. Empty asks for none. See
        vllm/layout.py.
    native: whether copies run in C. False, or a machine without compiler and without the built
        library, makes them run in Python.
    copy_threads: threads of the copies in C between plain memory and slots. 0 means one for each
        core, and at most four.
    log_level: one of LOG_LEVELS. Empty keeps the process's level.
    """

    socket: str = DEFAULT_SOCKET
    worker_id: int = 0
    enabled: bool = True
    require: bool = False
    load: bool = True
    store: bool = True
    min_load_blocks: int = 0
    short_loads: bool = True
    lookup_wait_ms: int = 1000
    max_inflight_blocks: int = 0
    weights: str = ""
    namespace_salt: str = ""
    want_evicted: bool = False
    stats: bool = True
    serving_endpoint: str = ""
    kv_layout: str = ""
    native: bool = True
    copy_threads: int = 0
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

    def decline(self, reason: str) -> None:
        """Raises NotServedError if `require` is true.

        Otherwise returns, and the caller lets the engine run without Blockyard. reason: why the
        connector cannot serve this engine, for people.
        """
        if self.require:
            raise NotServedError(
                f"Blockyard cannot serve this engine: {reason}. The setting `require` ends its"
                " start; without `require` the engine runs without Blockyard"
            )


def _warn_of_unknown(environ: Mapping[str, str]) -> None:
    """Logs a warning for each BLOCKYARD_ variable that is unknown."""
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


def _layout(where: str, value: Any) -> str:
    if value not in KV_LAYOUTS:
        raise SettingsError(f"{where}: {value!r}, want one of {', '.join(KV_LAYOUTS[1:])}")
    return str(value)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "socket": _socket,
    "worker_id": _number(0, MAX_U64),
    "enabled": _flag,
    "require": _flag,
    "load": _flag,
    "store": _flag,
    "min_load_blocks": _number(0, 2**20),
    "short_loads": _flag,
    "lookup_wait_ms": _number(0, 60_000),
    "max_inflight_blocks": _number(0, 2**24),
    "weights": _text(0, 512),
    "namespace_salt": _text(0, 256),
    "want_evicted": _flag,
    "stats": _flag,
    "serving_endpoint": _text(0, 256),
    "kv_layout": _layout,
    "native": _flag,
    "copy_threads": _number(0, 16),
    "log_level": _level,
}

assert set(_CHECKS) == {field.name for field in fields(Settings)}
