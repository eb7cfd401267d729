"""vLLM's own host tier on a machine without a GPU, for comparisons.

vLLM's OffloadingConnector loads HostTier by name. Scheduler, keys, lookups and eviction are vLLM's
own. Only the copies differ: vLLM's worker needs a CUDA stream, this one copies at once.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    GPULoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec


class HostCopies(OffloadingWorker):
    """Copies pages between vLLM's KV tensors and host memory. chunks: blocks of the host memory."""

    def __init__(self, caches: CanonicalKVCaches, chunks: int) -> None:
        self._device = [entry.tensor for entry in caches.tensors]
        self._host = [
            torch.zeros((chunks, entry.page_size_bytes), dtype=torch.int8)
            for entry in caches.tensors
        ]
        self._groups = caches.group_data_refs
        self._ended: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: Any) -> bool:
        blocks = zip(src_spec.block_ids.tolist(), dst_spec.block_ids.tolist(), strict=True)
        return self._copy(job_id, src_spec.group_sizes, list(blocks), self._device, self._host)

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: GPULoadStoreSpec) -> bool:
        blocks = zip(src_spec.block_ids.tolist(), dst_spec.block_ids.tolist(), strict=True)
        return self._copy(job_id, dst_spec.group_sizes, list(blocks), self._host, self._device)

    def _copy(
        self,
        job: int,
        sizes: Sequence[int],
        blocks: list[tuple[int, int]],
        sources: list[torch.Tensor],
        targets: list[torch.Tensor],
    ) -> bool:
        """Copies pairs of blocks, which are in the order of the groups. sizes: pairs by group."""
        began, at, copied = time.perf_counter(), 0, 0
        for layers, count in zip(self._groups, sizes, strict=True):
            for source, target in blocks[at : at + count]:
                for layer in layers:
                    size = layer.page_size_bytes
                    page = sources[layer.tensor_idx][source, :size]
                    targets[layer.tensor_idx][target, :size].copy_(page)
                    copied += size
            at += count
        seconds = time.perf_counter() - began
        self._ended.append(
            TransferResult(job, success=True, transfer_size=copied, transfer_time=seconds)
        )
        return True

    def get_finished(self) -> list[TransferResult]:
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        return  # a copy ends before its call does


class HostTier(CPUOffloadingSpec):
    """vLLM's CPUOffloadingSpec with HostCopies. It has one block in each chunk, vLLM's default."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            self._worker = HostCopies(kv_caches, self.num_chunks)
        return self._worker
