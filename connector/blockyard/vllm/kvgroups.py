"""vLLM's KV groups as the groups of a namespace, and the hybrid models that are not served."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from blockyard.groups import CHUNKED, FULL, MAX_GROUPS, SLIDING, STATE, Group, Groups
from blockyard.vllm.geometry import FULL_ATTENTION, group_specs

# Kinds by the exact name of vLLM's spec, because a subclass may differ.
KINDS = {
    **dict.fromkeys(FULL_ATTENTION, FULL),
    "SlidingWindowSpec": SLIDING,
    "ChunkedLocalAttentionSpec": CHUNKED,
    "MambaSpec": STATE,
}
# The tokens of a window or of a chunk, by kind.
WINDOWS = {SLIDING: "sliding_window", CHUNKED: "attention_chunk_size"}
# Methods of speculative decoding whose draft layers, if any, keep KV of the confirmed tokens. The
# others keep what is no prefix's KV (extract_hidden_states), or read a block's later tokens.
METHODS = frozenset(
    {"ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "draft_model"}
    | {"eagle", "eagle3", "mtp"}
)


def is_hybrid(kv_cache_config: Any) -> bool:
    """Whether the blocks of different KV groups differ in kind or in tokens."""
    specs = [spec for group in group_specs(kv_cache_config) for spec in group]
    kinds = {type(spec).__name__ for spec in specs}
    return not kinds <= FULL_ATTENTION or len({spec.block_size for spec in specs}) > 1


def why_not_served(vllm_config: Any, kv_cache_config: Any) -> str:
    """Why a hybrid model cannot be served, for people. Empty: it can."""
    opened = group_specs(kv_cache_config)
    for specs in opened:
        kinds = {type(spec).__name__ for spec in specs}
        for kind in sorted(kinds - KINDS.keys()):
            return f"layers of kind {kind}: not supported"
        if len({_facts(spec) for spec in specs}) > 1:
            return f"a KV cache group has different layers: {sorted(map(_facts, specs))}"
        if reason := _why_not_group(specs[0]):
            (kind,) = {type(specs[0]).__name__}
            return f"layers of kind {kind}: {reason}"
    if not any(type(specs[0]).__name__ in FULL_ATTENTION for specs in opened):
        return "the model has no layers of full attention"
    if len(opened) > MAX_GROUPS:
        return f"{len(opened)} KV cache groups, at most {MAX_GROUPS} are supported"
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is not None:
        method = getattr(speculative, "method", None)
        if method not in METHODS:
            return f"a hybrid model with speculative decoding by {method!r} is not supported"
        if any(KINDS[type(specs[0]).__name__] == STATE for specs in opened):
            return "a hybrid model with states and speculative decoding is not supported"
    eagle = eagle_groups(vllm_config, kv_cache_config)
    if any(KINDS[type(opened[number][0]).__name__] == CHUNKED for number in eagle):
        return "vLLM serves no chunked attention beside a draft model of the next token"
    if int(getattr(vllm_config.parallel_config, "decode_context_parallel_size", 1) or 1) > 1:
        return "a hybrid model with decode context parallelism is not supported"
    if not getattr(vllm_config.cache_config, "enable_prefix_caching", False):
        return "vLLM's prefix caching is off, which chooses a hybrid model's blocks"
    if not _has_block_state():
        return "this vLLM does not tell connectors the blocks of a hybrid model (0.32 and later do)"
    return ""


def eagle_groups(vllm_config: Any, kv_cache_config: Any) -> frozenset[int]:
    """The groups of whose hits vLLM drops the last block, because a draft model computes it again.

    Those that vLLM marks, or all groups if it marks none.
    """
    groups = kv_cache_config.kv_cache_groups
    marked = [n for n, group in enumerate(groups) if getattr(group, "is_eagle_group", False)]
    speculative = getattr(vllm_config, "speculative_config", None)
    drops = getattr(speculative, "use_eagle_block_drop", None) or getattr(
        speculative, "use_eagle", None
    )
    if not marked and drops is not None and drops():
        return frozenset(range(len(groups)))
    return frozenset(marked)


def _facts(spec: Any) -> tuple[str, int, int]:
    return type(spec).__name__, spec.block_size, _window(spec)


def _window(spec: Any) -> int:
    """Tokens of a window or a chunk. 0: the layers read the whole prompt, or a state."""
    name = WINDOWS.get(KINDS.get(type(spec).__name__, ""))
    return int(getattr(spec, name, None) or 0) if name else 0


def _why_not_group(spec: Any) -> str:
    if getattr(spec, "non_causal", False):
        return "attention is not causal: KV of a prefix depends on what follows"
    if getattr(spec, "extra_retained_tokens", 0):
        return "vLLM keeps more tokens than the window"
    if not getattr(spec, "prefix_cacheable", True):
        return "vLLM does not cache them"
    if KINDS[type(spec).__name__] == STATE:
        mode = getattr(spec, "mamba_cache_mode", "none")
        if mode != "align":
            return f"mamba_cache_mode is {mode!r}, and only the states of 'align' can be restored"
        if getattr(spec, "num_speculative_blocks", 0):
            return "vLLM keeps states of speculative tokens beside those of a prefix"
    return ""


def _has_block_state() -> bool:
    try:
        from vllm.v1.core.sched.output import SchedulerOutput
    except ImportError:
        return True  # the tests' stand-ins
    return "kv_connector_block_state" in SchedulerOutput.__dataclass_fields__


def groups_of(
    vllm_config: Any, kv_cache_config: Any, block_bytes: Sequence[int], pp: int = 1
) -> Groups:
    """The groups of a served hybrid model. block_bytes: by group. ValueError when out of range."""
    groups = []
    eagle = eagle_groups(vllm_config, kv_cache_config)
    for number, (group, specs, size) in enumerate(
        zip(kv_cache_config.kv_cache_groups, group_specs(kv_cache_config), block_bytes, strict=True)
    ):
        spec = specs[0]
        groups.append(
            Group(
                kind=KINDS[type(spec).__name__],
                window=_window(spec),
                block_size=spec.block_size,
                block_bytes=size,
                layers=len(group.layer_names) * pp,
                eagle=number in eagle,
            )
        )
    return Groups(groups)
