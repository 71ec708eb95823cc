"""Grammars that a text must follow, compiled by llguidance and applied to the text of each node of a draft."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from threading import Lock
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from specframe.kernel.errors import InputError, needs_extra
from specframe.kernel.interfaces import Target, text_of

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

WHITESPACE = r"( |\n[ \t]{0,16})?"
"""Whitespace between two parts of a JSON text: a space, or a line break and an indent, so that it cannot go on without
end."""
FORMS = ("json", "regex", "choice", "lark")
"""The forms of a grammar: a JSON schema, a regular expression, a list of texts, a Lark grammar (or llama.cpp's)."""
_COMPILERS: WeakKeyDictionary[Any, dict[tuple[int, frozenset[int]], GrammarCompiler]] = WeakKeyDictionary()
"""Each tokenizer's compilers, by vocabulary size and end tokens; making one takes a second."""
KEPT = 64
"""Number of compiled grammars that are cached."""
ITEMS = 10_000
"""The parser's items for one position of a text: the most alternatives, or optional properties, open at once."""
SHOWN = 300
"""Number of characters of a compiler error that are shown."""


def grammar_of(target: Target, form: Mapping[str, Any] | None) -> TextGrammar | None:
    """Compiles a grammar for a target's texts; None for None. The latest grammars are cached.

    Raises InputError for an invalid grammar, for a target without a tokenizer or an end-of-sequence token, and if
    llguidance is not installed.
    """
    if form is None:
        return None
    text = text_of(target)
    key = target.vocab_size, frozenset(text.ends)
    known = {} if text.tokenizer is None else _COMPILERS.setdefault(text.tokenizer, {})
    if key not in known:
        known[key] = GrammarCompiler.of_tokenizer(text.tokenizer, *key)
    return known[key].compile(form)


def require_grammar(form: Mapping[str, Any]) -> None:
    """Raises InputError for anything but one grammar in one of the forms; its content is checked by the compiler."""
    if len(form) != 1 or next(iter(form)) not in FORMS:
        raise InputError(
            f"a grammar has one of the forms {', '.join(FORMS)}, such as {{regex: '[0-9]+'}}, not {form!r:.60}"
        )
    ((kind, value),) = form.items()
    if kind == "choice":
        if not isinstance(value, list) or not value or not all(isinstance(each, str) for each in value):
            raise InputError(f"grammar.choice is a list of texts, such as ['yes', 'no'], not {value!r:.60}")
    elif kind == "json":
        if not isinstance(value, dict | bool | str):
            raise InputError(f"grammar.json is a JSON schema, such as {{type: object}}, not {value!r:.60}")
    elif not isinstance(value, str):
        raise InputError(f"grammar.{kind} is a text, not {value!r:.60}")


class TextGrammar:
    """A compiled grammar over the tokens of one vocabulary."""

    def __init__(self, matcher: LLMatcher, ends: frozenset[int]) -> None:
        """The grammar of a matcher at the beginning of a text; `ends` are the tokens that end a complete text."""
        self.ends = ends
        self._first = matcher

    def matcher(self) -> LLMatcher:
        """A new matcher at the beginning of a text."""
        return self._first.deep_copy()


class GrammarProcessor:
    """Bans the tokens after which no text of the grammar is possible; after a complete text, all but its end tokens.

    It is a function of a row's tokens and logits alone, as `Sampling` requires: its matcher rolls back to the end of
    the prefix shared with the previous text, and reads on from there, so a tree's shared prefixes are read once.
    Nodes after a banned token keep their logits, since no text reaches them.
    """

    def __init__(self, grammar: TextGrammar, prompt: int) -> None:
        """The processor for rows with prompts of `prompt` tokens, after which the grammar begins."""
        self._grammar, self._prompt = grammar, prompt
        self._matcher, self._text = grammar.matcher(), list[int]()
        self._turn = Lock()
        self.failure: str | None = None
        """The matcher's error message for a text that it could not continue, or None."""

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] after texts [R, T], -inf at banned tokens."""
        with self._turn:
            masks = [self._allowed(text, logits.shape[1]) for text in tokens[:, self._prompt :].tolist()]
        if not logits.is_cpu:
            return logits.where(torch.from_numpy(np.stack(masks)).to(logits.device), -torch.inf)
        values = logits.numpy()  # single-threaded: synchronizing with a second thread takes longer than the work
        return torch.from_numpy(np.where(np.stack(masks), values, values.dtype.type(-np.inf)))

    def fork(self) -> GrammarProcessor:
        """An independent copy."""
        return GrammarProcessor(self._grammar, self._prompt)

    def accepts(self, text: Sequence[int]) -> int:
        """The length of the longest prefix of a text, its end token included, that the grammar allows."""
        with self._turn:
            return self._read(list(text))

    def allows(self, text: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """For each node of a tree after a text, True if the grammar allows its path; the root is the last token.

        After a text that violates the grammar everything is allowed, since nothing is banned there.
        """
        answer = list(text[self._prompt :])
        edges: list[list[int]] = [[] for _ in tokens]
        for node, parent in enumerate(parents[1:], 1):
            edges[parent].append(node)
        with self._turn:
            if self._read(answer) < len(answer) or not self._grammar.ends.isdisjoint(answer[-1:]):
                return [True] * len(tokens)
            allowed = [True] + [False] * (len(tokens) - 1)
            self._descend(0, tokens, edges, allowed)
        return allowed

    def _descend(self, node: int, tokens: Sequence[int], edges: Sequence[Sequence[int]], allowed: list[bool]) -> None:
        """Marks the allowed nodes below the node at the matcher's position, to which the matcher returns."""
        for child in edges[node]:
            if tokens[child] in self._grammar.ends:
                allowed[child] = self._matcher.is_accepting()
            elif self._matcher.try_consume_tokens([tokens[child]]):
                allowed[child] = True
                self._descend(child, tokens, edges, allowed)
                self._matcher.rollback(1)

    def _allowed(self, text: list[int], vocab: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The tokens that may follow a text: [V] bool; all of them if the text violates the grammar."""
        allowed = self._read(text)
        if not self._matcher.is_error() and (allowed < len(text) or not self._grammar.ends.isdisjoint(text[-1:])):
            return np.ones(vocab, dtype=np.bool_)
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        if self._matcher.is_error():  # beyond the matcher's limits, or the tokens cannot spell what must follow
            self.failure = _words(self._matcher.get_error())
            self._matcher, self._text = self._grammar.matcher(), []
            return np.zeros(vocab, dtype=np.bool_)
        mask = np.zeros(max(vocab, 8 * len(bits)), dtype=np.bool_)
        mask[: 8 * len(bits)] = np.unpackbits(bits, bitorder="little")
        return mask[:vocab]

    def _read(self, text: list[int]) -> int:
        """Moves the matcher to the end of a text or of its allowed prefix; returns the number of allowed tokens."""
        known = self._text
        common = len(known)
        if text[:common] != known:
            common = next(i for i, pair in enumerate(zip(known, [*text, -1], strict=False)) if pair[0] != pair[1])
            self._matcher.rollback(len(known) - common)
        new = text[common:]
        end = next((i for i, token in enumerate(new) if token in self._grammar.ends), len(new))
        read = self._matcher.try_consume_tokens(new[:end]) if end else 0
        self._text = text[: common + read]
        ended = read == end < len(new) and self._matcher.is_accepting()
        return common + read + ended


class GrammarCompiler:
    """Compiles grammars for one vocabulary."""

    def __init__(self, tokens: LLTokenizer, ends: frozenset[int]) -> None:
        """A compiler for llguidance's form of a vocabulary, in which `ends` are the tokens that end a text."""
        self._tokens, self._ends = tokens, ends
        self._compile = lru_cache(KEPT)(self._compile_form)

    @classmethod
    def spelled(cls, tokens: Sequence[bytes], ends: frozenset[int]) -> GrammarCompiler:
        """A compiler for tokens of these bytes; unused and special tokens are empty, and no grammar allows them."""
        with needs_extra("grammar", "a grammar"):
            from llguidance import LLTokenizer, TokenizerWrapper
        return cls(LLTokenizer(TokenizerWrapper(SpelledTokens(tokens, ends)), eos_token=sorted(ends)), ends)

    @classmethod
    def of_tokenizer(cls, tokenizer: Any, vocab: int, ends: frozenset[int]) -> GrammarCompiler:
        """A compiler for a tokenizer of transformers and a target of `vocab` tokens.

        Raises InputError without a tokenizer, without a token that ends a text, or without llguidance.
        """
        if tokenizer is None:
            raise InputError("a grammar needs a target with a tokenizer")
        if not ends:
            raise InputError("a grammar needs a target that has an end-of-sequence token")
        with needs_extra("grammar", "a grammar"):
            from llguidance.hf import from_tokenizer
        size = max(vocab, max(tokenizer.get_vocab().values()) + 1)
        try:
            return cls(from_tokenizer(tokenizer, n_vocab=size, eos_token=sorted(ends)), ends)
        except ValueError:  # a tokenizer in Python, or one whose decoder llguidance does not know
            return cls.spelled(spell(tokenizer, size), ends)

    def compile(self, form: Mapping[str, Any]) -> TextGrammar:
        """Compiles a grammar. Raises InputError if it is invalid or the tokens can spell no text of it."""
        require_grammar(form)
        ((kind, value),) = form.items()
        return self._compile(kind, value if isinstance(value, str) else json.dumps(value))

    def _compile_form(self, kind: str, text: str) -> TextGrammar:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False, max_items_in_row=ITEMS)
        try:
            matcher = LLMatcher(self._tokens, _source(kind, text), log_level=0, limits=limits)
        except ValueError as error:
            raise _refusal(kind, str(error)) from None
        if matcher.is_error():
            raise _refusal(kind, matcher.get_error())
        first = matcher.deep_copy()
        first.compute_bitmask()
        if first.is_error():
            raise _refusal(kind, "the target's tokens can write no text of it")
        return TextGrammar(matcher, self._ends)


