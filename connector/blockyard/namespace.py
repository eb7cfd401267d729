"""The namespace of an engine and the identity of a request: they decide which blocks are shared.

The agent computes every block's key from the namespace, the identity and the tokens. This module
computes no key.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from .groups import Groups

# Ranges of docs/protocol.md, "HELLO".
MAX_TEXT = 1024
MAX_LAYERS = 4096
MAX_BLOCK_TOKENS = 4096
MAX_INNER = 2**24
MAX_WIDTH = 8
MAX_PARALLEL = 1024
MAX_BLOCK_BYTES = 2**28

LAYOUT = "fully_contiguous"


class NamespaceError(ValueError):
    """A namespace outside the protocol's ranges. The message names field, value and range."""


class Geometry(NamedTuple):
    """Five numbers whose product is the size of a block in bytes, over all local ranks."""

    num_layers: int
    outer_dim: int
    page_size: int
    inner_dim: int
    dtype_width_bytes: int

    @property
    def block_bytes(self) -> int:
        """Size of one block in bytes: the product of the five numbers."""
        layers, outer, page, inner, width = self
        return layers * outer * page * inner * width


def geometry_of(
    block_bytes: int, block_tokens: int, num_layers: int, outer_dim: int, width: int
) -> Geometry:
    """The geometry of blocks of block_bytes bytes and block_tokens tokens.

    The geometry has the layer count, outer dimension (2 for K and V) and element width when the
    bytes divide by them. Other blocks (inline scales, padded pages, mixed layer shapes) have the
    bytes per token, rounded up, as their inner dimension. Such a block may end in unused bytes.
    NamespaceError when the block is outside the protocol's ranges.
    """
    if not 1 <= block_bytes <= MAX_BLOCK_BYTES:
        raise NamespaceError(f"block of {block_bytes} bytes, want 1..{MAX_BLOCK_BYTES}")
    if not 1 <= block_tokens <= MAX_BLOCK_TOKENS:
        raise NamespaceError(f"block of {block_tokens} tokens, want 1..{MAX_BLOCK_TOKENS}")
    per_token = -(-block_bytes // block_tokens)
    for layers, outer, element in (
        (num_layers, outer_dim, width),
        (num_layers, 1, width),
        (num_layers, 1, 1),
        (1, 1, 1),
    ):
        if not (1 <= layers <= MAX_LAYERS and 1 <= outer <= 2 and 1 <= element <= MAX_WIDTH):
            continue
        inner, rest = divmod(per_token, layers * outer * element)
        if not rest and 1 <= inner <= MAX_INNER:
            return Geometry(layers, outer, block_tokens, inner, element)
    raise NamespaceError(f"{per_token} bytes per token, want at most {MAX_INNER}")


@dataclass(frozen=True)
class Namespace:
    """The properties that two engines must share to exchange blocks, as HELLO carries them."""

    model: str
    weights: str
    dtype: str
    num_layers: int
    outer_dim: int
    page_size: int
    inner_dim: int
    dtype_width_bytes: int
    kv_format: str
    layout: str = LAYOUT
    tp: int = 1
    pp: int = 1
    dcp: int = 1
    groups: Groups | None = None  # of a hybrid model; page_size is then their page

    def __post_init__(self) -> None:
        for name in ("model", "weights", "dtype", "kv_format", "layout"):
            size = len(getattr(self, name).encode())
            low = 1 if name == "model" else 0
            if not low <= size <= MAX_TEXT:
                raise NamespaceError(f"namespace {name}: {size} bytes, want {low}..{MAX_TEXT}")
        for name, high in (
            ("num_layers", MAX_LAYERS),
            ("outer_dim", 2),
            ("page_size", MAX_BLOCK_TOKENS),
            ("inner_dim", MAX_INNER),
            ("dtype_width_bytes", MAX_WIDTH),
            ("tp", MAX_PARALLEL),
            ("pp", MAX_PARALLEL),
            ("dcp", MAX_PARALLEL),
        ):
            value = getattr(self, name)
            if not 1 <= value <= high:
                raise NamespaceError(f"namespace {name}: {value}, want 1..{high}")
        if self.block_bytes > MAX_BLOCK_BYTES:
            raise NamespaceError(
                f"namespace: block of {self.block_bytes} bytes, want 1..{MAX_BLOCK_BYTES}"
            )

    @property
    def block_bytes(self) -> int:
        """Size of one block, all layers and all local ranks; with groups the largest block."""
        if self.groups is not None:
            return max(group.block_bytes for group in self.groups)
        return Geometry(
            self.num_layers,
            self.outer_dim,
            self.page_size,
            self.inner_dim,
            self.dtype_width_bytes,
        ).block_bytes

    def as_map(self) -> dict[str, Any]:
        """The map that HELLO carries."""
        fields = asdict(replace(self, groups=None))
        del fields["groups"]
        return fields if self.groups is None else {**fields, "groups": self.groups.as_maps()}


class Identity(NamedTuple):
    """The inputs of a request's blocks beside its tokens.

    lora: fingerprint of the adapter's files, empty for the base model; part of the block key.
    lora_name: the adapter's name; part of the event hashes. salt: cache salt, part of both.
    """

    lora: str = ""
    lora_name: str = ""
    salt: str = ""


BASE = Identity()


def bounded(text: str) -> str:
    """The text, or its hash when the text is too long for the protocol.

    Equal texts give equal results, and different texts different results, as a salt needs.
    """
    try:
        if len(text.encode()) <= MAX_TEXT:
            return text
    except UnicodeEncodeError:
        pass  # a lone surrogate: JSON can carry it, the protocol's UTF-8 cannot
    return "sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
