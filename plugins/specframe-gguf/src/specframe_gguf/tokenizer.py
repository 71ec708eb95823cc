"""The tokenizer and the chat template of a GGUF file."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from specframe import InputError
from specframe_gguf.header import GGUFFile

if TYPE_CHECKING:
    from tokenizers import Tokenizer, pre_tokenizers
    from transformers import PreTrainedTokenizerBase

log = logging.getLogger(__name__)

MODEL, TOKENS, TEMPLATE = "tokenizer.ggml.model", "tokenizer.ggml.tokens", "tokenizer.chat_template"
RULES = "tokenizer.ggml.pre"
BYTE_LEVEL = "gpt2"
"""Tokenizer model that merges pairs of bytes, as GPT-2's does; others merge pairs of characters."""
CONTROL, USER_DEFINED = 3, 4
"""Token types at which texts are split; only control tokens are omitted when a text is shown."""

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = QWEN.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
WORD = (
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
)
TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{WORD[0]}|[^\r\n\p{{L}}\p{{N}}]?{WORD[1]}"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), QWEN),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "smaug-bpe", "dbrx"), LLAMA3),
    "tekken": TEKKEN,
}
"""Expressions that split a text into words, by the file's name of its rules."""
WHOLE = frozenset({"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral", "tekken"})
"""Rules with which a word that is a token is not split, whatever its merges are."""
DIGITS = frozenset({"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone"})
"""Rules with which every digit is a word, and GPT-2's apply to the rest."""
PLAIN = frozenset({"gpt-2", "gpt2", "default", "phi-2", "olmo", "mpt", "jina-v2-code"})
"""Rules that equal GPT-2's."""


def read_tokenizer(file: GGUFFile) -> PreTrainedTokenizerBase | None:
    """Returns the tokenizer of a file, with its chat template; None for a file without one.

    Logs a warning for unknown rules of splitting texts into words, for which GPT-2's are used. Raises InputError for a
    tokenizer of another kind, or a template that cannot be parsed.
    """
    if MODEL not in file.metadata or not isinstance(file.metadata.get(TOKENS), list):
        return None
    from transformers import PreTrainedTokenizerFast

    template = require_template(file)
    try:
        cutting = _byte_level(file) if file.metadata[MODEL] == BYTE_LEVEL else _by_transformers(file)
        named = _named(file)
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(f"the tokenizer of {file.path} cannot be read: {error}") from error
    _frame(cutting, file, named)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=cutting, clean_up_tokenization_spaces=False, **named)
    tokenizer.chat_template = template
    return tokenizer


def require_template(file: GGUFFile) -> str | None:
    """Returns the chat template of a file, or None. Raises InputError for one that cannot be parsed."""
    template = file.metadata.get(TEMPLATE)
    if template is None:
        return None
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        render_jinja_template([[{"role": "user", "content": "?"}]], chat_template=str(template))
    except TemplateSyntaxError as error:
        reason = " ".join(str(error.message).split())
        raise InputError(f"the chat template of {file.path} cannot be parsed: line {error.lineno}: {reason}") from error
    except Exception:  # a template may refuse a conversation, or use variables that only tokenizers define
        log.debug("the chat template of %s refuses a conversation of one turn", file.path)
    return str(template)


def _byte_level(file: GGUFFile) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    tokens, rules = file.metadata[TOKENS], str(file.metadata.get(RULES, "default"))
    merges = [
        (left, right) for left, _, right in (pair.partition(" ") for pair in file.metadata["tokenizer.ggml.merges"])
    ]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=rules in WHOLE)
    tokenizer = Tokenizer(model)
    if SPLITS.get(rules) is QWEN:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _words(rules, file)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = list(zip(tokens, file.metadata.get("tokenizer.ggml.token_type") or (), strict=False))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t, kind in kinds if kind == CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t, kind in kinds if kind == USER_DEFINED])
    return tokenizer


def _words(rules: str, file: GGUFFile) -> pre_tokenizers.PreTokenizer:
    """Returns the function that splits texts into words."""
    from tokenizers import Regex, pre_tokenizers

    if rules in SPLITS:
        split = pre_tokenizers.Split(Regex(SPLITS[rules]), behavior="isolated")
        return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if rules in DIGITS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), whole])
    if RULES not in file.metadata:
        log.warning(
            "%s names no rules to cut texts into words (%s): GPT-2's are taken, and where the model learnt others its "
            "answers are worse",
            file.path,
            RULES,
        )
    elif rules not in PLAIN:
        log.warning("%s cuts texts into words by the rules %r, which are not known here: GPT-2's are", file.path, rules)
    return whole


def _by_transformers(file: GGUFFile) -> Tokenizer:
    """Returns the tokenizer that merges characters, as transformers makes it of a GGUF file."""
    from tokenizers import decoders, pre_tokenizers

    try:
        from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
    except ImportError as error:  # releases of transformers before 5.20
        raise ValueError(f"tokenizers of the kind {file.metadata[MODEL]!r} need a newer transformers") from error
    architecture, found, _ = get_gguf_tokenizer(str(file.path))
    tokenizer: Tokenizer = convert_gguf_tokenizer(architecture, found)[0]
    spaced = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
    if not spaced and isinstance(tokenizer.pre_tokenizer, pre_tokenizers.Metaspace):  # transformers adds it
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _named(file: GGUFFile) -> dict[str, str]:
    """Returns the tokens that have a name, as arguments of transformers' tokenizers."""
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    numbers = {name: file.token(key) for name, key in names.items()}
    return {name: file.metadata[TOKENS][number] for name, number in numbers.items() if number is not None}


def _frame(tokenizer: Tokenizer, file: GGUFFile, named: dict[str, Any]) -> None:
    """Makes a tokenizer add the tokens before and after every text that the file requests."""
    from tokenizers import processors

    first = file.metadata.get("tokenizer.ggml.add_bos_token", file.metadata[MODEL] == "llama")
    around = {"bos_token": bool(first), "eos_token": bool(file.metadata.get("tokenizer.ggml.add_eos_token", False))}
    added = {name: named[name] for name, wanted in around.items() if wanted and name in named}
    before, after = ([added[name]] if name in added else [] for name in around)
    single = [*before, "$A", *after]
    pair = [*single, *(f"{part}:1" for part in [*before, "$B", *after])]
    known = [(token, tokenizer.token_to_id(token)) for token in set(added.values())]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, pair=pair, special_tokens=known)
