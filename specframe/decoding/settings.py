"""The recipe's plain sections: sampling, and the prompts to decode."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain
from math import isfinite
from pathlib import Path
from typing import Any, Literal

from specframe.kernel.errors import InputError
from specframe.sampling.grammar import GrammarProcessor, TextGrammar, require_grammar
from specframe.sampling.laws import Processor, Sampling
from specframe.sampling.penalties import BannedWords, Bias, LeastLength, NoRepeats, Penalties


@dataclass(frozen=True, kw_only=True)
class SamplingSettings:
    """The `sampling` section.

    Args:
        temperature: 0 is greedy decoding; otherwise logits are divided by it.
        top_k: keep the k most probable tokens; 0 keeps all.
        top_p: keep the smallest set of tokens whose probability reaches it.
        min_p: drop tokens less probable than this share of the most probable one.
        repetition_penalty: divides positive logits of tokens in prompt or continuation, and multiplies negative ones;
            1 changes nothing.
        frequency_penalty: subtracted from a token's logit for each time it occurs in the continuation.
        presence_penalty: subtracted once from the logit of every token of the continuation.
        logit_bias: numbers added to the logits of tokens, such as `{7: -100}`.
        no_repeat_ngram_size: no n-gram of this size occurs twice in prompt and continuation; 0 bans none.
        bad_words_ids: words that never occur, each a list of token ids, such as `[[7], [12, 40]]`.
        suppress_tokens: tokens that never occur, such as `[7, 12]`; those that end a continuation, too.
        begin_suppress_tokens: tokens that no continuation begins with.
        grammar: the grammar that every continuation follows to its end: `{json: SCHEMA}`, `{regex: '[0-9]+'}`,
            `{choice: [yes, no]}` or `{lark: RULES}`, rules of Lark or llama.cpp.
        min_new_tokens: tokens that end a continuation are banned until it has this many; a stop text still ends it.
        max_new_tokens: how many tokens a prompt is continued by, at most.
        stop: texts that end a continuation; the text of a special token may be one.
        stop_token_ids: tokens that end a continuation, in addition to the model's own.
        ignore_eos: go on after an end-of-sequence token, for measuring.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: dict[str, float] = field(default_factory=dict)
    no_repeat_ngram_size: int = 0
    bad_words_ids: list[list[int]] = field(default_factory=list)
    suppress_tokens: list[int] = field(default_factory=list)
    begin_suppress_tokens: list[int] = field(default_factory=list)
    grammar: dict[str, Any] | None = None
    min_new_tokens: int = 0
    max_new_tokens: int = 128
    stop: list[str] = field(default_factory=list)
    stop_token_ids: list[int] = field(default_factory=list)
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and isfinite(self.temperature)):
            raise InputError(
                f"temperature {self.temperature} is no number of at least 0; 0 is greedy, 1 the model's distribution"
            )
        if self.top_k < 0:
            raise InputError(f"top_k {self.top_k} is negative; 0 keeps all tokens")
        if not 0 < self.top_p <= 1:
            raise InputError(f"top_p {self.top_p} is outside (0, 1]; 1 keeps all tokens")
        if not 0 <= self.min_p < 1:
            raise InputError(f"min_p {self.min_p} is outside [0, 1); 0 keeps all tokens")
        self._check_penalties()
        if "" in self.stop:
            raise InputError("an empty stop text would end every continuation at once; leave it out")
        if any(token < 0 for token in self.stop_token_ids):
            raise InputError(f"stop_token_ids {self.stop_token_ids} has a negative number; tokens are counted from 0")
        if self.grammar is not None:
            require_grammar(self.grammar)
            if self.ignore_eos:
                raise InputError("a text of a grammar ends with an end-of-sequence token, and ignore_eos ignores it")
        if self.max_new_tokens < 1:
            raise InputError(f"max_new_tokens {self.max_new_tokens} generates nothing; use 1 or more")

    def _check_penalties(self) -> None:
        if not (self.repetition_penalty > 0 and isfinite(self.repetition_penalty)):
            raise InputError(f"repetition_penalty {self.repetition_penalty} is no positive number; 1 changes nothing")
        for name in ("frequency_penalty", "presence_penalty"):
            if not -2 <= (value := getattr(self, name)) <= 2:
                raise InputError(f"{name} {value} is outside [-2, 2]; 0 changes nothing")
        for token, value in self.logit_bias.items():
            if not (str(token).isascii() and str(token).isdecimal()):
                raise InputError(f"logit_bias names the token {token!r}; give token ids, such as {{7: -100}}")
            if not isfinite(value):
                raise InputError(f"logit_bias {value} of token {token} is no finite number; -100 bans a token")
        if self.no_repeat_ngram_size < 0:
            raise InputError(f"no_repeat_ngram_size {self.no_repeat_ngram_size} is negative; 0 bans nothing")
        if any(not word or min(word) < 0 for word in self.bad_words_ids):
            raise InputError(f"bad_words_ids {self.bad_words_ids} are no lists of token ids, such as [[7], [12, 40]]")
        for name in ("suppress_tokens", "begin_suppress_tokens"):
            if min(tokens := getattr(self, name), default=0) < 0:
                raise InputError(f"{name} {tokens} has a negative number; tokens are counted from 0")
        if self.min_new_tokens < 0:
            raise InputError(f"min_new_tokens {self.min_new_tokens} is negative; 0 bans nothing")

    def require_within(self, vocab: int) -> None:
        """Raises InputError for tokens outside a vocabulary of `vocab` tokens."""
        named = {
            "stop_token_ids": self.stop_token_ids,
            "logit_bias": self.biases,
            "bad_words_ids": chain.from_iterable(self.bad_words_ids),
            "suppress_tokens": self.suppress_tokens,
            "begin_suppress_tokens": self.begin_suppress_tokens,
        }
        for name, tokens in named.items():
            if max(tokens, default=0) >= vocab:
                raise InputError(f"sampling.{name} has tokens outside the target's vocabulary of {vocab}")

    @property
    def biases(self) -> dict[int, float]:
        """Numbers added to logits, by token."""
        return {int(token): value for token, value in self.logit_bias.items()}

    def law(self, prompt: int = 0, ends: Collection[int] = (), grammar: TextGrammar | None = None) -> Sampling:
        """The sampling of a row with `prompt` tokens of prompt, ended by the tokens `ends`.

        `grammar` is the settings' grammar, compiled: see `grammar_of`.
        """
        guiding: list[Processor] = [] if grammar is None else [GrammarProcessor(grammar, prompt)]
        return Sampling(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            processors=(*guiding, *self._processors(prompt, ends)),
        )

    def _processors(self, prompt: int, ends: Collection[int]) -> Iterator[Processor]:
        if self.logit_bias:
            yield Bias(tuple(sorted(self.biases.items())))
        if self.min_new_tokens and ends:
            yield LeastLength(prompt, self.min_new_tokens, tuple(sorted(ends)))
        if self.begin_suppress_tokens:
            yield LeastLength(prompt, 1, tuple(self.begin_suppress_tokens))
        if self.frequency_penalty or self.presence_penalty:
            yield Penalties(prompt, self.repetition_penalty, self.frequency_penalty, self.presence_penalty)
        elif self.repetition_penalty != 1:  # wherever the prompt ends: rows of any prompt have one sampling
            yield Penalties(0, self.repetition_penalty, 0.0, 0.0)
        if self.no_repeat_ngram_size:
            yield NoRepeats(self.no_repeat_ngram_size)
        # A single end token is not banned, as in `generate`: `min_new_tokens` and `ignore_eos` are for that.
        words = [tuple(word) for word in self.bad_words_ids if not (len(word) == 1 and word[0] in ends)]
        if words := [*words, *((token,) for token in self.suppress_tokens)]:
            yield BannedWords(tuple(words))


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The `run` section.

    Args:
        prompts: the texts to continue, or the questions to answer when `chat` is true; one may be a list of token ids.
        chat: wrap every prompt as a user's turn in the tokenizer's chat template.
        chat_template_kwargs: variables of that template, such as `{enable_thinking: false}`, in every conversation.
        batch: how many prompts are decoded side by side.
        seed: seeds every random stream of the run.
        repeats: how many alternating runs the speed figures are medians of; 0 measures nothing.
        costs: times of forward passes, for drafts of as many nodes as pay: `measured` on this machine, once, or the
            file of `specframe profile --out`; none: drafts are as large as the recipe has them.
        threads: how many threads target and drafter compute with while both do, such as `{target: 1, drafter: 1}`;
            none: all for both. Only for a drafter that drafts `ahead`.
    """

    prompts: list[str | list[int]] = field(default_factory=list)
    chat: bool = False
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    batch: int = 1
    seed: int = 0
    repeats: int = 3
    costs: Literal["measured"] | Path | None = None
    threads: dict[str, int] | None = None

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise InputError(f"batch {self.batch} decodes nothing; use 1 or more")
        if self.repeats < 0:
            raise InputError(f"repeats {self.repeats} is negative; 0 measures nothing")
        if isinstance(self.costs, Path) and not self.costs.is_file():
            raise InputError(f"there is no file {self.costs} of costs; `measured` times this machine")
        if self.threads is not None:
            if set(self.threads) != {"target", "drafter"} or min(self.threads.values()) < 1:
                raise InputError(f"threads are {{target: N, drafter: N}}, each at least 1, not {self.threads}")
            if sum(self.threads.values()) > (cores := os.cpu_count() or 1):
                raise InputError(
                    f"threads {self.threads} are {sum(self.threads.values())}, and this machine has {cores} cores: "
                    "lower them, or leave them out, and both use all"
                )
