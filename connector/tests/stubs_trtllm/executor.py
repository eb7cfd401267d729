"""A stand-in for TensorRT-LLM's executor, which calls a connector like the real one.

The engine has several ranks in one process. The KV of a block is a function of the tokens up to
the block's end and of the rank, so the executor checks every loaded byte. It overwrites freed
blocks, so a copy that reads a block too late stores wrong bytes, and a later load fails the check.
"""

from __future__ import annotations

import ctypes
import hashlib
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from tensorrt_llm._torch.pyexecutor.connectors.kv_cache_connector import (
    RequestData,
    SchedulerOutput,
)

BLOCK_TOKENS = 16
LAYERS = 3
INNER = 64  # elements of K or V of one block and layer
WIDTH = 2


class Tensor:
    """A tensor with memory, and the members of torch.Tensor that the connector reads."""

    dtype = "torch.bfloat16"
    device = "cpu"

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self._strides = tuple(_product(shape[i + 1 :]) for i in range(len(shape)))
        self.memory = ctypes.create_string_buffer(_product(shape) * WIDTH)

    def data_ptr(self) -> int:
        return ctypes.addressof(self.memory)

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return WIDTH


def _product(numbers: Iterable[int]) -> int:
    total = 1
    for n in numbers:
        total *= n
    return total


@dataclass
class LlmRequest:
    """A request: the members that the connector reads, and the engine's own state."""

    request_id: int
    prompt: list[int]
    new_tokens: int = 1
    cache_salt: str | None = None
    lora_task_id: int | None = None
    multimodal_positions: list[int] | None = None
    is_dummy_request: bool = False
    is_generation_only_request: bool = False
    tokens: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    loaded_tokens: int = 0
    told: int = 0  # tokens in earlier scheduler outputs
    told_blocks: int = 0
    state: str = "new"

    def __post_init__(self) -> None:
        self.tokens = list(self.prompt)

    def get_tokens(self, beam: int) -> list[int]:
        assert beam == 0
        return list(self.tokens)


def arguments(model: str, rank: int = 0, world: int = 1, attention_dp: bool = False) -> Any:
    """The engine arguments that the connector reads."""
    mapping = SimpleNamespace(rank=rank, world_size=world, tp_size=world, pp_size=1, cp_size=1)
    return SimpleNamespace(
        model=model,
        load_format="dummy",
        parallel_config=SimpleNamespace(to_mapping=lambda: mapping),
        kv_cache_config=SimpleNamespace(tokens_per_block=BLOCK_TOKENS, dtype="auto"),
        enable_attention_dp=attention_dp,
    )


