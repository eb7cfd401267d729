"""Stand-in for the part of vLLM that the connector uses, for machines without vLLM."""
