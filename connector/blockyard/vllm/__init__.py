"""The connector for vLLM: `kv_connector_module_path` "blockyard.vllm", class BlockyardConnector.

Importing this package imports no vLLM; the class does, when it is first asked for.
"""

from __future__ import annotations

from typing import Any

__all__ = ["BlockyardConnector"]


def __getattr__(name: str) -> Any:
    if name == "BlockyardConnector":
        from blockyard.vllm.connector import BlockyardConnector

        return BlockyardConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
