"""One worker of a crew: its layers' KV, and the connector's worker role."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from vllm.config import VllmConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    KVCacheConfig,
    SlidingWindowSpec,
)

from blockyard.vllm import BlockyardConnector, assembly, connector
from blockyard.vllm.geometry import Ranks

TOKENS = 16  # of a block
BLOCKS = 64
ROW = 8  # numbers of a token in a layer
DRAFT = "draft"  # a layer of a draft model


def first_read(spec: Any, computed: int) -> int:
    """The first token whose KV the next token reads."""
    if isinstance(spec, SlidingWindowSpec):
        return max(0, computed - spec.sliding_window + 1)
    if isinstance(spec, ChunkedLocalAttentionSpec):
        return computed // spec.attention_chunk_size * spec.attention_chunk_size
    return 0


class Worker:
    """One worker: its layers' KV and its side of the connector. shard: equal for equal KV."""

    def __init__(self, config: VllmConfig, kv: KVCacheConfig, ranks: Ranks, stages: list) -> None:
        self.shard = (ranks.pp_rank, ranks.tp_rank // ranks.replicas)
        # By KV group: its layers and their spec.
        self.groups = [(list(g.layer_names), g.kv_cache_spec) for g in kv.kv_cache_groups]
        self.kv = {
            # All blocks have as many bytes.
            name: torch.full((BLOCKS, spec.block_size, ROW * TOKENS // spec.block_size), -1.0)
            for layers, spec in self.groups
            for name in layers
        }
        with (
            mock.patch.object(assembly, "worker_ranks", lambda config, replicas: ranks),
            mock.patch.object(assembly, "gather_stages", lambda own: stages),
            mock.patch.object(connector, "_is_nested", lambda own: False),
        ):
            self.connector = BlockyardConnector(config, KVConnectorRole.WORKER, kv)
            self.connector.register_kv_caches(self.kv)
            self.handshake = self.connector.get_handshake_metadata()

    def row(self, layer: str, tokens: Sequence[int]) -> torch.Tensor:
        """The KV of the last of these tokens."""
        seed = zlib.crc32(repr((self.shard, layer, list(tokens))).encode()) % (1 << 20)
        return torch.arange(ROW, dtype=torch.float32) + seed

    def write(
        self, at: int, tables: Sequence[Sequence[int]], inputs: Sequence[int], known: Sequence[int]
    ) -> None:
        """Computes a token of the step's inputs. known: the tokens after the step."""
        for (layers, spec), table in zip(self.groups, tables, strict=True):
            for layer in layers:
                tokens = known[: at + 2] if layer == DRAFT else inputs[: at + 1]
                row = self.row(layer, tokens)
                block = self.kv[layer][table[at // spec.block_size]]
                block[at % spec.block_size] = row[: block.shape[-1]]

    def check(
        self, computed: int, tables: Sequence[Sequence[int]], tokens: Sequence[int]
    ) -> None:
        """AssertionError unless the KV that the next token reads is right."""
        for (layers, spec), table in zip(self.groups, tables, strict=True):
            for at in range(first_read(spec, computed), computed):
                for layer in layers:
                    found = self.kv[layer][table[at // spec.block_size], at % spec.block_size]
                    row = self.row(layer, tokens[: at + 2 if layer == DRAFT else at + 1])
                    if not torch.equal(found, row[: len(found)]):
                        raise AssertionError(f"{self.shard}, {layer}: token {at} has {found}")

    def copied(self) -> tuple[int, int]:
        """Blocks that this worker has loaded and stored."""
        loaded, stored, _ = self.connector._worker.session.copied()
        return loaded, stored