def kv_bytes(tokens: list[int], salt: str | None, rank: int, size: int) -> bytes:
    """The KV of the block at the end of these tokens."""
    seed = hashlib.sha256(repr((tokens, salt, rank)).encode()).digest()
    return (seed * (size // len(seed) + 1))[:size]


class Executor:
    """One engine. leader, workers: the connector's sides, with a worker for each rank.

    outer: 2 for K and V, 1 for the latent cache of MLA, which is equal on all ranks. chunk: limit
    of a prompt's tokens in one step.
    """

    def __init__(
        self,
        leader: Any,
        workers: list[Any],
        blocks: int = 64,
        outer: int = 2,
        chunk: int = 1 << 30,
    ) -> None:
        self.leader = leader
        self.workers = workers
        self.same = outer == 1
        self.pools = [Tensor((blocks, LAYERS, outer, INNER)) for _ in workers]
        self.block_bytes = LAYERS * outer * INNER * WIDTH
        self.free = list(range(blocks))
        self.requests: list[LlmRequest] = []
        self.hits: dict[int, int] = {}
        self.late: list[tuple[set[int], set[int]]] = [(set(), set()) for _ in workers]
        self.started: list[int] = []
        self.finished: list[int] = []
        self.chunk = chunk
        self.room = 1 << 30  # limit of blocks that the engine loads of a hit
        for worker, pool in zip(workers, self.pools):
            self.register(worker, pool)
        leader.wait_for_initialization()

    def register(self, worker: Any, pool: Tensor) -> None:
        """Registers a rank's KV cache, as the V1 manager does."""
        worker.register_kv_caches(pool)

    def submit(self, request: LlmRequest) -> LlmRequest:
        """Queues a request."""
        self.requests.append(request)
        return request

    def step(self) -> None:
        """Runs one iteration of the executor's loop."""
        for request in [r for r in self.requests if r.state == "new"]:
            self._admit(request)
        running = [r for r in self.requests if r.state == "running"]
        if running or self.started:
            self._forward(running)
        for request in [r for r in running if len(r.tokens) >= len(r.prompt) + r.new_tokens]:
            self.finish(request)
        self._collect()

    def _admit(self, request: LlmRequest) -> None:
        need = -(-(len(request.prompt) + request.new_tokens) // BLOCK_TOKENS)
        if len(self.free) < need:
            return
        tokens, later = self.leader.get_num_new_matched_tokens(request, 0)
        assert bool(tokens) == later, (tokens, later)
        self.hits[request.request_id] = tokens
        if tokens > self.room * BLOCK_TOKENS:
            self.leader.cancel_load(request, self.room * BLOCK_TOKENS, tokens)
            tokens = self.room * BLOCK_TOKENS
        request.blocks = [self.free.pop(0) for _ in range(need)]
        self.allocated(request)
        request.loaded_tokens = request.computed = tokens
        request.state = "running"
        if later:
            request.state = "loading"
            self.started.append(request.request_id)

    def allocated(self, request: LlmRequest) -> None:
        """Reports a request's blocks to the leader, as the V1 manager does."""
        self.leader.update_state_after_alloc(request, list(request.blocks))

    def ended(self, request: LlmRequest) -> bool:
        """Reports a request's end to the leader. True while the request is being saved."""
        return bool(self.leader.request_finished(request, list(request.blocks)))

    def _forward(self, running: list[LlmRequest]) -> None:
        output = SchedulerOutput()
        for request in running:
            data = self._describe(request)
            first = request.told == 0
            request.told, request.told_blocks = len(request.tokens), len(request.blocks)
            (output.new_requests if first else output.cached_requests).append(data)
        metadata = pickle.dumps(self.leader.build_connector_meta(output))
        for worker in self.workers:
            worker.bind_connector_meta(pickle.loads(metadata))
            worker.start_load_kv(None)
        for request in running:
            self._compute(request, min(len(request.tokens), request.computed + self.chunk))
            if request.computed == len(request.tokens):
                request.tokens.append(request.request_id * 1000 + len(request.tokens))
        for worker in self.workers:
            worker.wait_for_save(None)

    def _describe(self, request: LlmRequest) -> RequestData:
        """The request's entry in the scheduler output of the next step."""
        left = min(len(request.tokens) - request.computed, self.chunk)
        return RequestData(
            request.request_id,
            request.tokens[request.told :],
            request.blocks[request.told_blocks :],
            request.computed,
            left,
            cache_salt=request.cache_salt,
        )

    def _compute(self, request: LlmRequest, end: int) -> None:
        """Writes the KV of the tokens up to `end` on all ranks."""
        for block in range(request.computed // BLOCK_TOKENS, end // BLOCK_TOKENS):
            for rank in range(len(self.workers)):
                self._write(rank, request.blocks[block], self.expected(request, block, rank))
        request.computed = end

    def expected(self, request: LlmRequest, block: int, rank: int) -> bytes:
        """The expected bytes of a request's block on a rank."""
        tokens = request.tokens[: (block + 1) * BLOCK_TOKENS]
        return kv_bytes(tokens, request.cache_salt, 0 if self.same else rank, self.block_bytes)

    def finish(self, request: LlmRequest) -> None:
        """Ends a request, complete or not."""
        if self.ended(request):
            request.state = "saving"
            self.finished.append(request.request_id)
        else:
            self._release(request)

    def abort(self, request: LlmRequest) -> None:
        """Aborts a request. Its blocks are freed after a load in flight."""
        self.finish(request)

    def reset(self, request: LlmRequest) -> None:
        """Takes a request's blocks and queues the request again, as the V2 manager may."""
        self._free(request)
        self.leader.request_reset(request)
        request.tokens = list(request.prompt)
        request.computed = request.told = request.told_blocks = 0
        request.state = "new"

    def _release(self, request: LlmRequest) -> None:
        self._free(request)
        request.state = "done"

    def _free(self, request: LlmRequest) -> None:
        for block in request.blocks:
            for rank in range(len(self.workers)):
                self._write(rank, block, b"\xee" * self.block_bytes)
        self.free += request.blocks
        request.blocks = []

    def _collect(self) -> None:
        """Calls get_finished() of all ranks, and ends the requests that all have reported."""
        for worker, (saved, loaded) in zip(self.workers, self.late):
            new_saved, new_loaded = worker.get_finished(list(self.finished), list(self.started))
            assert not saved & set(new_saved) and not loaded & set(new_loaded), "reported twice"
            saved |= set(new_saved)
            loaded |= set(new_loaded)
        self.finished, self.started = [], []
        by_id = {r.request_id: r for r in self.requests}
        for number in set.intersection(*(loaded for _, loaded in self.late)):
            request = by_id[number]
            assert request.state in ("loading", "saving"), request.state
            self._check(request)
            if request.state == "loading":
                request.state = "running"
        for number in set.intersection(*(saved for saved, _ in self.late)):
            assert by_id[number].state == "saving", by_id[number].state
            self._release(by_id[number])
        for saved, loaded in self.late:
            saved -= {n for n in saved if by_id[n].state == "done"}
            loaded -= {n for n in loaded if by_id[n].state != "loading"}

    def _check(self, request: LlmRequest) -> None:
        """Checks that every loaded byte equals the computed byte."""
        for block in range(request.loaded_tokens // BLOCK_TOKENS):
            for rank in range(len(self.workers)):
                found = self._read(rank, request.blocks[block])
                assert found == self.expected(request, block, rank), (
                    f"request {request.request_id}, block {block}, rank {rank}: wrong bytes"
                )

    def _address(self, rank: int, block: int) -> int:
        return self.pools[rank].data_ptr() + block * self.block_bytes

    def _write(self, rank: int, block: int, data: bytes) -> None:
        ctypes.memmove(self._address(rank, block), data, len(data))

    def _read(self, rank: int, block: int) -> bytes:
        return ctypes.string_at(self._address(rank, block), self.block_bytes)


class SecondExecutor(Executor):
    """An Executor with the V2 manager: byte ranges instead of a tensor, ids by layer group."""

    def register(self, worker: Any, pool: Tensor) -> None:
        half = self.block_bytes // 2
        regions = [
            SimpleNamespace(
                base=pool.data_ptr() + start,
                size=half,
                stride=self.block_bytes,
                num_slots=pool.shape[0],
                buffers=[SimpleNamespace(layer_id=0, role=role, expansion=1)],
            )
            for start, role in ((0, "key"), (half, "value"))
        ]
        group = SimpleNamespace(
            layer_group_id=0,
            layer_ids=tuple(range(LAYERS)),
            window_size=None,
            regions=regions,
            replicated_regions=(),
        )
        worker.register_kv_cache_layout(
            SimpleNamespace(tokens_per_block=BLOCK_TOKENS, groups=(group,))
        )

    def allocated(self, request: LlmRequest) -> None:
        self.leader.update_state_after_alloc_by_layer_group(request, [list(request.blocks)])

    def ended(self, request: LlmRequest) -> bool:
        return bool(self.leader.request_finished_by_layer_group(request, [list(request.blocks)]))

    def _describe(self, request: LlmRequest) -> RequestData:
        data = super()._describe(request)
        data.new_block_ids_by_layer_group = [data.new_block_ids]
        return data
