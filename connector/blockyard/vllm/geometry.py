"""The bytes of a block: vLLM's KV tensors as pages, and each worker's share of a block.

The unit is the manager block, which vLLM's block ids name and the agent stores. Its bytes are
spread over one view per layer and over the engine's ranks. A slot holds them in one piece, ordered
by pipeline stage, then by tensor-parallel rank, then by KV group and layer. In a hybrid model a
slot has a block of one KV group.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from blockyard.mover import GeometryError, Page

# Limit of pieces in a layer's block. More pieces would be a few bytes each. vLLM's layouts have
# far fewer.
MAX_SEGMENTS = 1024
# Specs whose blocks hold the KV of their own tokens at fixed offsets until the request ends. Names
# are compared exactly, because a subclass may differ.
FULL_ATTENTION = frozenset({"FullAttentionSpec", "MLAAttentionSpec"})


def group_specs(kv_cache_config: Any) -> list[list[Any]]:
    """The layer specs of every KV group, wrappers of several specs opened."""
    opened = []
    for group in kv_cache_config.kv_cache_groups:
        spec = group.kv_cache_spec
        inner = getattr(spec, "kv_cache_specs", None)
        opened.append(list(inner.values()) if inner is not None else [spec])
    return opened


def full_spec(kv_cache_config: Any) -> Any:
    """The spec of the first group of full attention, or of the first group without one."""
    specs = [specs[0] for specs in group_specs(kv_cache_config)]
    return next((spec for spec in specs if type(spec).__name__ in FULL_ATTENTION), specs[0])


def why_unsupported(kv_cache_config: Any) -> str:
    """Why this model's blocks cannot be stored, for people. Empty: they can.

    kvgroups.why_not_served() has the reasons of hybrid models.
    """
    groups = kv_cache_config.kv_cache_groups
    if not groups:
        return "the model has no KV cache"
    for group, specs in zip(groups, group_specs(kv_cache_config)):
        if not getattr(group, "enable_kv_transfer", True) or getattr(group, "host_resident", False):
            return "a KV cache group is not for connectors (HiSparse)"
        for spec in specs:
            if getattr(spec, "non_causal", False):
                return "attention is not causal: KV of a prefix depends on what follows"
    return ""


def _sharded(spec: Any) -> bool:
    return bool(getattr(spec, "dcp_sharded", True))


def block_tokens(kv_cache_config: Any, dcp: int) -> int:
    """Tokens of one manager block, all ranks of a decode-context group together."""
    spec = group_specs(kv_cache_config)[0][0]
    return spec.block_size * (dcp if _sharded(spec) else 1)


def pages_of(
    kv_caches: Mapping[str, Any], kv_cache_config: Any, grouped: bool = False
) -> list[Page]:
    """The pages of this worker's layers, in the order in which a slot holds them.

    kv_caches: vLLM's layer views, as register_kv_caches gets them. Layers that share another
    layer's KV (the same bytes, addressed by the same group) appear once. grouped: a slot has a
    block of one group, so every group's pages begin at offset 0.
    """
    pages: list[Page] = []
    offset = 0
    blocks = kv_cache_config.num_blocks
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        seen: set[tuple[int, int]] = set()
        if grouped:
            offset = 0
        for layer, tensor in _tensors(group, kv_caches, grouped):
            for segment in _segments(layer, tensor, blocks):
                address, stride, size, limit = segment
                if (address, size) in seen:
                    continue
                seen.add((address, size))
                pages.append(Page(address, stride, size, offset, number, limit))
                offset += size
    if not pages:
        raise GeometryError("no layer of this worker has KV")
    return pages


def _tensors(group: Any, kv_caches: Mapping[str, Any], several: bool) -> Iterator[tuple[str, Any]]:
    """The tensors of a group's layers on this worker. several: a layer with a state has several."""
    for layer in group.layer_names:
        tensor = kv_caches.get(layer)
        if isinstance(tensor, (list, tuple)):
            if not several:
                raise GeometryError(f"layer {layer}: {len(tensor)} tensors, want one")
            for part in tensor:
                yield layer, part
        elif tensor is not None:
            yield layer, tensor


