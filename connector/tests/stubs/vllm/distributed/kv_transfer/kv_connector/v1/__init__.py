"""Stand-in for the part of vLLM that the connector touches; used where vLLM is not installed."""
