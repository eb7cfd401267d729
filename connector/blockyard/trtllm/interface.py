"""TensorRT-LLM's connector base classes, wherever this release has them.

They moved from pyexecutor.kv_cache_connector to pyexecutor.connectors.kv_cache_connector. Both
places are tried, the new one first.
"""

from __future__ import annotations

import importlib
from types import ModuleType

_PLACES = (
    "tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector",
    "tensorrt_llm._torch.pyexecutor.kv_cache_connector",
)

__all__ = ["KvCacheConnectorScheduler", "KvCacheConnectorWorker"]


def _find() -> ModuleType:
    for place in _PLACES:
        try:
            return importlib.import_module(place)
        except ModuleNotFoundError as err:
            # A module that is there but lacks something of its own is a broken installation,
            # which must not look like a missing one.
            if err.name is None or not f"{place}.".startswith(f"{err.name}."):
                raise
    raise ImportError(
        "blockyard.trtllm needs TensorRT-LLM with the PyTorch backend's KV cache connector: "
        f"none of {', '.join(_PLACES)} can be imported"
    )


_module = _find()
KvCacheConnectorScheduler = _module.KvCacheConnectorScheduler
KvCacheConnectorWorker = _module.KvCacheConnectorWorker
