"""Two baselines for the cost of hooks: a minimal correct connector, and one that does nothing.

In the correct one every block is a file in shared memory, named by vLLM's own block hash. A prompt
hits up to its last full block. The worker's hooks make the copies. A store references its blocks
in the engine's block pool. Prompts and decoded tokens are stored. The connector has no agent, no
limits and no checks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)


@dataclass
class Plan(KVConnectorMetadata):
    """The copies of a step: (block hash, block) pairs by request for loads, by job for stores."""

    loads: list[tuple[str, list[tuple[bytes, int]]]] = field(default_factory=list)
    stores: list[tuple[int, list[tuple[bytes, int]]]] = field(default_factory=list)


@dataclass
class Stored(KVConnectorWorkerMetadata):
    """The jobs whose blocks are in their files."""

    jobs: list[int]

    def aggregate(self, other: KVConnectorWorkerMetadata) -> Stored:
        raise NotImplementedError("the plain connector runs with one worker")


@dataclass
class State:
    """A running request: its device blocks, and how many of them have been offered."""

    request: Any
    blocks: list[int] = field(default_factory=list)
    offered: int = 0
    local: int = 0


class WithoutLayers(KVConnectorBase_V1, SupportsHMA):
    """A connector that does nothing for a single layer."""

    requires_kv_delivery = False

    def has_connector_metadata(self) -> bool:
        return False  # vLLM then skips the two callbacks of every layer

    def wait_for_layer_load(self, layer_name: str) -> None:
        return

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        return

    def wait_for_save(self) -> None:
        return


class PlainConnector(WithoutLayers):
    """Both roles. `directory` in the extra configuration is the directory of the files."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        extra = vllm_config.kv_transfer_config.kv_connector_extra_config
        self.directory: str = extra["directory"]
        self.block_tokens: int = vllm_config.cache_config.block_size
        self.pool: Any = None
        self.states: dict[str, State] = {}
        self.known: set[bytes] = set()
        self.held: dict[int, list[tuple[bytes, int]]] = {}
        self.plan = Plan()
        self.jobs = 0
        self.pages: list[Any] = []
        self.received: set[str] = set()
        self.stored: list[int] = []

    # The scheduler's side.

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.pool = gpu_block_pool

    def on_new_request(self, request: Any) -> None:
        self.states[request.request_id] = State(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        state = self.states[request.request_id]
        state.local = num_computed_tokens // self.block_tokens
        hits = 0
        for key in request.block_hashes[state.local :]:
            if key not in self.known:
                break
            hits += 1
        return hits * self.block_tokens, hits > 0

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        state = self.states[request.request_id]
        state.blocks = list(blocks.get_block_ids()[0])
        if num_external_tokens:
            upto = state.local + num_external_tokens // self.block_tokens
            keys = request.block_hashes[state.local : upto]
            pairs = list(zip(keys, state.blocks[state.local : upto]))
            self.plan.loads.append((request.request_id, pairs))

    def build_connector_meta(self, scheduler_output: Any) -> Plan:
        for new in scheduler_output.scheduled_new_reqs:
            state = self.states[new.req_id]
            state.blocks = list(new.block_ids[0])
            self._offer(state, new.num_computed_tokens)
        running = scheduler_output.scheduled_cached_reqs
        for i, fresh in enumerate(running.new_block_ids):
            if fresh is None:
                continue  # full blocks are offered when the request's next block begins
            name = running.req_ids[i]
            state = self.states[name]
            if name in running.resumed_req_ids:
                state.blocks = list(fresh[0])
            else:
                state.blocks.extend(fresh[0])
            self._offer(state, running.num_computed_tokens[i])
        plan, self.plan = self.plan, Plan()
        return plan

    def _offer(self, state: State, computed_tokens: int) -> None:
        request = state.request
        certain = (computed_tokens - request.num_output_placeholders) // self.block_tokens
        upto = min(certain, len(request.block_hashes), len(state.blocks))
        if upto <= state.offered:
            return
        pairs = [
            (request.block_hashes[i], state.blocks[i])
            for i in range(state.offered, upto)
            if request.block_hashes[i] not in self.known
        ]
        state.offered = upto
        if pairs:
            self.pool.touch([self.pool.blocks[block] for _, block in pairs])
            self.jobs += 1
            self.held[self.jobs] = pairs
            self.plan.stores.append((self.jobs, pairs))

    def update_connector_output(self, connector_output: Any) -> None:
        report = connector_output.kv_connector_worker_meta
        for job in report.jobs if report is not None else ():
            pairs = self.held.pop(job)
            self.pool.free_blocks([self.pool.blocks[block] for _, block in reversed(pairs)])
            self.known.update(key for key, _ in pairs)

    def has_pending_push_work(self) -> bool:
        return bool(self.held)

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        state = self.states.pop(request.request_id)
        state.blocks = list(block_ids[0])
        self._offer(state, request.num_computed_tokens)
        return False, None

    # The worker's side.

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        count = self._kv_cache_config.num_blocks
        for tensor in kv_caches.values():
            size = tensor.element_size()
            storage = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
            page_bytes = tensor.numel() * size // count
            view = storage.as_strided(
                (count, page_bytes), (tensor.stride(0) * size, 1), tensor.storage_offset() * size
            )
            self.pages.append(view.numpy())

    def _open(self, key: bytes, flags: int) -> int:
        return os.open(f"{self.directory}/{key.hex()}", flags, 0o600)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        for name, pairs in self._get_connector_metadata().loads:
            for key, block in pairs:
                fd = self._open(key, os.O_RDONLY)
                os.preadv(fd, [page[block] for page in self.pages], 0)
                os.close(fd)
            self.received.add(name)

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        for job, pairs in self._get_connector_metadata().stores:
            for key, block in pairs:
                fd = self._open(key, os.O_WRONLY | os.O_CREAT)
                os.pwritev(fd, [page[block] for page in self.pages], 0)
                os.close(fd)
            self.stored.append(job)
        received, self.received = self.received, set()
        return None, received

    def build_connector_worker_meta(self) -> Stored | None:
        if not self.stored:
            return None
        report, self.stored = Stored(self.stored), []
        return report


class IdleConnector(WithoutLayers):
    """Every hook returns at once."""

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        return 0, False

    def update_state_after_alloc(
        self, request: Any, blocks: Any, num_external_tokens: int
    ) -> None:
        return

    def build_connector_meta(self, scheduler_output: Any) -> Plan:
        return _NO_PLAN

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        return False, None

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        return

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        return _NO_RESULTS


_NO_PLAN, _NO_RESULTS = Plan(), base.KVConnectorTransferResults()
