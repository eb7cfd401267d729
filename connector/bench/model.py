"""Models to measure with: small Llamas of a chosen shape, with weights in which attention matters.

Every reload's first token is compared with the computed one. That comparison is worth nothing
with weights so small that attention hardly changes the output, so they are drawn here.
"""

from __future__ import annotations

import json
import pathlib
from typing import NamedTuple

import numpy as np

BLOCK_TOKENS = 32  # the least that vLLM's CPU backend takes
VOCABULARY = 1024

# Token ids that prompts are drawn from: no special ones.
FIRST_TOKEN, LAST_TOKEN = 3, 1000


class Shape(NamedTuple):
    """Dimensions of a model; all weights and the KV cache are float32."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int

    @property
    def token_bytes(self) -> int:
        """Bytes of KV that one token takes over all layers."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 4


# Steps of this one are short, so that hooks are a visible part of them.
SMALL = Shape(layers=2, hidden=128, heads=4, kv_heads=2, head_dim=32, mlp=256)

# 16 KiB of KV a token. Prompts of it take seconds to compute and moving their KV takes
# milliseconds.
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
        # Spreads the logits, so that rounding does not choose the token.
        "lm_head.weight": matrix(VOCABULARY, hidden, gain=4.0),
    }
    for layer in range(shape.layers):
        prefix = f"model.layers.{layer}."
        attention, feed = prefix + "self_attn.", prefix + "mlp."
        # Sharp queries and large values: what attention picks outweighs the token itself.
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
