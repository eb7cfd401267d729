"""vLLM's objects for tests: tensors, configurations, requests and a block pool.

The objects have only the members that the connector uses. require_vllm() makes the base classes
importable: vLLM's own, or the stand-ins in tests/stubs without vLLM.
"""

from __future__ import annotations

import importlib
import itertools
import pathlib
import sys
from collections.abc import Sequence
from types import SimpleNamespace as Bag
from typing import Any


def require_vllm() -> str:
    """Makes vLLM's base classes importable. Returns their origin: "installed" or "stand-in"."""
    try:
        module = importlib.import_module("vllm")
    except ImportError:
        sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "stubs"))
        module = importlib.import_module("vllm")
    return "stand-in" if "tests/stubs" in str(module.__file__) else "installed"


class FakeTensor:
    """The geometry of a torch tensor, without memory."""

    def __init__(
        self,
        shape: Sequence[int],
        order: Sequence[int] | None = None,
        *,
        base: int = 1 << 20,
        offset: int = 0,
        strides: Sequence[int] | None = None,
        storage: int = 1 << 40,
        item: int = 4,
        dtype: str = "torch.float32",
    ) -> None:
        """order: the axes from the outermost in memory to the innermost. strides: in elements,
        instead of dense ones. base: address. offset: in elements. storage: bytes of the storage.
        """
        self.shape = tuple(shape)
        self.dtype = dtype
        self.device = Bag(type="cpu", index=None)
        self._item = item
        self._offset = offset
        self._storage = Bag(data_ptr=lambda: base, nbytes=lambda: storage)
        dense = [0] * len(shape)
        step = 1
        for axis in reversed(order or range(len(shape))):
            dense[axis] = step
            step *= shape[axis]
        self._strides = tuple(strides or dense)

    def stride(self) -> tuple[int, ...]:
        return self._strides

    def element_size(self) -> int:
        return self._item

    def storage_offset(self) -> int:
        return self._offset

    def untyped_storage(self) -> Any:
        return self._storage


class FullAttentionSpec(Bag):
    """Stands for vLLM's class of that name."""


class MLAAttentionSpec(FullAttentionSpec):
    """Stands for vLLM's class of that name."""


class SlidingWindowSpec(Bag):
    """Stands for vLLM's class of that name."""


class ChunkedLocalAttentionSpec(Bag):
    """Stands for vLLM's class of that name."""


class MambaSpec(Bag):
    """Stands for vLLM's class of that name."""


def full(block_size: int = 32, **more: Any) -> FullAttentionSpec:
    return FullAttentionSpec(block_size=block_size, dcp_sharded=True, dtype="torch.float32", **more)


def kv_config(*groups: tuple[Any, Sequence[str]], blocks: int = 16, **more: Any) -> Any:
    """A KVCacheConfig of (spec, layer names) groups."""
    return Bag(
        num_blocks=blocks,
        kv_cache_groups=[
            Bag(kv_cache_spec=spec, layer_names=list(names)) for spec, names in groups
        ],
        kv_cache_layout="LBNHC",
        **more,
    )


def vllm_config(**changes: Any) -> Any:
    """A VllmConfig. Keys are section__member: vllm_config(parallel_config__nnodes=2)."""
    config = Bag(
        kv_transfer_config=Bag(
            engine_id="engine", kv_connector_extra_config={}, kv_load_failure_policy="recompute"
        ),
        model_config=Bag(
            model="/nowhere",
            served_model_name="tiny",
            runner_type="generate",
            seed=0,
            is_encoder_decoder=False,
            hf_config=Bag(to_dict=lambda: {"hidden_size": 8, "_name_or_path": "/nowhere"}),
        ),
        cache_config=Bag(cache_dtype="auto", enable_prefix_caching=True),
        load_config=Bag(load_format="dummy", download_dir=None),
        parallel_config=Bag(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            data_parallel_rank=0,
            data_parallel_index=0,
        ),
        compilation_config=Bag(static_forward_context={}),
        kv_events_config=None,
        speculative_config=None,
    )
    for key, value in changes.items():
        section, _, member = key.partition("__")
        if member:
            setattr(getattr(config, section), member, value)
        else:
            setattr(config, section, value)
    return config


class FakeBlock:
    def __init__(self, number: int) -> None:
        self.block_id = number
        self.ref_cnt = 0
        self.block_hash: Any = None


class FakePool:
    """A block pool with reference counts. Block 0 is the null block."""

    def __init__(self, blocks: int = 64) -> None:
        self.blocks = [FakeBlock(number) for number in range(blocks)]
        self.freed: list[int] = []

    def touch(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            block.ref_cnt += 1

    def free_blocks(self, blocks: Sequence[FakeBlock]) -> None:
        for block in blocks:
            block.ref_cnt -= 1
            assert block.ref_cnt >= 0
            if not block.ref_cnt:
                self.freed.append(block.block_id)

    def get_num_free_blocks(self) -> int:
        return sum(not block.ref_cnt for block in self.blocks[1:])


_ids = itertools.count(1)


class _Request(Bag):
    @property
    def num_tokens(self) -> int:
        return len(self.all_token_ids)


def request(tokens: int, **changes: Any) -> Any:
    """A Request with `tokens` prompt tokens, not scheduled yet."""
    ids = list(range(tokens))
    made = _Request(
        request_id=f"r{next(_ids)}",
        prompt_token_ids=list(ids),
        num_prompt_tokens=tokens,
        all_token_ids=ids,
        num_computed_tokens=0,
        num_output_placeholders=0,
        num_in_flight_tokens=0,
        num_preemptions=0,
        mm_features=[],
        prompt_embeds=None,
        prompt_is_token_ids=None,
        lora_request=None,
        cache_salt=None,
        resumable=False,
        skip_reading_prefix_cache=False,
    )
    made.__dict__.update(changes)
    return made


def step(
    new: Sequence[tuple[Any, Sequence[Sequence[int]]]] = (),
    cached: Sequence[tuple[Any, Sequence[Sequence[int]] | None]] = (),
    resumed: Sequence[Any] = (),
    **more: Any,
) -> Any:
    """A SchedulerOutput: requests with their new blocks, one token each. more: other members."""
    scheduled = {r.request_id: 1 for r, _ in (*new, *cached)}
    more = {
        "num_scheduled_tokens": scheduled,
        "total_num_scheduled_tokens": len(scheduled),
        **more,
    }
    return Bag(
        **more,
        scheduled_new_reqs=[Bag(req_id=r.request_id, block_ids=ids) for r, ids in new],
        scheduled_cached_reqs=Bag(
            req_ids=[r.request_id for r, _ in cached],
            new_block_ids=[ids for _, ids in cached],
            resumed_req_ids={r.request_id for r in resumed},
        ),
    )
