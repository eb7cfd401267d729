"""The connector under test with known measurements, for cases about the hits that are loaded.

vLLM loads MeasuredConnector by name. Only the measurements differ from BlockyardConnector: every
engine computes TOKEN_SECONDS for each token and loads for LOAD_SECONDS. So the decision of a hit
does not depend on the machine. All loads of ShortConnector are short ones.
"""

from __future__ import annotations

from typing import Any

from blockyard.pace import Pace
from blockyard.vllm import scheduler
from blockyard.vllm.connector import BlockyardConnector

TOKEN_SECONDS = 0.001
LOAD_SECONDS = 0.7


class KnownPace(Pace):
    """A Pace that has its measurements from the start and takes no others."""

    def __init__(self, fixed: int, block_tokens: int, step_tokens: int) -> None:
        super().__init__(fixed, block_tokens, step_tokens)
        for tokens in (1, 32, 1000):
            self.steps.add(tokens, tokens * TOKEN_SECONDS)
        for blocks in (1, 8, 32):
            self.loads.add(blocks, LOAD_SECONDS)

    def begin_step(self, tokens: int, requests: int, now: float) -> None:
        return

    def end_step(self, now: float) -> None:
        return

    def end_load(self, rid: str, ok: bool, now: float) -> None:
        self.forget(rid)


class ShortPace(KnownPace):
    """A KnownPace with which every load is a short one, without any measurement."""

    def fits_step(self, blocks: int, alone: bool) -> bool:
        return True


class ShortConnector(BlockyardConnector):
    """BlockyardConnector with a ShortPace. vLLM loads it by kv_connector_module_path."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        scheduler.Pace = ShortPace  # type: ignore[misc]
        super().__init__(vllm_config, role, kv_cache_config)


class MeasuredConnector(BlockyardConnector):
    """BlockyardConnector with a KnownPace. vLLM loads it by kv_connector_module_path."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        scheduler.Pace = KnownPace  # type: ignore[misc]
        super().__init__(vllm_config, role, kv_cache_config)
