"""TensorRT-LLM's connector base classes.

Their module moved from pyexecutor.kv_cache_connector to pyexecutor.connectors.kv_cache_connector.
This module tries both names, the new one first.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_MODULES = (
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",
)

__all__ = ["KvCacheConnectorScheduler", "KvCacheConnectorWorker"]


def _find() -> ModuleType:
    for name in _MODULES:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as err:
            # A missing dependency of an installed module is a broken installation. Its error must
            # not read as if TensorRT-LLM were missing.
            if err.name is None or not f"{name}.".startswith(f"{err.name}."):
                raise
    raise ImportError(
        "blockyard.trtllm needs TensorRT-LLM with the PyTorch backend's KV cache connector: "
        f"none of {', '.join(_MODULES)} can be imported"
    )


_module = _find()
KvCacheConnectorScheduler = _module.KvCacheConnectorScheduler
KvCacheConnectorWorker = _module.KvCacheConnectorWorker
