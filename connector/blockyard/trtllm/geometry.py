"""The memory layout of a worker's KV cache, from the objects that TensorRT-LLM registers.

The V1 manager registers one pool tensor, [blocks, layers, K and V, ...], with contiguous blocks.
The V2 manager describes regions. A region is a byte range that repeats for each page slot of a
layer group. A Pool describes both.

Unsupported refuses caches with incomplete blocks. Groups with a sliding window lose pages. The
scales of a V1 pool with 4-bit elements are in another pool, which the engine does not register.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple


class Unsupported(Exception):
    """The connector does not support this KV cache. The message says why."""


class Region(NamedTuple):
    """A byte range of one layer group. Page slot i has `size` bytes at base + i*stride."""

    group: int
    base: int
    stride: int
    size: int


@dataclass(frozen=True)
class BlockLayout:
    """The layout of a block on one worker, equal on all workers of an engine.

    share_bytes: bytes of the worker's share of a block. layers, outer: 1 when unknown. width: bytes
    of an element. dtype: name of the element type. replicated: all ranks hold the same bytes.
    stable: a request keeps its blocks until its end. The V2 manager is not stable: it may take the
    blocks and run the request again. shape, digest: identify the memory layout in the namespace.
    """

    share_bytes: int
    layers: int
    outer: int
    width: int
    dtype: str
    replicated: bool
    stable: bool
    shape: str
    digest: str


@dataclass(frozen=True)
class Pool:
    """One worker's KV cache.

    regions: in the order of a stored block. blocks: number of page slots that every region has.
    device: `cpu` or `cuda:N`.
    """

    layout: BlockLayout
    regions: tuple[Region, ...]
    blocks: int
    device: str


def _pool(regions: list[Region], blocks: int, device: str, **layout: Any) -> Pool:
    parts = repr([(region.group, region.size) for region in regions])
    digest = hashlib.sha256(parts.encode()).hexdigest()[:16]
    share = sum(region.size for region in regions)
    described = BlockLayout(share_bytes=share, digest=digest, **layout)
    return Pool(described, tuple(regions), blocks, device)


def of_tensor(tensor: Any) -> Pool:
    """The pool of the V1 manager's tensor: [blocks, layers, outer, ...], contiguous in a block."""
    shape = [int(n) for n in tensor.shape]
    width = int(tensor.element_size())
    dtype = str(tensor.dtype).removeprefix("torch.")
    if len(shape) < 3 or min(shape) < 1:
        raise Unsupported(f"KV pool of shape {shape}, want [blocks, layers, K and V, ...]")
    _whole_elements(dtype)
    inner = math.prod(shape[1:])
    expected = [math.prod(shape[i + 1 :]) for i in range(1, len(shape))]
    strides = [int(n) for n in tensor.stride()]
    if strides[1:] != expected or strides[0] < inner:
        raise Unsupported(f"KV pool of shape {shape} with strides {strides} is not contiguous")
    region = Region(0, int(tensor.data_ptr()), strides[0] * width, inner * width)
    return _pool(
        [region],
        shape[0],
        str(tensor.device),
        layers=shape[1],
        outer=min(shape[2], 2),
        width=width,
        dtype=dtype,
        # MLA has one latent cache in place of K and V. Ranks do not shard it.
        replicated=shape[2] == 1,
        stable=True,
        shape="v1" + "x".join(str(n) for n in shape[1:]),
    )


def of_layout(layout: Any, device: str, dtype: str) -> Pool:
    """The pool of the V2 manager's layout description, which has no device and element type.

    Every rank stores the replicated regions too, which costs space but is correct.
    """
    regions: list[Region] = []
    names: list[str] = []
    slots: list[int] = []
    for number, group in enumerate(sorted(layout.groups, key=lambda g: g.layer_group_id)):
        if group.layer_group_id != number:
            raise Unsupported(f"layer groups are not numbered from 0: {group.layer_group_id}")
        if group.window_size is not None:
            raise Unsupported(f"layer group {number} has a window of {group.window_size} tokens")
        for part in (*group.regions, *group.replicated_regions):
            if part.size < 1 or part.stride < part.size or part.num_slots < 1:
                raise Unsupported(
                    f"layer group {number}: region of {part.size} bytes, stride {part.stride}, "
                    f"{part.num_slots} slots"
                )
            regions.append(Region(number, int(part.base), int(part.stride), int(part.size)))
            slots.append(int(part.num_slots))
            names += [f"{number}.{b.layer_id}.{b.role}x{b.expansion}" for b in part.buffers]
    if not regions:
        raise Unsupported("the KV cache layout has no regions")
    layers = sum(len(group.layer_ids) for group in layout.groups)
    return _pool(
        regions,
        min(slots),
        device,
        layers=max(layers, 1),
        outer=1,
        width=1,
        dtype=dtype,
        replicated=False,
        stable=False,
        shape="v2" + hashlib.sha256(" ".join(names).encode()).hexdigest()[:16],
    )


def _whole_elements(dtype: str) -> None:
    name = dtype.lower()
    if "fp4" in name or "float4" in name or "e2m1" in name:
        raise Unsupported(
            f"KV cache of {dtype} with the V1 manager: its scales are in a pool of their own, "
            "which the engine does not register (set kv_cache_config.use_kv_cache_manager_v2)"
        )
