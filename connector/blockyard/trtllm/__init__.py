"""Blockyard's connector for TensorRT-LLM: BlockyardLeader (scheduler class) and BlockyardWorker.

Both are tested against stand-ins of TensorRT-LLM's base classes with a real agent; no real
TensorRT-LLM has run them. They are imported on first use, because they need TensorRT-LLM; the
ImportError without it names what is missing.

The engine gives a connector no channel from workers to scheduler, and calls neither while it is
idle. So leader and workers have a channel of their own (crew.py), and everything that is not a
hook's own answer travels there. Nor is there a way to report a failed load: leader.py and
worker.py say what is done about that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blockyard.trtllm.leader import BlockyardLeader
    from blockyard.trtllm.worker import BlockyardWorker

__all__ = ["BlockyardLeader", "BlockyardWorker"]


def __getattr__(name: str) -> Any:
    if name == "BlockyardLeader":
        from blockyard.trtllm.leader import BlockyardLeader

        return BlockyardLeader
    if name == "BlockyardWorker":
        from blockyard.trtllm.worker import BlockyardWorker

        return BlockyardWorker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
