"""Blockyard's connector for TensorRT-LLM: BlockyardLeader (scheduler class) and BlockyardWorker.

Tests run both with a real agent and stand-ins of TensorRT-LLM's base classes. No real TensorRT-LLM
has run them. The first access to a class imports TensorRT-LLM. The ImportError without it names the
missing modules.

TensorRT-LLM has no channel from workers to scheduler, and calls no hook while it is idle. So the
leader and the workers exchange orders and reports over a channel of their own (crew.py).
TensorRT-LLM has no report of a failed load either: see leader.py and worker.py.
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
