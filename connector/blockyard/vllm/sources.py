"""The tiers of a hit, as vLLM's metrics name them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

try:
    from vllm.v1.metrics.cache_hit_source import CacheHitSource
except ImportError:  # vLLM before 0.32 has no hit sources
    CacheHitSource = None  # type: ignore[assignment,misc]

SOURCE_DISK = 2


def hit_sources(sources: bytes | None, tokens: int, block_tokens: int) -> Mapping[Any, int]:
    """The tokens of a hit by tier. sources: the tier of each block; None when unknown."""
    if CacheHitSource is None or tokens <= 0:
        return {}
    if sources is None:
        return {CacheHitSource.EXTERNAL_UNSPECIFIED: tokens}
    disk = sources[: tokens // block_tokens].count(SOURCE_DISK) * block_tokens
    split = {CacheHitSource.HOST: tokens - disk, CacheHitSource.DISK: disk}
    return {source: count for source, count in split.items() if count}
