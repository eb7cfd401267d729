"""A real vLLM on CPU with the connector and a real agent, end to end: `make test-vllm`."""
