"""Values from vLLM's configuration.

Every member is read by name and may be missing, because each vLLM release changes its
configuration. The connector stays off when a required value is missing. It never guesses.
"""

from __future__ import annotations

import hashlib
import os
import platform
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blockyard.fingerprint import (
    Fingerprint,
    Source,
    combined,
    process_start,
    weights_fingerprint,
)
from blockyard.groups import Groups
from blockyard.namespace import Namespace, geometry_of
from blockyard.settings import Settings
from blockyard.vllm.geometry import full_spec, group_specs

# Keys of a model's configuration that name its origin and do not affect its KV.
PROVENANCE = frozenset({"_name_or_path", "transformers_version", "_commit_hash"})

# Inputs of the weights' fingerprint beside the files and the model's own configuration. Each one
# changes the KV of the same tokens. namespace_of has the inputs that change the layout of bytes.
MODEL_KEYS = {
    "dtype": "the arithmetic, and the element type",
    "quantization": "the engine computes with other weights than those of the files",
    "quantization_config": "the details of the quantization",
    "hf_overrides": "replaces parts of the model's configuration",
    "model_class_overrides": "another implementation of the model",
    "model_impl": "another implementation of the model",
    "code_revision": "the model's own code",
    "max_model_len": "selects the long or the short rotary factors (LongRoPE), and Llama 4's"
    " tuning of attention",
}
CACHE_KEYS = {
    "cache_dtype": "KV is rounded to it, and the next layer computes with rounded KV",
    "kv_cache_dtype_skip_layers": "layers whose KV is not rounded",
}
# Only with LoRA enabled: an engine without LoRA has no adapters.
LORA_KEYS = {
    "target_modules": "modules to which adapters are not applied",
    "lora_dtype": "adapters are rounded to it",
    "enable_mixed_moe_lora_format": "which layout an adapter's expert weights are read in",
    "enable_moe_shared_loras": "which layout an adapter's expert weights are read in",
}


def parallel(vllm_config: Any, name: str, default: int = 1) -> int:
    """A field of the parallel configuration."""
    return int(getattr(vllm_config.parallel_config, name, default) or default)


def dp_rank_of(vllm_config: Any) -> int:
    """The data-parallel rank that vLLM's events carry."""
    index = getattr(vllm_config.parallel_config, "data_parallel_index", None)
    if index is None:
        index = getattr(vllm_config.parallel_config, "data_parallel_rank", 0)
    return int(index or 0)


def batched_tokens_of(vllm_config: Any) -> int:
    """The limit of tokens that this rank computes in a step; 0 when unknown."""
    scheduler = getattr(vllm_config, "scheduler_config", None)
    tokens = getattr(scheduler, "max_num_batched_tokens", None)
    return tokens if isinstance(tokens, int) and tokens > 0 else 0


def worker_id_of(vllm_config: Any, settings: Settings) -> int:
    """The worker id of this engine for routers: the setting, or a hash of vLLM's engine id.

    All data-parallel ranks of one engine have the same worker id. vLLM's engine id has a suffix for
    each rank, which is removed.
    """
    if settings.worker_id:
        return settings.worker_id
    engine_id = str(vllm_config.kv_transfer_config.engine_id or "")
    suffix = f"_dp{parallel(vllm_config, 'data_parallel_rank', 0)}"
    for ending in (f"_dp{dp_rank_of(vllm_config)}", suffix):
        if engine_id.endswith(ending):
            engine_id = engine_id[: -len(ending)]
            break
    digest = hashlib.sha256(b"blockyard.worker " + engine_id.encode()).digest()
    return int.from_bytes(digest[:8], "little") or 1


def why_off(vllm_config: Any, settings: Settings) -> str:
    """Why the connector stays off for this configuration, for people. Empty: it stays on."""
    if not settings.enabled:
        return "it is disabled by its settings"
    model = vllm_config.model_config
    if getattr(model, "is_encoder_decoder", False):
        return "encoder-decoder models are not supported"
    if parallel(vllm_config, "prefill_context_parallel_size") > 1:
        return "prefill context parallelism is not supported"
    pooling = getattr(model, "runner_type", "generate") == "pooling"
    if pooling and not getattr(vllm_config.cache_config, "enable_prefix_caching", False):
        # vLLM turns prefix caching off for pooling models whose KV of a prefix depends on later
        # tokens, and for models that need the hidden states of all tokens.
        return "this pooling model does without prefix caching"
    return ""


def steps_overlap(vllm_config: Any) -> bool:
    """Whether vLLM plans a step before the earlier step has run. True when unknown.

    With overlapping steps, an earlier step that has not run may still write or zero the blocks of a
    load.
    """
    return int(getattr(vllm_config, "max_concurrent_batches", 2)) > 1


