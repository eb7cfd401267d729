"""What the connector reads from TensorRT-LLM's arguments (TorchLlmArgs).

Members differ between releases. Each is read where it is, and only the size of a block and the
ranks are required.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from blockyard import consolidation
from blockyard.fingerprint import Fingerprint, Source, weights_fingerprint
from blockyard.namespace import Namespace, geometry_of
from blockyard.settings import Settings
from blockyard.trtllm.geometry import Form, Unsupported

# KVBM's port for the events of this engine; whoever publishes them there sets it.
EVENTS_PORT = "DYN_KVBM_TRTLLM_ZMQ_PORT"
# What of the arguments changes the KV of a token, beside the weights.
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

    rank, world: of the processes that share requests; under attention data parallelism each
    rank has requests of its own, so that world is 1 and dp_rank tells the ranks apart.
    """

    model: str
    block_tokens: int
    kv_dtype: str
    rank: int
    world: int
    dp_rank: int
    version: str


def read(llm_args: Any, version: str) -> Arguments:
    """The arguments of this rank. Unsupported for what the engine's connector cannot do either."""
    mapping = llm_args.parallel_config.to_mapping()
    if getattr(mapping, "pp_size", 1) > 1:
        raise Unsupported(f"pipeline parallelism of {mapping.pp_size}")
    if getattr(mapping, "cp_size", 1) > 1:
        raise Unsupported(f"context parallelism of {mapping.cp_size}")
    cache = llm_args.kv_cache_config
    alone = bool(getattr(llm_args, "enable_attention_dp", False))
    return Arguments(
        model=str(llm_args.model),
        block_tokens=int(cache.tokens_per_block),
        kv_dtype=str(getattr(cache, "dtype", "auto")),
        rank=0 if alone else int(mapping.rank),
        world=1 if alone else int(mapping.world_size),
        dp_rank=int(mapping.rank) if alone else 0,
        version=version,
    )


def settings() -> Settings:
    """TensorRT-LLM's connector configuration has no room for settings: the environment has.

    A lookup is asked for once and answered within a millisecond, so it never waits for a disk:
    what is on its way is there for the next request.
    """
    return replace(Settings.read(), lookup_wait_ms=0)


def fresh_worker_id() -> int:
    """A worker id for an engine that was given none: routers that are not ours cannot know it."""
    return secrets.randbits(53) | 1


def events() -> dict[str, str]:
    """Where this engine's events are published, and consolidated ones expected, as HelloFields
    names it; empty when nothing says so. ValueError for a port that is none."""
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


def namespace(args: Arguments, form: Form, weights_text: str, salt: str) -> Namespace:
    """What must be equal for two engines to share blocks.

    Ranks have equal shares, or one share when all hold the same bytes. NamespaceError when a
    block is larger than the protocol allows.
    """
    shares = 1 if form.replicated else args.world
    geometry = geometry_of(
        shares * form.share_bytes, args.block_tokens, form.layers, form.outer, form.width
    )
    kind = "replicated" if form.replicated else "sharded"
    return Namespace(
        model=args.model,
        weights=weights_text,
        dtype=form.dtype,
        kv_format=f"trtllm {args.version} {form.shape} {kind} {form.digest} {salt}".rstrip(),
        tp=args.world,
        **geometry._asdict(),
    )
