"""Blockyard's connector: stores an inference engine's KV cache blocks in a node agent.

blockyard.vllm and blockyard.trtllm have the engines' connectors. The other modules are the
engine-neutral core. The core needs only the standard library.
"""

__version__ = "0.1.0"
