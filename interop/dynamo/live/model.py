"""A model directory for Dynamo's mocker: a configuration and a word tokenizer, without weights."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Sequence

_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
UNKNOWN = 3  # the token of every other text
WORD = len(_SPECIAL)  # the token of the first word
VOCABULARY = 1024
_WORDS = [f"w{i}" for i in range(VOCABULARY - WORD)]


def write(directory: pathlib.Path, texts: Sequence[str] = _WORDS) -> pathlib.Path:
    """Writes the files of a model whose words are `texts`. Returns the directory."""
    directory.mkdir()
    words = [*_SPECIAL, *texts]
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "vocab_size": len(words),
        "max_position_embeddings": 8192,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "float32",
    }
    added = [
        {"id": i, "content": w, "special": True, "single_word": False, "lstrip": False}
        | {"rstrip": False, "normalized": False}
        for i, w in enumerate(_SPECIAL)
    ]
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "WordLevel",
            "vocab": {w: i for i, w in enumerate(words)},
            "unk_token": "<unk>",
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "model_max_length": 8192,
        "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
    }
    for name, content in (
        ("config.json", config),
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", settings),
    ):
        (directory / name).write_text(json.dumps(content))
    return directory
