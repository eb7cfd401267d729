"""vLLM's own host tier and file tier on CPU, for comparison.

The benchmark uses vLLM's managers, file tier and connector unchanged. vLLM's copier between KV
cache and host memory needs a GPU, so MemcpyWorker replaces it. It calls the C library's memcpy for
each page, as a native copier would.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCaches,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec


class Rows:
    """The rows of a 2-D byte tensor: address of the first row, stride and bytes of a row."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor  # keeps the memory alive
        self.base = tensor.data_ptr()
        self.stride = tensor.stride(0) * tensor.element_size()
        self.bytes = tensor.shape[1] * tensor.element_size()


class MemcpyWorker(OffloadingWorker):
    """Copies in the engine's thread, inside the submit calls."""

    def __init__(self, device: list[Rows], host: list[Rows], region: Any = None) -> None:
        self._pairs = list(zip(device, host, strict=True))
        self._region = region
        self._done: list[TransferResult] = []

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: LoadStoreSpec) -> bool:
        return self._copy(job_id, src_spec, dst_spec, [(d, h) for d, h in self._pairs])

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: Any) -> bool:
        return self._copy(job_id, src_spec, dst_spec, [(h, d) for d, h in self._pairs])

    def _copy(self, job_id: int, src: Any, dst: Any, rows: list[tuple[Rows, Rows]]) -> bool:
        began, copied, memmove = time.perf_counter(), 0, ctypes.memmove
        ids = list(zip(src.block_ids.tolist(), dst.block_ids.tolist(), strict=True))
        for source, target in rows:
            for i, j in ids:
                memmove(
                    target.base + j * target.stride, source.base + i * source.stride, source.bytes
                )
            copied += len(ids) * source.bytes
        took = time.perf_counter() - began
        self._done.append(TransferResult(job_id, True, copied, took))
        return True

    def get_finished(self) -> list[TransferResult]:
        done, self._done = self._done, []
        return done

    def wait(self, job_ids: set[int]) -> None:
        return

    def shutdown(self) -> None:
        self._pairs = []
        if self._region is not None:
            self._region.cleanup()


def _device_rows(kv_caches: CanonicalKVCaches, blocks_per_chunk: int) -> list[Rows]:
    if blocks_per_chunk != 1 or len(kv_caches.group_data_refs) != 1:
        raise ValueError(
            f"{len(kv_caches.group_data_refs)} KV groups and chunks of {blocks_per_chunk} blocks, "
            "want one group and chunks of one block"
        )
    return [Rows(t.tensor) for t in kv_caches.tensors]


class HostTier(CPUOffloadingSpec):
    """vLLM's host tier, in this process's memory."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            device = _device_rows(kv_caches, self.blocks_per_chunk)
            host = [
                Rows(torch.zeros((self.num_chunks, rows.bytes), dtype=torch.int8))
                for rows in device
            ]
            self._worker = MemcpyWorker(device, host)
        return self._worker


class FileTier(TieringOffloadingSpec):
    """vLLM's host tier in shared memory, and its file tier."""

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        if self._worker is None:
            device = _device_rows(kv_caches, self.blocks_per_chunk)
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                num_chunks=self.num_chunks,
                rank=0,
                kv_bytes_per_chunk=self.kv_bytes_per_chunk,
                cpu_page_size=self.cpu_page_size_per_worker,
            )
            host = [Rows(region.create_next_worker_view(rows.bytes)) for rows in device]
            self._worker = MemcpyWorker(device, host, region)
        return self._worker
