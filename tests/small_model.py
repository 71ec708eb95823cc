"""A small random model with a tokenizer: enough to decode with."""

import torch
from transformers import PreTrainedTokenizerFast

from specframe.components.targets.tiny import random_model

TINY = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
"""The sizes of a random model of any architecture, as its config has them."""


def make_model():
    """A random Llama with norms as small as its weights: it hangs on the last tokens, and soon repeats itself."""
    model = random_model(vocab=64, size=32, layers=3, eos=1)
    torch.manual_seed(9)
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3)
    return model


def make_tokenizer():
    """One character a token, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = [*"<>/", *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ .,?!"]
    vocabulary = {token: index for index, token in enumerate(letters[:64])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}!{% endif %}"
    return fast


def make_json_tokenizer():
    """A byte-level tokenizer of 64 tokens that can write JSON; its token 1 ends a text, and some tokens are words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    merges = [("t", "r"), ("tr", "u"), ("a", "b"), ('"', ":")]
    letters = [
        *"{}[]:,.-_0123456789abcdefghijklmnopqrstuvwxyz<>/",
        '"',
        "\u0120",
        "\u010a",
    ]  # space, line feed
    vocabulary = {token: index for index, token in enumerate(["<s>", "</s>", *letters, *map("".join, merges)])}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")
    fast.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}:{% endif %}"
    return fast
