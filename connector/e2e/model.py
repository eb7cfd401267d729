"""The model of the tests: a tiny Llama and LoRA adapters, from random seeds.

With these weights attention decides the output, so a zeroed, stale or exchanged block of KV changes
the next tokens. The small weights of vLLM's dummy loader would hide such damage. The module writes
safetensors without torch, so that the test process starts fast.
"""

from __future__ import annotations

import json
import pathlib
import struct
from collections.abc import Iterator

import numpy as np

BLOCK_TOKENS = 32  # the smallest block of vLLM's CPU backend
LAYERS = 3
HIDDEN = 128
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
MLP = 256
VOCABULARY = 1024
MAX_TOKENS = 2048

# Bytes of a block: key and value of every token, layer and head, in float32.
BLOCK_BYTES = LAYERS * 2 * BLOCK_TOKENS * KV_HEADS * HEAD_DIM * 4

_LORA_RANK = 8


def write_model(directory: pathlib.Path, seed: int) -> None:
    """Writes config.json and model.safetensors.

    Another seed gives other weights, with the same names and file sizes.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": MAX_TOKENS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "hidden_act": "silu",
        "torch_dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config))
    write_safetensors(directory / "model.safetensors", dict(_weights(seed)))


def write_adapter(directory: pathlib.Path, seed: int) -> None:
    """Writes a LoRA adapter in peft's format. The adapter changes the KV of a prompt."""
    directory.mkdir(parents=True, exist_ok=True)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": _LORA_RANK,
        "lora_alpha": 2 * _LORA_RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny",
    }
    (directory / "adapter_config.json").write_text(json.dumps(config))
    write_safetensors(directory / "adapter_model.safetensors", dict(_adapter_weights(seed)))


def _weights(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    draw = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float) -> np.ndarray:
        return draw.standard_normal((rows, columns), dtype=np.float32) * np.float32(
            gain / columns**0.5
        )

    yield "model.embed_tokens.weight", draw.standard_normal((VOCABULARY, HIDDEN), dtype=np.float32)
    yield "model.norm.weight", np.ones(HIDDEN, np.float32)
    # A large gain spreads the logits, so that rounding does not change the token.
    yield "lm_head.weight", matrix(VOCABULARY, HIDDEN, 5.0)
    shapes = (
        # The gain of q_proj makes attention select few positions. The gains of v_proj and o_proj
        # make the selected values outweigh the token itself.
        ("self_attn.q_proj", HEADS * HEAD_DIM, HIDDEN, 2.5),
        ("self_attn.k_proj", KV_HEADS * HEAD_DIM, HIDDEN, 1.0),
        ("self_attn.v_proj", KV_HEADS * HEAD_DIM, HIDDEN, 2.0),
        ("self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, 2.0),
        ("mlp.gate_proj", MLP, HIDDEN, 1.0),
        ("mlp.up_proj", MLP, HIDDEN, 1.0),
        ("mlp.down_proj", HIDDEN, MLP, 1.0),
    )
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name, rows, columns, gain in shapes:
            yield f"{prefix}{name}.weight", matrix(rows, columns, gain)
        yield prefix + "input_layernorm.weight", np.ones(HIDDEN, np.float32)
        yield prefix + "post_attention_layernorm.weight", np.ones(HIDDEN, np.float32)


def _adapter_weights(seed: int) -> Iterator[tuple[str, np.ndarray]]:
    draw = np.random.default_rng(seed)
    for layer in range(LAYERS):
        for name, rows in (("q_proj", HEADS * HEAD_DIM), ("v_proj", KV_HEADS * HEAD_DIM)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}."
            down = draw.standard_normal((_LORA_RANK, HIDDEN), dtype=np.float32) / HIDDEN**0.5
            up = draw.standard_normal((rows, _LORA_RANK), dtype=np.float32) / _LORA_RANK**0.5
            yield prefix + "lora_A.weight", down.astype(np.float32)
            yield prefix + "lora_B.weight", up.astype(np.float32)


def write_safetensors(path: pathlib.Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes a safetensors file.

    The file has the header's length as u64, the JSON header padded with spaces to eight bytes, and
    the tensors without gaps. All numbers are little-endian.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        end = offset + tensor.nbytes
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            f.write(np.ascontiguousarray(tensor, dtype="<f4").tobytes())
