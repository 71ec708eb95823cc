"""A tiny target with a tokenizer of words, its texts, and drafting models for it."""

from __future__ import annotations

import json

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.tiny import random_model

VOCAB, LAYERS = 24, 4


def model(layers: int = LAYERS, *, vocab: int = VOCAB, seed: int = 5):
    """A random Llama in float32."""
    return random_model(vocab=vocab, size=16, layers=layers, seed=seed).float()


def drafter(layers: int = LAYERS, *, vocab: int = VOCAB, seed: int = 5) -> ModelDrafter:
    """A drafter around one."""
    return ModelDrafter.from_model(model(layers, vocab=vocab, seed=seed))


def checkpoint(folder) -> str:
    """A folder with such a model and its tokenizer, whose tokens are the words w0, w1, .."""
    tokenizer = Tokenizer(models.WordLevel({f"w{token}": token for token in range(VOCAB)}, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0").save_pretrained(folder)
    model().save_pretrained(folder)
    return str(folder)


def texts(folder, count: int = 24) -> str:
    """A file of texts that repeat a pattern."""
    path = folder / "texts.jsonl"
    lines = (" ".join(f"w{1 + (start + 5 * place) % (VOCAB - 1)}" for place in range(20)) for start in range(count))
    path.write_text("\n".join(json.dumps({"text": line}) for line in lines), encoding="utf-8")
    return str(path)
