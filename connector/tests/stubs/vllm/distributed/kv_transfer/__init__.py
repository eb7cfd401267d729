"""Stand-in for vllm.distributed.kv_transfer: the process's connector."""

from __future__ import annotations

from typing import Any

_group: Any = None


def set_kv_transfer_group(connector: Any) -> None:
    """Sets the connector of this process, for tests."""
    global _group
    _group = connector


def has_kv_transfer_group() -> bool:
    """Whether this process has a connector."""
    return _group is not None


def get_kv_transfer_group() -> Any:
    """The connector of this process."""
    return _group