class SpelledTokens:
    """A vocabulary as llguidance reads it: the bytes of each token, and a function that splits a text into tokens."""

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], ends: frozenset[int]) -> None:
        self.tokens = [token if number not in ends else b"<end>" for number, token in enumerate(tokens)]
        self.eos_token_id = min(ends)
        self.special_token_ids = sorted(ends)
        self._places = {token: number for number, token in reversed([*enumerate(tokens)]) if number not in ends}
        self._longest = max(map(len, tokens))

    def __call__(self, text: str | bytes) -> list[int]:
        """Tokenizes a text by greedy longest match; bytes that no token spells are left out."""
        rest = text.encode() if isinstance(text, str) else text
        found: list[int] = []
        while rest:
            sizes = range(min(self._longest, len(rest)), 0, -1)
            size = next((size for size in sizes if rest[:size] in self._places), 0)
            if size:
                found.append(self._places[rest[:size]])
            rest = rest[size or 1 :]
        return found


def spell(tokenizer: Any, size: int) -> list[bytes]:
    """The bytes of the first `size` tokens within a text; empty for special tokens and incomplete characters."""
    anchor = next(iter(tokenizer("a", add_special_tokens=False)["input_ids"]))
    before = str(tokenizer.decode([anchor]))
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    spelled = [b""] * size
    for number in set(tokenizer.get_vocab().values()) - special:
        text = str(tokenizer.decode([anchor, number]))
        if text.startswith(before) and "\ufffd" not in text:
            spelled[number] = text[len(before) :].encode()
    return spelled


def _source(kind: str, text: str) -> str:
    """The grammar in llguidance's own form."""
    from llguidance import LLMatcher, grammar_from

    sources: dict[str, Callable[[str], str]] = {
        "json": lambda schema: LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_pattern": WHITESPACE}),
        "regex": LLMatcher.grammar_from_regex,
        "choice": lambda texts: grammar_from("choice", texts),
        "lark": lambda rules: grammar_from("grammar", rules),
    }
    return sources[kind](text)


def _refusal(kind: str, reason: str) -> InputError:
    return InputError(f"grammar.{kind}: {_words(reason)}")


def _words(reason: str) -> str:
    """A compiler error as one short line."""
    return " ".join(reason.replace("<non-verbose/>", "").split())[:SHOWN]
