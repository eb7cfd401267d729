"""Tiny hybrid models: layers of several kinds, whose blocks vLLM keeps in several KV groups.

The weights are random, and attention outweighs the token itself, as in model.py. The sizes are the
smallest that vLLM's CPU kernels take.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

import numpy as np

from e2e import model

WINDOW = 64  # tokens of a sliding window
CHUNK = 128  # tokens of a chunk
STATE_BLOCK = 640  # tokens of a block of the state model, which vLLM derives from the state's size

_HIDDEN = 128
_MLP = 256
_EXPERTS = 4
_EXPERT_MLP = 64
_KEY_HEADS = 2
_VALUE_HEADS = 4
_STATE_DIM = 128  # the CPU kernels of linear attention take heads of this size alone
_CONV = 4

_Weights = Iterator[tuple[str, np.ndarray]]


def write_sliding(directory: pathlib.Path, seed: int) -> None:
    """Writes a model of Gemma 3's shape: five layers with a window of WINDOW tokens, and a full
    one. vLLM makes six groups with a layer each."""
    config = {
        **_common("Gemma3ForCausalLM", "gemma3_text"),
        "num_hidden_layers": 6,
        "head_dim": 32,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
        "query_pre_attn_scalar": 32,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_theta": 10000.0,
        "rope_local_base_freq": 10000.0,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
    }
    _write(directory, config, _sliding(_Draw(seed)))


def write_experts(directory: pathlib.Path, seed: int) -> None:
    """Writes a model of gpt-oss's shape: layers with a window of WINDOW tokens and full ones in
    turn, with sinks and experts. vLLM makes two groups with two layers each."""
    config = {
        **_common("GptOssForCausalLM", "gpt_oss"),
        "intermediate_size": _HIDDEN,
        "num_hidden_layers": 4,
        "head_dim": 32,
        "sliding_window": WINDOW,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_local_experts": _EXPERTS,
        "num_experts_per_tok": 2,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    _write(directory, config, _sinks_and_experts(_Draw(seed)))


def write_state(directory: pathlib.Path, seed: int) -> None:
    """Writes a model of Qwen3-Next's shape: three layers of linear attention, and a full one.

    vLLM makes four groups with a layer each. A layer of linear attention has a state instead of KV.
    """
    config = {
        **_common("Qwen3NextForCausalLM", "qwen3_next"),
        "num_hidden_layers": 4,
        "head_dim": 64,
        "linear_num_key_heads": _KEY_HEADS,
        "linear_num_value_heads": _VALUE_HEADS,
        "linear_key_head_dim": _STATE_DIM,
        "linear_value_head_dim": _STATE_DIM,
        "linear_conv_kernel_dim": _CONV,
        "num_experts": _EXPERTS,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": _EXPERT_MLP,
        "shared_expert_intermediate_size": _EXPERT_MLP,
        "decoder_sparse_step": 1,
        "full_attention_interval": 4,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",  # linear attention on the CPU takes no other type
    }
    _write(directory, config, _state(_Draw(seed)))


def write_chunks(directory: pathlib.Path, seed: int) -> None:
    """Writes a model of Llama 4's shape: three layers that read chunks of CHUNK tokens, and a full
    one without positions. vLLM makes four groups with a layer each."""
    config = {
        **_common("Llama4ForCausalLM", "llama4_text"),
        "intermediate_size_mlp": _MLP,
        "num_hidden_layers": 4,
        "head_dim": 32,
        "attention_chunk_size": CHUNK,
        "no_rope_layers": [1, 1, 1, 0],
        "interleave_moe_layer_step": 5,  # more than layers: no experts
        "num_local_experts": 1,
        "num_experts_per_tok": 1,
        "use_qk_norm": True,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
    }
    _write(directory, config, _chunks(_Draw(seed)))


def _common(architecture: str, model_type: str) -> dict[str, object]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": _HIDDEN,
        "intermediate_size": _MLP,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": model.VOCABULARY,
        "max_position_embeddings": 2 * model.MAX_TOKENS,
        "rms_norm_eps": 1e-6,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
    }


def _write(directory: pathlib.Path, config: dict[str, object], weights: _Weights) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    model.write_safetensors(directory / "model.safetensors", dict(weights))


class _Draw:
    """Random matrices. A matrix with gain 1 keeps the size of its input."""

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    def __call__(self, rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        scale = np.float32(gain / columns**0.5)
        return self._random.standard_normal((rows, columns), dtype=np.float32) * scale


def _same(count: int, value: float) -> np.ndarray:
    return np.full(count, value, np.float32)


def _sliding(draw: _Draw) -> _Weights:
    yield "model.embed_tokens.weight", draw(model.VOCABULARY, _HIDDEN, _HIDDEN**0.5)
    yield "model.norm.weight", _same(_HIDDEN, 0.0)
    for layer in range(6):
        prefix = f"model.layers.{layer}."
        yield from _attention(draw, prefix + "self_attn.", head_dim=32, gate=False)
        yield from _mlp(draw, prefix + "mlp.", _MLP)
        # Gemma adds 1 to the weights of its norms. It also scales the embedding by the root of
        # the hidden size, so that only a large weight here lets attention decide.
        for name, weight in (
            ("input_layernorm", 0.0),
            ("post_attention_layernorm", 15.0),
            ("pre_feedforward_layernorm", 0.0),
            ("post_feedforward_layernorm", 0.0),
        ):
            yield f"{prefix}{name}.weight", _same(_HIDDEN, weight)


def _state(draw: _Draw) -> _Weights:
    yield from _ends(draw, norm=0.0)
    for layer in range(4):
        prefix = f"model.layers.{layer}."
        if layer < 3:
            yield from _linear_attention(draw, prefix + "linear_attn.")
        else:
            yield from _attention(draw, prefix + "self_attn.", head_dim=64, gate=True)
        yield prefix + "mlp.gate.weight", draw(_EXPERTS, _HIDDEN)
        yield prefix + "mlp.shared_expert_gate.weight", draw(1, _HIDDEN)
        yield from _mlp(draw, prefix + "mlp.shared_expert.", _EXPERT_MLP)
        for expert in range(_EXPERTS):
            yield from _mlp(draw, f"{prefix}mlp.experts.{expert}.", _EXPERT_MLP)
        yield prefix + "input_layernorm.weight", _same(_HIDDEN, 0.0)
        yield prefix + "post_attention_layernorm.weight", _same(_HIDDEN, 0.0)


def _sinks_and_experts(draw: _Draw) -> _Weights:
    yield from _ends(draw, norm=1.0)
    for layer in range(4):
        prefix = f"model.layers.{layer}."
        yield from _projections(draw, prefix + "self_attn.", head_dim=32, selects=2.5)
        for name, rows in (("q_proj", 128), ("k_proj", 64), ("v_proj", 64), ("o_proj", _HIDDEN)):
            yield f"{prefix}self_attn.{name}.bias", _same(rows, 0.0)
        yield prefix + "self_attn.sinks", _same(4, -4.0)  # sinks take little of the attention
        yield prefix + "mlp.router.weight", draw(_EXPERTS, _HIDDEN)
        yield prefix + "mlp.router.bias", _same(_EXPERTS, 0.0)
        experts = prefix + "mlp.experts."
        yield experts + "gate_up_proj", _stack(draw, _HIDDEN, 2 * _HIDDEN)
        yield experts + "gate_up_proj_bias", np.zeros((_EXPERTS, 2 * _HIDDEN), np.float32)
        yield experts + "down_proj", _stack(draw, _HIDDEN, _HIDDEN)
        yield experts + "down_proj_bias", np.zeros((_EXPERTS, _HIDDEN), np.float32)
        yield prefix + "input_layernorm.weight", _same(_HIDDEN, 1.0)
        yield prefix + "post_attention_layernorm.weight", _same(_HIDDEN, 1.0)


def _chunks(draw: _Draw) -> _Weights:
    yield from _ends(draw, norm=1.0)
    for layer in range(4):
        prefix = f"model.layers.{layer}."
        yield from _projections(draw, prefix + "self_attn.", head_dim=32, selects=2.0)
        yield from _mlp(draw, prefix + "feed_forward.", _MLP)
        yield prefix + "input_layernorm.weight", _same(_HIDDEN, 1.0)
        yield prefix + "post_attention_layernorm.weight", _same(_HIDDEN, 1.0)


def _stack(draw: _Draw, rows: int, columns: int) -> np.ndarray:
    """A matrix for each expert, with the inputs as rows."""
    return np.stack([draw(columns, rows).T for _ in range(_EXPERTS)])


def _ends(draw: _Draw, norm: float) -> _Weights:
    """What is before and behind the layers."""
    yield "model.embed_tokens.weight", draw(model.VOCABULARY, _HIDDEN, _HIDDEN**0.5)
    yield "model.norm.weight", _same(_HIDDEN, norm)
    yield "lm_head.weight", draw(model.VOCABULARY, _HIDDEN, 5.0)


def _projections(
    draw: _Draw, prefix: str, head_dim: int, selects: float = 1.0, gate: bool = False
) -> _Weights:
    """selects: the gain of the queries. A large one makes attention select few positions."""
    queries = 4 * head_dim
    yield prefix + "q_proj.weight", draw(queries * (2 if gate else 1), _HIDDEN, selects)
    yield prefix + "k_proj.weight", draw(2 * head_dim, _HIDDEN)
    yield prefix + "v_proj.weight", draw(2 * head_dim, _HIDDEN, 2.0)
    yield prefix + "o_proj.weight", draw(_HIDDEN, queries, 4.0)


def _attention(draw: _Draw, prefix: str, head_dim: int, gate: bool) -> _Weights:
    yield from _projections(draw, prefix, head_dim, gate=gate)
    # The weight of the queries makes attention select few positions.
    yield prefix + "q_norm.weight", _same(head_dim, 2.0)
    yield prefix + "k_norm.weight", _same(head_dim, 0.0)


def _linear_attention(draw: _Draw, prefix: str) -> _Weights:
    keys, values = _KEY_HEADS * _STATE_DIM, _VALUE_HEADS * _STATE_DIM
    yield prefix + "in_proj_qkvz.weight", draw(2 * keys + 2 * values, _HIDDEN)
    yield prefix + "in_proj_ba.weight", draw(2 * _VALUE_HEADS, _HIDDEN)
    yield prefix + "conv1d.weight", draw(2 * keys + values, _CONV).reshape(-1, 1, _CONV)
    # Slow decay: the state at the end of a prompt depends on its begin.
    yield prefix + "dt_bias", _same(_VALUE_HEADS, -4.0)
    yield prefix + "A_log", _same(_VALUE_HEADS, 0.0)
    yield prefix + "norm.weight", _same(_STATE_DIM, 1.0)
    yield prefix + "out_proj.weight", draw(_HIDDEN, values, 4.0)


def _mlp(draw: _Draw, prefix: str, inner: int) -> _Weights:
    yield prefix + "gate_proj.weight", draw(inner, _HIDDEN)
    yield prefix + "up_proj.weight", draw(inner, _HIDDEN)
    yield prefix + "down_proj.weight", draw(_HIDDEN, inner)
