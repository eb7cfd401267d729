"""The connector for vLLM: `kv_connector_module_path` "blockyard.vllm", class BlockyardConnector.

Importing this package does not import vLLM. The first access to the class does.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BlockyardConnector"]


def __getattr__(name: str) -> Any:
    if name == "BlockyardConnector":
        from blockyard.vllm.connector import BlockyardConnector

        return BlockyardConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
