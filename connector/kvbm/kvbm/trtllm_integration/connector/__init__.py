"""The two classes that TensorRT-LLM loads when connector_module names this module.

The import needs TensorRT-LLM. The ImportError without it says so.
"""

from kvbm.missing import explained

try:
    from blockyard.trtllm import BlockyardLeader, BlockyardWorker
except ModuleNotFoundError as err:
    raise explained(err, __name__, "tensorrt_llm", "TensorRT-LLM") from err

__all__ = ["DynamoKVBMConnectorLeader", "DynamoKVBMConnectorWorker"]


class DynamoKVBMConnectorLeader(BlockyardLeader):
    """Blockyard's scheduler side for TensorRT-LLM under KVBM's name."""


class DynamoKVBMConnectorWorker(BlockyardWorker):
    """Blockyard's worker side for TensorRT-LLM under KVBM's name."""
