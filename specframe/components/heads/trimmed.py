"""VocabTrim: of the target's LM head only the rows of frequent tokens are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from specframe.kernel.errors import CompositionError, InputError
from specframe.neural.heads import divisible

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from specframe.kernel.interfaces import NeuralTarget


class Trimmed:
    """The target's logits of the tokens that it says most often; all others get -inf (VocabTrim, 2025).

    Nothing is trained: the rows of these tokens are copied out of the LM head when the target is bound, and a
    drafter forward reads no others. Output stays the target's, since a token that is never drafted is still
    the bonus where the target says it.

    `counts` is a JSON object, {"token id": count}, over texts that the target wrote itself. `python -m
    specframe.training.data.counting RECIPE counts.json` makes it of the answers in the recipe's training data.
    Without it the tokens of the smallest ids are kept: byte-pair vocabularies are numbered by the frequency
    of their merges. Tokens that were never counted follow, smallest ids first.

    It is for drafting: losses over a whole vocabulary have no use for -inf. Train with the head `full`.

    Args:
        keep: how many tokens; more than there are keeps all.
        counts: the JSON file of counts; none: the smallest ids are kept.
    """

    def __init__(self, *, keep: int, counts: Path | None = None) -> None:
        if keep < 1:
            raise InputError(f"trimmed: keep must be at least 1, not {keep}")
        self.keep = keep
        self.counts = counts
        self._vocab = 0
        self._tokens: slice | Tensor = slice(0)
        self._part: Callable[[Tensor], Tensor] | None = None

    def bind(self, target: NeuralTarget) -> None:
        """Copies the rows that are kept.

        Raises CompositionError for a target whose LM head cannot be divided, InputError for counts that
        cannot be read or are another vocabulary's.
        """
        whole = divisible(target, "trimmed")
        self._vocab = target.vocab_size
        keep = min(self.keep, self._vocab)
        if self.counts is None:
            self._tokens = slice(0, keep)
        else:
            counts = read_counts(self.counts, self._vocab)
            kept = sorted(counts.sort(descending=True, stable=True).indices[:keep].tolist())
            self._tokens = torch.tensor(kept, device=target.device)
        self._part = whole.head_for(self._tokens)

    def __call__(self, features: Tensor) -> Tensor:
        """The logits of what is kept and -inf, [..., D] -> [..., V]."""
        if self._part is None:
            raise CompositionError("the head 'trimmed' was called before bind(target)")
        if features.requires_grad:
            raise CompositionError("the head 'trimmed' is for drafting: train the drafter with the head full")
        kept = self._part(features)
        logits = kept.new_full((*kept.shape[:-1], self._vocab), -torch.inf)
        logits[..., self._tokens] = kept
        return logits


def read_counts(path: Path, vocab: int) -> Tensor:
    """How often each token was said, int64 [V], by a JSON object {"token id": count}.

    Raises InputError for a file that is something else, or that speaks of tokens outside the vocabulary.
    """
    try:
        stored = json.loads(path.expanduser().read_text(encoding="utf-8"))
        counts = {int(token): int(count) for token, count in stored.items()}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InputError(f'trimmed: {path} holds no {{"token id": count}} object of JSON: {error}') from error
    if strange := [token for token in counts if not 0 <= token < vocab]:
        raise InputError(
            f"trimmed: {path} counts token {max(strange)}, outside the target's vocabulary of {vocab}; "
            "was it made with another tokenizer?"
        )
    said = torch.zeros(vocab, dtype=torch.int64)
    said[torch.tensor(list(counts), dtype=torch.int64)] = torch.tensor(list(counts.values()), dtype=torch.int64)
    return said
