"""Grammars that a text must follow, compiled by llguidance and asked about the text of each node of a draft."""

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
"""Whitespace between two parts of a JSON text: a space, or a line break and an indent, so that it cannot go on for
ever."""
FORMS = ("json", "regex", "choice", "lark")
"""The forms of a grammar: a JSON schema, a regular expression, a list of texts, a Lark grammar (or llama.cpp's)."""
_COMPILERS: WeakKeyDictionary[Any, dict[tuple[int, frozenset[int]], GrammarCompiler]] = WeakKeyDictionary()
"""The compilers of each tokenizer, by the size of the vocabulary and the ends of a text: one takes a second to make."""
KEPT = 64
"""Compiled grammars that are kept for requests to come."""
ITEMS = 10_000
"""The parser's items for one place of a text: the most choices, or optional properties, that are open together."""
SHOWN = 300
"""Characters of an error of the compiler that are shown."""


def grammar_of(target: Target, form: Mapping[str, Any] | None) -> TextGrammar | None:
    """The grammar for texts of a target, None for none. The latest grammars are kept.

    Raises InputError for one that is not understood, a target without a tokenizer or a token that ends a text, and
    where llguidance is not installed.
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
    """Raises InputError for anything but one grammar in one of the forms; its content is read when it is compiled."""
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
        """The grammar of a matcher at its beginning; `ends` are the tokens that follow a text that is complete."""
        self.ends = ends
        self._first = matcher

    def matcher(self) -> LLMatcher:
        """A matcher of its own at the beginning of a text."""
        return self._first.deep_copy()


class GrammarProcessor:
    """Bans the tokens after which no text of the grammar is left; after a complete text, all but those that end it.

    A function of a row's tokens and logits alone, as `Sampling` asks of a processor: its matcher is taken back to where
    a text parts from the one before it, and reads on from there. So the nodes of a tree cost what they differ by.
    Nodes after a banned token keep their logits: no text reaches them.
    """

    def __init__(self, grammar: TextGrammar, prompt: int) -> None:
        """The processor for rows whose prompts have so many tokens: the grammar begins after them."""
        self._grammar, self._prompt = grammar, prompt
        self._matcher, self._text = grammar.matcher(), list[int]()
        self._turn = Lock()
        self.failure: str | None = None
        """The compiler's words for a text that it could not go on with."""

    def __call__(self, tokens: Tensor, logits: Tensor) -> Tensor:
        """Logits [R, V] after texts [R, T], -inf at banned tokens."""
        with self._turn:
            masks = [self._allowed(text, logits.shape[1]) for text in tokens[:, self._prompt :].tolist()]
        if not logits.is_cpu:
            return logits.where(torch.from_numpy(np.stack(masks)).to(logits.device), -torch.inf)
        values = logits.numpy()  # by one thread: to wait for a second one takes longer than the work
        return torch.from_numpy(np.where(np.stack(masks), values, values.dtype.type(-np.inf)))

    def fork(self) -> GrammarProcessor:
        """A copy that goes on by itself."""
        return GrammarProcessor(self._grammar, self._prompt)

    def accepts(self, text: Sequence[int]) -> int:
        """The number of first tokens of a text, the end included, that the grammar allows."""
        with self._turn:
            return self._read(list(text))

    def allows(self, text: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """For each node of a tree after a text, True if the grammar allows its path; the root is the last token.

        Behind a text that is none of the grammar's everything is allowed, for nothing is banned there.
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
        """Marks the allowed nodes below one at which the matcher stands, and leaves it there."""
        for child in edges[node]:
            if tokens[child] in self._grammar.ends:
                allowed[child] = self._matcher.is_accepting()
            elif self._matcher.try_consume_tokens([tokens[child]]):
                allowed[child] = True
                self._descend(child, tokens, edges, allowed)
                self._matcher.rollback(1)

    def _allowed(self, text: list[int], vocab: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """The tokens that may follow a text: [V] bool; all of them where the text is none of the grammar's."""
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
        """Moves the matcher to a text, or to where that leaves the grammar; returns how many tokens are allowed."""
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
        """A compiler for llguidance's view of a vocabulary, in which `ends` are the tokens that end a text."""
        self._tokens, self._ends = tokens, ends
        self._compile = lru_cache(KEPT)(self._compile_form)

    @classmethod
    def spelled(cls, tokens: Sequence[bytes], ends: frozenset[int]) -> GrammarCompiler:
        """A compiler for tokens that spell these bytes; none is an unused or special token, which no grammar allows."""
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
        """The grammar. Raises InputError for one that is not understood, or that no text follows."""
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
        """The tokens of a text, the longest first; bytes that no token spells are left out."""
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
    """The bytes of the first `size` tokens within a text; none of special tokens and of halves of characters."""
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
    """An error of the compiler in one short line."""
    return " ".join(reason.replace("<non-verbose/>", "").split())[:SHOWN]
