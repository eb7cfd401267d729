"""Blockyard's connector: keeps an inference engine's KV cache blocks in a node agent.

The core (everything beside the engines' own packages) is engine-neutral and needs the standard
library alone. The engines find their connectors in blockyard.vllm and blockyard.trtllm.
"""

__version__ = "0.1.0"
