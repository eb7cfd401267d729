"""What the connector costs and gains in a real vLLM on CPU: `make bench-connector`."""
