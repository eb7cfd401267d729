"""The tokenizer of the tests' model: byte-level BPE with a chat template, made without a download."""

from __future__ import annotations

import json
import pathlib
import random

from e2e import model
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

_SPECIAL = [
    "<pad>",
    "<s>",
    "</s>",
    "<|user|>",
    "<|assistant|>",
    "<|system|>",
    "<|tool|>",
    "<|end|>",
]

# Tools and documents are part of the prompt, so that a renderer that drops them gives other tokens.
_CHAT = (
    "{% if tools %}<|system|>{% for t in tools %}{{ t['function']['name'] }} "
    "{{ t['function']['description'] }}{% endfor %}<|end|>{% endif %}"
    "{% if documents %}<|system|>{% for d in documents %}{{ d['title'] }} {{ d['text'] }} "
    "{% endfor %}<|end|>{% endif %}"
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def words(seed: int, count: int) -> str:
    """Text of `count` random words."""
    draw = random.Random(seed)
    return " ".join(_word(draw) for _ in range(count))


def _word(draw: random.Random) -> str:
    return "".join(draw.choice("etaoinshrdlucmfw") for _ in range(draw.randint(2, 7)))


def write_tokenizer(directory: pathlib.Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json. Every id of the model is a token."""
    draw = random.Random(0)
    known = [_word(draw) for _ in range(900)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=model.VOCABULARY,
        special_tokens=_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = (" ".join(draw.choice(known) for _ in range(40)) for _ in range(800))
    tokenizer.train_from_iterator(text, trainer)
    size = tokenizer.get_vocab_size()
    assert size == model.VOCABULARY, f"the tokenizer has {size} tokens"
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": model.MAX_TOKENS,
        "chat_template": _CHAT,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