def _segments(layer: str, tensor: Any, blocks: int) -> Iterator[tuple[int, int, int, int]]:
    """Address, stride, bytes and storage limit of each contiguous run of a layer's block."""
    item = tensor.element_size()
    shape = list(tensor.shape)
    strides = [stride * item for stride in tensor.stride()]
    axis = _block_axis(layer, shape, blocks)
    ratio = shape[axis] // blocks
    stride = strides[axis] * ratio
    inner = [(strides[i], shape[i]) for i in range(len(shape)) if i != axis]
    if ratio > 1:
        # A manager block has `ratio` blocks of the attention backend.
        inner.append((strides[axis], ratio))
    run, outer = _contiguous(layer, inner, item)
    storage = tensor.untyped_storage()
    base = storage.data_ptr() + tensor.storage_offset() * item
    limit = storage.data_ptr() + storage.nbytes()
    for start in _starts(outer):
        address = base + start
        if address + (blocks - 1) * stride + run > limit:
            raise GeometryError(f"layer {layer}: block {blocks - 1} ends beyond its storage")
        yield address, stride, run, limit


def _block_axis(layer: str, shape: Sequence[int], blocks: int) -> int:
    """The axis that counts blocks: the first, or the second behind K and V."""
    for axis in (0, 1):
        if axis < len(shape) and shape[axis] >= blocks and shape[axis] % blocks == 0:
            if axis == 0 or (shape[0] == 2 and blocks > 2):
                return axis
    raise GeometryError(f"layer {layer}: shape {tuple(shape)} has no axis of {blocks} blocks")


def _contiguous(
    layer: str, inner: list[tuple[int, int]], item: int
) -> tuple[int, list[tuple[int, int]]]:
    """The contiguous run of bytes in a block, and the axes that repeat it (stride, count)."""
    run = item
    outer: list[tuple[int, int]] = []
    for stride, count in sorted(axis for axis in inner if axis[1] != 1):
        if stride <= 0:
            raise GeometryError(f"layer {layer}: an axis of stride {stride}")
        if stride == run and not outer:
            run *= count
        elif stride < run:
            raise GeometryError(f"layer {layer}: axes of its blocks overlap")
        else:
            outer.append((stride, count))
    pieces = 1
    for _, count in outer:
        pieces *= count
    if pieces > MAX_SEGMENTS:
        raise GeometryError(f"layer {layer}: blocks of {pieces} pieces, want 1..{MAX_SEGMENTS}")
    return run, outer


def _starts(outer: list[tuple[int, int]]) -> list[int]:
    starts = [0]
    for stride, count in reversed(outer):
        starts = [start + i * stride for start in starts for i in range(count)]
    return sorted(starts)


def digest_of(kv_caches: Mapping[str, Any], kv_cache_config: Any) -> str:
    """A digest that is equal for two workers whose shares have the same layout of bytes.

    The digest covers layers, element types and the order of the axes in memory. It omits addresses
    and the number of blocks, which may differ between engines that share blocks.
    """
    blocks = kv_cache_config.num_blocks
    facts = []
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        for layer, tensor in _tensors(group, kv_caches, True):
            shape, strides = list(tensor.shape), tensor.stride()
            axis = _block_axis(layer, shape, blocks)
            inner = sorted((i for i in range(len(shape)) if i != axis), key=lambda i: -strides[i])
            order = [(i, shape[i]) for i in inner]
            facts.append((number, layer, str(tensor.dtype), shape[axis] // blocks, order))
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Ranks:
    """A worker's ranks in its engine. replicas: number of adjacent tensor-parallel ranks with
    identical KV, such as MLA's."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    replicas: int = 1

    @property
    def stores(self) -> bool:
        """Whether this rank copies stores. Only the first of the ranks with equal bytes does."""
        return self.tp_rank % self.replicas == 0


def share_bytes(pages: Sequence[Page]) -> int:
    """The length of this worker's share of a slot."""
    return max(page.offset + page.bytes for page in pages)


def group_ends(pages: Sequence[Page], share_offset: int) -> tuple[int, ...]:
    """Where this worker's part of each group's block ends in a slot, with a slot for each group."""
    ends: dict[int, int] = {}
    for page in pages:
        ends[page.group] = max(ends.get(page.group, 0), share_offset + page.offset + page.bytes)
    return tuple(ends[group] for group in sorted(ends))


class Share(NamedTuple):
    """A worker's part of a block. total: bytes of all shares."""

    offset: int
    bytes: int
    total: int


def share_of(ranks: Ranks, stage_bytes: Sequence[int]) -> Share:
    """The share of a worker, given the bytes of one worker of every pipeline stage.

    Workers of one stage have equal shares; stages differ when layers do not divide evenly.
    """
    if len(stage_bytes) != ranks.pp_size:
        raise GeometryError(f"{len(stage_bytes)} stages reported, want {ranks.pp_size}")
    distinct = ranks.tp_size // ranks.replicas
    offset = distinct * sum(stage_bytes[: ranks.pp_rank])
    own = stage_bytes[ranks.pp_rank]
    return Share(offset + own * (ranks.tp_rank // ranks.replicas), own, distinct * sum(stage_bytes))
