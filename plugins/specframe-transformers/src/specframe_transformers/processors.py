"""Sampling settings of each row, from the logits processors of a `generate` call."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import is_dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.generation import logits_process as theirs

from specframe import InputError, Sampling
from specframe_transformers.forked import Forked

Processor = Callable[[Tensor, Tensor], Tensor]
"""A LogitsProcessor: (input_ids [R, T], logits [R, V]) -> logits [R, V]."""

WARPERS = {
    theirs.TemperatureLogitsWarper: "temperature",
    theirs.TopKLogitsWarper: "top_k",
    theirs.TopPLogitsWarper: "top_p",
    theirs.MinPLogitsWarper: "min_p",
}
"""Warpers that are fields of Sampling, in the order in which Sampling applies them."""

STATEFUL = (theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor, theirs.SynthIDTextWatermarkLogitsProcessor)


def row_samplings(processors: Sequence[Any], prompts: Tensor, padding: Sequence[int], sample: bool) -> list[Sampling]:
    """Returns the sampling settings of each row of prompts [B, T], which begin with `padding` tokens of padding.

    Processors see a row as in `generate`, with its padding and at its index in the batch. Raises InputError for one of
    transformers' own that keeps a state.
    """
    for processor in processors:
        if isinstance(processor, STATEFUL):
            raise InputError(
                f"{type(processor).__name__} keeps a state from step to step, which cannot follow a tree of drafts"
            )
    rest, fields = _split(processors)
    if not sample:
        fields["temperature"] = 0.0
    plain = Sampling(**fields)
    return [replace(plain, processors=_for_row(rest, row, prompts, skipped)) for row, skipped in enumerate(padding)]


def _split(processors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Splits off the last warpers as fields of Sampling, which are faster; returns the other processors and these.

    A warper is only translated if nothing but translated warpers follow it in Sampling's order.
    """
    rest, order = list(processors), list(WARPERS)
    fields: dict[str, Any] = {"temperature": 1.0}
    place = len(order)
    while rest and _translates(rest[-1]) and order.index(type(rest[-1])) < place:
        warper = rest.pop()
        place = order.index(type(warper))
        name = WARPERS[type(warper)]
        fields[name] = getattr(warper, name)
    return tuple(rest), fields


def _translates(processor: Any) -> bool:
    """Returns whether Sampling is equivalent: a warper that keeps at least one token, and bans the others."""
    keeps, fills = getattr(processor, "min_tokens_to_keep", 1), getattr(processor, "filter_value", -math.inf)
    return type(processor) in WARPERS and keeps == 1 and fills == -math.inf


def _for_row(processors: tuple[Any, ...], row: int, prompts: Tensor, padding: int) -> tuple[Processor, ...]:
    """Returns the processors as one row sees them; unchanged objects if they do not depend on the row."""
    own = tuple(_of_row(processor, row, prompts) for processor in processors)
    return (Padded(own, prompts[row, :padding]),) if own and padding else own


def _of_row(processor: Any, row: int, prompts: Tensor) -> Processor:
    """Returns the processor for the nodes of this row alone."""
    prompt = prompts[row]
    if not _is_pure(processor):
        return Forked(processor, row, len(prompts))
    if type(processor) is theirs.RepetitionPenaltyLogitsProcessor:
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(ignored, Tensor):
            return theirs.RepetitionPenaltyLogitsProcessor(processor.penalty, int(ignored[row]))
    if type(processor) is theirs.EncoderRepetitionPenaltyLogitsProcessor:
        return EncoderPenalty(processor.penalty, prompt)
    if type(processor) is theirs.EncoderNoRepeatNGramLogitsProcessor:
        return theirs.EncoderNoRepeatNGramLogitsProcessor(processor.ngram_size, prompt[None])  # type: ignore[arg-type]
    if type(processor) is theirs.PrefixConstrainedLogitsProcessor:
        return PrefixConstraint(processor._prefix_allowed_tokens_fn, row)
    shared: Processor = processor
    return shared


def _is_pure(processor: Any) -> bool:
    """Returns whether a processor keeps no state and treats all rows equally: transformers' own, or immutable."""
    kind = type(processor)
    frozen = is_dataclass(kind) and kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    return frozen or kind.__module__ == theirs.__name__


class Padded:
    """Processors that see a row with the padding before it, as in `generate`.

    There, lengths, n-grams and hashes of texts include the padding.
    """

    def __init__(self, processors: tuple[Processor, ...], padding: Tensor) -> None:
        self._processors = processors
        self._padding = padding

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Returns the processed scores [N, V] of nodes with tokens [N, T]."""
        padding = self._padding.to(tokens.device).expand(len(tokens), -1)
        whole = torch.cat([padding, tokens], 1)
        for processor in self._processors:
            scores = processor(whole, scores)
        return scores


class EncoderPenalty:
    """`EncoderRepetitionPenaltyLogitsProcessor` of one row, for any number of its nodes."""

    def __init__(self, penalty: float, prompt: Tensor) -> None:
        self._penalty = penalty
        self._prompt = prompt

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Returns the processed scores [N, V] of nodes with tokens [N, T]."""
        prompt = self._prompt.to(scores.device).expand(len(scores), -1)
        found = scores.gather(1, prompt)
        return scores.scatter(1, prompt, torch.where(found < 0, found * self._penalty, found / self._penalty))


class PrefixConstraint:
    """`PrefixConstrainedLogitsProcessor` of one row.

    A draft may contain a token that is not allowed. Tokens after it are never reached, so the function need not return
    anything for them.
    """

    def __init__(self, allowed: Callable[[int, Tensor], list[int]], row: int) -> None:
        self._allowed = allowed
        self._row = row
        self._answers: dict[tuple[int, ...], list[int]] = {}  # answers for the texts of one tree
        self._length = 0

    def __call__(self, tokens: Tensor, scores: Tensor) -> Tensor:
        """Returns the processed scores [N, V] of nodes with tokens [N, T]."""
        if tokens.shape[1] <= self._length:  # the root of the next tree, since nodes are ordered by depth
            self._answers = {}
        self._length = tokens.shape[1]
        answered = [index for index, text in enumerate(tokens) if self._ask(text)]
        if not answered:
            return scores
        rows = torch.tensor(answered, device=scores.device)
        constrain = theirs.PrefixConstrainedLogitsProcessor(lambda _, text: self._answers[tuple(text.tolist())], 1)
        processed = scores.clone()
        processed[rows] = constrain(tokens[rows], scores[rows])
        return processed

    def _ask(self, text: Tensor) -> bool:
        """Returns whether there is an answer for a text, or none is needed."""
        known = tuple(text.tolist())
        parent_answer = self._answers.get(known[:-1])
        try:
            self._answers[known] = list(self._allowed(self._row, text))
        except Exception:
            if parent_answer is None or known[-1] in parent_answer:
                raise
            self._answers[known] = []
        return bool(self._answers[known]) or parent_answer is None or known[-1] in parent_answer
