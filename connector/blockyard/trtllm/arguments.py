"""Values from TensorRT-LLM's arguments (TorchLlmArgs).

Members differ between releases. Only the block size and the ranks are required.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from blockyard import consolidation
from blockyard.fingerprint import Fingerprint, Source, weights_fingerprint
from blockyard.namespace import Namespace, geometry_of
from blockyard.settings import Settings
from blockyard.trtllm.geometry import BlockLayout, Unsupported

# The environment variable with the port of this engine's events. KVBM defines the name.
EVENTS_PORT = "DYN_KVBM_TRTLLM_ZMQ_PORT"
# Arguments that change the KV of a token, beside the weights.
_EFFECTIVE = (
    "quant_config",
    "rope_scaling",
    "dtype",
    "model_kwargs",
    "sparse_attention_config",
    "attn_backend",
    "speculative_config",
)


@dataclass(frozen=True)
class Arguments:
    """One rank's view of its engine.

    rank, world: this process's rank and the number of processes that share requests. Under
    attention data parallelism every rank has requests of its own. Then world is 1, and dp_rank
    identifies the rank.
    """

    model: str
    block_tokens: int
    kv_dtype: str
    rank: int
    world: int
    dp_rank: int
    version: str


def read(llm_args: Any, version: str) -> Arguments:
    """The arguments of this rank. Unsupported under pipeline or context parallelism."""
    mapping = llm_args.parallel_config.to_mapping()
    if getattr(mapping, "pp_size", 1) > 1:
        raise Unsupported(f"pipeline parallelism of {mapping.pp_size}")
    if getattr(mapping, "cp_size", 1) > 1:
        raise Unsupported(f"context parallelism of {mapping.cp_size}")
    cache = llm_args.kv_cache_config
    attention_dp = bool(getattr(llm_args, "enable_attention_dp", False))
    return Arguments(
        model=str(llm_args.model),
        block_tokens=int(cache.tokens_per_block),
        kv_dtype=str(getattr(cache, "dtype", "auto")),
        rank=0 if attention_dp else int(mapping.rank),
        world=1 if attention_dp else int(mapping.world_size),
        dp_rank=int(mapping.rank) if attention_dp else 0,
        version=version,
    )


def settings() -> Settings:
    """The settings from the environment. TensorRT-LLM's connector configuration has none.

    lookup_wait_ms is 0: the engine asks for a hit once, so a lookup cannot wait for the disk.
    """
    return replace(Settings.read(), lookup_wait_ms=0)


def fresh_worker_id() -> int:
    """A random worker id. Only Blockyard's routers learn it; set worker_id for other routers."""
    return secrets.randbits(53) | 1


def events() -> dict[str, str]:
    """HelloFields for the engine's events and the consolidated stream.

    Empty when no environment variable has a port. ValueError for an invalid port.
    """
    for name in (EVENTS_PORT, consolidation.LEADER_PORT):
        if consolidation.named(name):
            endpoint = f"tcp://127.0.0.1:{consolidation.port(name, 0)}"
            expected = consolidation.stream(f"tcp://0.0.0.0:{consolidation.output_port()}")
            return {"events_endpoint": endpoint, **expected}
    return {}


def weights(llm_args: Any, args: Arguments, given: str) -> Fingerprint:
    """The fingerprint of the engine's weights and effective configuration."""
    config = {name: str(getattr(llm_args, name, "")) for name in _EFFECTIVE}
    load_format = str(getattr(llm_args, "load_format", "auto"))
    source = Source(
        model=args.model,
        revision=str(getattr(llm_args, "revision", None) or ""),
        load_format=load_format.rpartition(".")[2].lower(),
        config=config,
    )
    return weights_fingerprint(source, given)


def namespace(args: Arguments, layout: BlockLayout, weights_text: str, salt: str) -> Namespace:
    """The namespace of an engine's blocks.

    Every rank has an equal share of a block. Replicated ranks have one share together.
    NamespaceError when a block is larger than the protocol allows.
    """
    shares = 1 if layout.replicated else args.world
    geometry = geometry_of(
        shares * layout.share_bytes, args.block_tokens, layout.layers, layout.outer, layout.width
    )
    kind = "replicated" if layout.replicated else "sharded"
    return Namespace(
        model=args.model,
        weights=weights_text,
        dtype=layout.dtype,
        kv_format=f"trtllm {args.version} {layout.shape} {kind} {layout.digest} {salt}".rstrip(),
        tp=args.world,
        **geometry._asdict(),
    )
