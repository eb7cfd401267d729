"""A stand-in for TensorRT-LLM: its connector base classes, for tests without it."""

__version__ = "0.stand-in"
