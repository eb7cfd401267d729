"""Measures the connector's cost and gain in a real vLLM on CPU: `make bench-connector`."""
