"""The connectors that vLLM loads when kv_connector_module_path names this module.

DynamoConnector keeps blocks in the node's agent. PdConnector combines it with NixlConnector for
prefill/decode. The import needs vLLM. The ImportError without it says so.
"""

from kvbm.missing import explained

try:
    from blockyard.vllm import BlockyardConnector

    from kvbm.vllm_integration.connector.pd_connector import (
        PdConnector,
        PdConnectorMetadata,
        PdHandshakeMetadata,
    )
except ModuleNotFoundError as err:
    raise explained(err, __name__, "vllm", "vLLM") from err

__all__ = ["DynamoConnector", "PdConnector", "PdConnectorMetadata", "PdHandshakeMetadata"]


class DynamoConnector(BlockyardConnector):
    """Blockyard's vLLM connector under KVBM's name, with the same settings."""
