"""Models for the benchmarks: small Llamas of a chosen shape.

The benchmarks compare every reload's first token with the computed token. With these weights
attention decides the output. Small random weights would hide damaged KV.
"""

from __future__ import annotations

import json
import pathlib
from typing import NamedTuple

import numpy as np

BLOCK_TOKENS = 32  # the smallest block of vLLM's CPU backend
VOCABULARY = 1024

# Range of the prompts' token ids, without special tokens.
FIRST_TOKEN, LAST_TOKEN = 3, 1000


class Shape(NamedTuple):
    """Dimensions of a model. Weights and KV cache are float32."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's KV in all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 4


# Short steps, in which the cost of hooks is visible.
SMALL = Shape(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, mlp=256)

# 16 KiB of KV per token. Prompts take seconds to compute, and copies of their KV milliseconds.
MEDIUM = Shape(layers=8, hidden=512, heads=8, kv_heads=4, head_dim=64, mlp=1408)


def write(directory: pathlib.Path, shape: Shape, max_tokens: int, seed: int = 11) -> None:
    """Writes config.json and model.safetensors for prompts of up to max_tokens."""
    from safetensors.numpy import save_file

    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.mlp,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": max_tokens,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    tensors = _weights(shape, np.random.default_rng(seed))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def _weights(shape: Shape, draw: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        scale = np.float32(gain / columns**0.5)
        return draw.standard_normal((rows, columns), dtype=np.float32) * scale

    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    hidden, mlp = shape.hidden, shape.mlp
    tensors = {
        "model.embed_tokens.weight": matrix(VOCABULARY, hidden, gain=hidden**0.5),
        "model.norm.weight": np.ones(hidden, np.float32),
        # A large gain spreads the logits, so that rounding does not change the token.
        "lm_head.weight": matrix(VOCABULARY, hidden, gain=4.0),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        attention, feed = prefix + "self_attn.", prefix + "mlp."
        # These gains make attention select few positions, whose values outweigh the token itself.
        tensors[attention + "q_proj.weight"] = matrix(queries, hidden, gain=3.0)
        tensors[attention + "k_proj.weight"] = matrix(keys, hidden)
        tensors[attention + "v_proj.weight"] = matrix(keys, hidden, gain=2.0)
        tensors[attention + "o_proj.weight"] = matrix(hidden, queries, gain=2.0)
        tensors[feed + "gate_proj.weight"] = matrix(mlp, hidden)
        tensors[feed + "up_proj.weight"] = matrix(mlp, hidden)
        tensors[feed + "down_proj.weight"] = matrix(hidden, mlp)
        tensors[prefix + "input_layernorm.weight"] = np.ones(hidden, np.float32)
        tensors[prefix + "post_attention_layernorm.weight"] = np.ones(hidden, np.float32)
    return tensors