def short_loads_work(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Whether a load may run within the step that computes the rest of its prompt.

    vLLM recovers from a failed one only under these conditions, see short_loads.py:

    - It hears of the failure before it plans the next step. Otherwise that step's token, of the
      same request, would be delivered although its KV is wrong.
    - The model runner takes back the token of the failed step. vLLM's second runner does not.
    - The scheduler's class is not the one for steps that overlap. That class would keep counting
      the failed step's token.
    - The engine decodes without drafts, which the failed step would have to take back too.
    - There is one KV group, because vLLM looks for the failed blocks in a table of one group.

    No step zeroes the blocks of a load, and no other rank of data parallelism waits for the copy.
    """
    return not (
        steps_overlap(vllm_config)
        or _schedules_ahead(vllm_config)
        or getattr(vllm_config, "use_v2_model_runner", True)
        or getattr(vllm_config, "speculative_config", None) is not None
        or len(kv_cache_config.kv_cache_groups) != 1
        or getattr(kv_cache_config, "needs_kv_cache_zeroing", True)
        or parallel(vllm_config, "data_parallel_size") != 1
    )


def _schedules_ahead(vllm_config: Any) -> bool:
    """Whether vLLM's scheduler counts tokens that are not sampled yet. True when unknown."""
    try:
        from vllm.v1.core.sched.async_scheduler import AsyncScheduler

        return issubclass(vllm_config.scheduler_config.get_scheduler_cls(), AsyncScheduler)
    except Exception:
        return True


def engine_version() -> str:
    """vLLM's version, or "unknown"."""
    try:
        from vllm.version import __version__
    except ImportError:
        return "unknown"
    return str(__version__)


def _series(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _config_map(model: Any) -> dict[str, Any]:
    hf_config = getattr(model, "hf_config", None)
    described = hf_config.to_dict() if hasattr(hf_config, "to_dict") else {}
    described = {k: v for k, v in described.items() if k not in PROVENANCE}
    ours = described["blockyard"] = {name: _text(model, name) for name in MODEL_KEYS}
    if "llama4" in str(described.get("model_type", "")):
        # vLLM reads the switch of attention's temperature tuning from the sampling defaults.
        settings = dict(model.try_get_generation_config())
        settings.update(getattr(model, "override_generation_config", None) or {})
        ours["attn_temperature_tuning"] = str(settings.get("attn_temperature_tuning"))
    return described


def _text(section: Any, name: str) -> str:
    """A member as text that is equal in every process. Sets are sorted."""
    value = getattr(section, name, None)
    return str(sorted(map(str, value)) if isinstance(value, (set, frozenset, list)) else value)


def _source(vllm_config: Any, model: Any, load_format: str) -> Source:
    config = _config_map(model)
    config["blockyard"].update(
        {name: _text(vllm_config.cache_config, name) for name in CACHE_KEYS}
    )
    lora = getattr(vllm_config, "lora_config", None)
    if lora is not None:
        config["blockyard"]["lora"] = {name: _text(lora, name) for name in LORA_KEYS}
    return Source(
        model=str(getattr(model, "model_weights", "") or model.model),
        revision=str(getattr(model, "revision", None) or ""),
        cache_dir=str(getattr(vllm_config.load_config, "download_dir", None) or ""),
        load_format=load_format,
        seed=int(getattr(model, "seed", 0) or 0),
        config=config,
    )


def weights_of(vllm_config: Any, settings: Settings) -> Fingerprint:
    """The fingerprint of the engine's weights, including a draft model's weights."""
    load_format = str(getattr(vllm_config.load_config, "load_format", "auto"))
    model = vllm_config.model_config
    began = process_start()
    result = weights_fingerprint(_source(vllm_config, model, load_format), settings.weights, began)
    speculative = getattr(vllm_config, "speculative_config", None)
    draft = getattr(speculative, "draft_model_config", None)
    if draft is not None and draft is not model:
        drafts = weights_fingerprint(_source(vllm_config, draft, load_format), "", began)
        result = combined(result, drafts)
    if getattr(vllm_config.cache_config, "calculate_kv_scales", False):
        reason = "KV scales are measured while the engine runs (calculate_kv_scales)"
        result = Fingerprint("scales-" + secrets.token_hex(16), False, reason)
    if settings.namespace_salt:
        salted = hashlib.sha256(f"{result.text} {settings.namespace_salt}".encode()).hexdigest()
        result = result._replace(text="salted-" + salted[:32])
    return result


@dataclass(frozen=True)
class Format:
    """The byte format of one worker's KV, sent in its Handshake."""

    layout: str
    backend: str
    dtype: str
    digest: str


def format_of(vllm_config: Any, kv_cache_config: Any, digest: str) -> Format:
    """The byte format of this worker's KV, from its attention backend."""
    context = getattr(vllm_config.compilation_config, "static_forward_context", {}) or {}
    backends, isas = set(), set()
    for group in kv_cache_config.kv_cache_groups:
        for name in group.layer_names:
            layer = context.get(name)
            backend = getattr(layer, "attn_backend", None)
            if backend is not None and hasattr(backend, "get_name"):
                backends.add(str(backend.get_name()))
            isas.add(str(getattr(layer, "isa", "") or ""))
    # On CPU the backend packs KV for the instruction set. Its name does not identify the processor,
    # but all processors of a node are of one kind.
    isa = "+".join(sorted(isas - {""})) or platform.machine()
    if os.environ.get("VLLM_ROCM_SHUFFLE_KV_CACHE_LAYOUT", "").lower() in ("true", "1"):
        isa += "-shuffled"  # another order of elements in a page, with equal shapes and strides
    layout = getattr(kv_cache_config, "kv_cache_layout", None) or getattr(
        vllm_config.cache_config, "kv_cache_layout", None
    )
    spec = full_spec(kv_cache_config)
    return Format(
        layout=str(layout or "default"),
        backend="+".join(sorted(backends) or ["unknown"]) + "." + isa,
        dtype=str(getattr(spec, "dtype", "bytes")).removeprefix("torch."),
        digest=digest,
    )


def namespace_of(
    vllm_config: Any,
    kv_cache_config: Any,
    weights: str,
    total_bytes: int,
    tokens: int,
    formats: Sequence[Format],
    groups: Groups | None = None,
) -> Namespace:
    """The namespace of an engine whose blocks have total_bytes bytes and `tokens` tokens.

    groups: the KV groups of a hybrid model, whose largest block has total_bytes bytes.
    """
    specs = [spec for group in group_specs(kv_cache_config) for spec in group]
    layers = sum(len(group.layer_names) for group in kv_cache_config.kv_cache_groups)
    mla = any(type(spec).__name__ == "MLAAttentionSpec" for spec in specs)
    dtype = getattr(full_spec(kv_cache_config), "dtype", None)
    width = getattr(dtype, "itemsize", 1)
    pp = parallel(vllm_config, "pipeline_parallel_size")
    geometry = geometry_of(total_bytes, tokens, layers * pp, 1 if mla else 2, width)
    first = formats[0]
    digest = hashlib.sha256(" ".join(f.digest for f in formats).encode()).hexdigest()[:16]
    cache_dtype = str(getattr(vllm_config.cache_config, "cache_dtype", "auto"))
    dcp = parallel(vllm_config, "decode_context_parallel_size")
    # The interleave size decides which rank has a token's KV, where ranks split a block's tokens.
    turns = parallel(vllm_config, "cp_kv_cache_interleave_size") if dcp > 1 else 1
    return Namespace(
        model=_served_name(vllm_config.model_config),
        weights=weights,
        dtype=first.dtype,
        kv_format=(
            f"vllm-{_series(engine_version())}/{first.backend}/{first.layout}"
            f"/{cache_dtype}/{digest}" + (f"/interleave-{turns}" if dcp > 1 else "")
        ),
        tp=parallel(vllm_config, "tensor_parallel_size"),
        pp=pp,
        dcp=dcp,
        groups=groups,
        **geometry._asdict(),
    )


def _served_name(model: Any) -> str:
    served = getattr(model, "served_model_name", None)
    if isinstance(served, (list, tuple)):
        served = served[0] if served else None
    return str(served or model.model)


def events_of(vllm_config: Any) -> Mapping[str, str]:
    """HelloFields for this rank's KV events; empty when the rank publishes none."""
    config = getattr(vllm_config, "kv_events_config", None)
    if config is None or not getattr(config, "enable_kv_cache_events", False):
        return {}
    if getattr(config, "publisher", "zmq") != "zmq":
        return {}
    rank = dp_rank_of(vllm_config)
    endpoint = reachable(getattr(config, "endpoint", None) or "", rank)
    if not endpoint:
        return {}
    return {
        "events_endpoint": endpoint,
        "replay_endpoint": reachable(getattr(config, "replay_endpoint", None) or "", rank, True),
        "events_topic": str(getattr(config, "topic", "") or ""),
    }


def reachable(endpoint: str, rank: int, always_bound: bool = False) -> str:
    """The address at which a process on this node reaches vLLM's `endpoint`. Empty: unreachable.

    vLLM adds the data-parallel rank to the port. vLLM binds the replay endpoint and endpoints with
    a wildcard. vLLM connects to other endpoints, so they have no listener for the agent.
    """
    if endpoint.startswith("ipc://"):
        return endpoint if rank == 0 else ""
    if not endpoint.startswith("tcp://"):
        return ""
    if not always_bound and "*" not in endpoint and "::" not in endpoint:
        return ""
    host, _, port = endpoint.removeprefix("tcp://").rpartition(":")
    if not port.isdigit() or int(port) == 0 or int(port) + rank > 65535:
        return ""
    if host in ("*", "0.0.0.0"):
        host = "127.0.0.1"
    elif host in ("[::]", "::"):
        host = "[::1]"
    return f"tcp://{host}:{int(port) + rank}"
