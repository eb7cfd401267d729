"""How a worker's KV cache lies in memory, from what TensorRT-LLM registers.

The V1 manager hands over one pool tensor, [blocks, layers, K and V, ...], whose blocks are
contiguous. The V2 manager describes regions: byte ranges that repeat for each page slot, in one
or more layer groups. Both become the same list of pages.

What cannot be kept whole is refused with Unsupported: groups with a sliding window, whose blocks
lose their pages, and a V1 pool with 4-bit elements, whose scales are in another pool that the
engine does not hand over.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple


class Unsupported(Exception):
    """A KV cache that the connector must leave alone; the message says why."""


class Region(NamedTuple):
    """Bytes of one layer group: those of page slot i are at base + i*stride, `size` of them."""

    group: int
    base: int
    stride: int
    size: int


@dataclass(frozen=True)
class Form:
    """What a block is made of on one worker; equal on all of an engine.

    share_bytes: size of the worker's part of a block. layers, outer: as far as they are known,
    else 1. width: bytes of an element. dtype: its name. replicated: all ranks hold the same
    bytes. stable: a request keeps its blocks until it ends; the V2 manager may take them away and
    run the request again. shape, digest: what distinguishes memory layouts, for the namespace.
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

    regions: in the order in which they lie in a stored block. blocks: page slots that every
    region has. device: `cpu` or `cuda:N`.
    """

    form: Form
    regions: tuple[Region, ...]
    blocks: int
    device: str


def _pool(regions: list[Region], blocks: int, device: str, **form: Any) -> Pool:
    parts = repr([(region.group, region.size) for region in regions])
    digest = hashlib.sha256(parts.encode()).hexdigest()[:16]
    share = sum(region.size for region in regions)
    return Pool(Form(share_bytes=share, digest=digest, **form), tuple(regions), blocks, device)


def of_tensor(tensor: Any) -> Pool:
    """The V1 manager's pool tensor: [blocks, layers, outer, ...], contiguous within a block."""
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
        # One entry where others have K and V is the latent cache of MLA, which is not sharded.
        replicated=shape[2] == 1,
        stable=True,
        shape="v1" + "x".join(str(n) for n in shape[1:]),
    )


def of_layout(layout: Any, device: str, dtype: str) -> Pool:
    """The V2 manager's layout description; element type and device come from elsewhere.

    Replicated regions are stored by each rank like the others: right, if not as small as it
    could be.
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
            "which the engine does not hand over (kv_cache_config.use_kv_cache_manager_v2)"
        )
