"""Stand-ins for TensorRT-LLM: its base classes (tensorrt_llm) and an engine (executor)."""

import pathlib
import sys


def install() -> None:
    """Makes `import tensorrt_llm` find the stand-in if no real one is installed."""
    here = str(pathlib.Path(__file__).parent)
    if here not in sys.path:
        sys.path.append(here)
