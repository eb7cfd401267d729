"""Stand-in for vllm.version."""

__version__ = "0.32.0"
