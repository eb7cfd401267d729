"""The order of KV in the engine's memory: what the connector asks vLLM for, and what vLLM made.

vLLM's default keeps each layer's blocks together, so a block of a model with 80 layers lies in 80
places. In a block-first layout a block's layers are neighbours, and a copy of the block is one run
of bytes. vLLM takes the connector's answer as a preference. Only the tensors' strides tell what it
made.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from blockyard.mover import Pages
from blockyard.settings import BLOCK_FIRST, Settings

_log = logging.getLogger("blockyard.vllm")

# Layers within a block, with heads before tokens, and with tokens before heads.
_HEADS_FIRST = "BLHNC"
_TOKENS_FIRST = "BLNHC"
# Compute capability of GPUs whose attention kernels read heads first.
_BLACKWELL = 10


def required_layout(settings: Settings) -> str | None:
    """The answer to vLLM's get_required_kvcache_layout; None without a preference.

    The setting `block-first` takes the order of heads and tokens that the GPU's kernels have
    without it. vLLM warns and takes another layout when a backend does not support the answer.
    """
    if not settings.enabled or not settings.kv_layout:
        return None
    wanted = settings.kv_layout
    if wanted == BLOCK_FIRST:
        wanted = _TOKENS_FIRST
        capability = _platform().get_device_capability()
        if capability is not None and capability.major == _BLACKWELL:
            wanted = _HEADS_FIRST
    if wanted not in _known():
        _log.warning("kv_layout is %s: this vLLM has no layout %s", settings.kv_layout, wanted)
        return None
    return wanted


def _platform() -> Any:
    from vllm.platforms import current_platform

    return current_platform


def _known() -> frozenset[str]:
    """The layouts of this vLLM. Before 0.32 it had none with blocks first."""
    try:
        from vllm.v1.kv_cache_layout import KVCacheLayout
    except ImportError:
        return frozenset()
    return frozenset(layout.name for layout in KVCacheLayout)


def note_runs(settings: Settings, pages: Pages) -> None:
    """Logs in how many places of the engine's memory a block lies.

    A warning when the setting asks for blocks first and vLLM has made another layout.
    """
    runs = max(Counter(page.group for page in pages.pages).values())
    if runs > 1 and settings.kv_layout:
        _log.warning(
            "kv_layout is %s, but a block lies in %d places of the engine's memory: its attention"
            " backend takes no such layout, or VLLM_KV_CACHE_LAYOUT overrides the setting",
            settings.kv_layout,
            runs,
        )
    elif runs == 1:
        _log.info("a block lies in one place of the engine's memory")
    else:
        _log.info("a block lies in %d places of the engine's memory", runs)
