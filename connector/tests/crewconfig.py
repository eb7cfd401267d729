"""The configuration of a crew (crew.py): vLLM's records, made behind the checks of its platform."""

from __future__ import annotations

import os
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    SpeculativeConfig,
    VllmConfig,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)

from tests.crewworker import BLOCKS, ROW, TOKENS

os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # the crew's steps are those of vLLM's first runner

VOCABULARY = 1000
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 1024,
    "torch_dtype": "float32",
}


def kv_cache(
    layers: list[str], mla: bool, replicas: int, window: int, chunk: int, larger: int
) -> KVCacheConfig:
    shape = {"block_size": TOKENS, "num_kv_heads": 1, "dtype": torch.float32}
    groups = []
    if window or chunk:
        spec = (
            SlidingWindowSpec(**shape, head_size=ROW // 2, sliding_window=window)
            if window
            else ChunkedLocalAttentionSpec(
                **shape, head_size=ROW // 2, attention_chunk_size=chunk
            )
        )
        groups.append(KVCacheGroupSpec(["w0"], spec))
    shape["block_size"] *= larger
    full = (
        MLAAttentionSpec(**shape, head_size=ROW)
        if mla
        else FullAttentionSpec(**shape, head_size=ROW // 2 // larger)
    )
    groups.append(KVCacheGroupSpec(layers, full))
    return KVCacheConfig(
        num_blocks=BLOCKS,
        kv_cache_tensors=[],
        kv_cache_groups=groups,
        kv_tp_replicas=replicas,
    )


def vllm_config(
    directory: str,
    extra: dict[str, Any],
    policy: str,
    tp: int,
    pp: int,
    overlapping: bool,
    drafts: int,
) -> VllmConfig:
    model = ModelConfig(model=directory, skip_tokenizer_init=True, dtype="float32", seed=0)
    cache = CacheConfig(block_size=TOKENS, enable_prefix_caching=True)
    cache.num_gpu_blocks = BLOCKS
    cache.kv_cache_layout = "LBNHC"
    speculative = None
    if drafts:
        speculative = SpeculativeConfig(
            model="ngram", num_speculative_tokens=drafts, prompt_lookup_max=2
        )
    config = VllmConfig(
        model_config=model,
        cache_config=cache,
        scheduler_config=SchedulerConfig(
            max_num_seqs=8,
            max_num_batched_tokens=64,
            max_model_len=1024,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            async_scheduling=overlapping and not drafts,
        ),
        device_config=DeviceConfig("cpu"),
        kv_transfer_config=KVTransferConfig(
            kv_connector="BlockyardConnector",
            kv_connector_module_path="blockyard.vllm",
            kv_role="kv_both",
            kv_load_failure_policy=policy,
            kv_connector_extra_config=extra,
        ),
        speculative_config=speculative,
    )
    # vLLM overlaps steps with other drafts than n-grams, which the crew has no model for.
    config.scheduler_config.async_scheduling = overlapping
    # Set behind the checks of the platform, which has no devices for them.
    config.parallel_config = ParallelConfig()
    config.parallel_config.tensor_parallel_size = tp
    config.parallel_config.pipeline_parallel_size = pp
    return config


def set_rank(config: VllmConfig, rank: int | None) -> None:
    """Makes the configuration that of one of two data-parallel ranks. None: it stays."""
    if rank is None:
        return
    config.kv_transfer_config.engine_id = f"ranks_dp{rank}"
    config.parallel_config.data_parallel_size = 2
    config.parallel_config.data_parallel_rank = rank
    config.parallel_config.data_parallel_index = rank
