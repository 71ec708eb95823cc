"""Heads, which map a feature drafter's hidden state to logits: the target's LM head, full or trimmed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.neural.heads import divisible
from specframe.neural.quantize import Quantization
from specframe.neural.weights import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from specframe.kernel.interfaces import NeuralTarget

TOKENS = "tokens"
"""Name of the tensor of a stored draft vocabulary: int32 [v]."""


class FullHead:
    """Logits over the whole vocabulary from the target's frozen LM head (EAGLE, Falcon Eq. 6)."""

    def __init__(self) -> None:
        self._target: NeuralTarget | None = None

    def bind(self, target: NeuralTarget) -> None:
        """Shares the target's LM head."""
        if not hasattr(target, "head"):
            raise CompositionError("the head 'full' needs a target with an LM head, such as the target 'hf'")
        self._target = target

    def __call__(self, features: Tensor) -> Tensor:
        """The target's logits for these features, [..., D] -> [..., V]; differentiable in the features."""
        if self._target is None:
            raise CompositionError("the head 'full' was called before bind(target)")
        return self._target.head(features)


class Trimmed:
    """The target's logits of its most frequent tokens; other tokens are not drafted (VocabTrim, 2025).

    The rows of these tokens are copied from the LM head when the target is bound, and a drafter's forward pass
    reads no others. Decoding stays lossless: tokens that are never drafted can still be the bonus token. A drafter
    can be trained through this head, at a cost proportional to its size, or trained with the head `full` and
    trimmed afterwards.

    `counts` is a JSON object, {"token id": count}, over texts written by the target. `specframe train RECIPE
    --count-tokens counts.json` computes it from the answers in the recipe's training data. Without it the
    smallest token ids are kept, as byte-pair vocabularies are numbered by the frequency of their merges.
    Tokens without a count follow those with one, smallest ids first.

    Args:
        keep: number of tokens; larger than the vocabulary keeps all. Leave it out with stored `weights`, which fix it.
        counts: the JSON file of counts; none: the smallest ids are kept.
        weights: a stored draft vocabulary's folder, `zoo://name` or Hub name, as `store_vocabulary` writes it.
        quantize: bit width of the kept rows, 4 or 8: faster on a CPU, with almost unchanged drafts.
    """

    def __init__(
        self,
        *,
        keep: int | None = None,
        counts: Path | None = None,
        weights: str | None = None,
        quantize: Quantization | None = None,
    ) -> None:
        if (keep is None) == (weights is None):
            raise InputError("trimmed: give either keep, how many tokens, or the weights of a stored draft vocabulary")
        if keep is not None and keep < 1:
            raise InputError(f"trimmed: keep must be at least 1, not {keep}")
        if weights is not None and counts is not None:
            raise InputError("trimmed: a stored draft vocabulary needs no counts")
        self.keep = keep
        self.counts = counts
        self.weights = weights
        self.quantize = quantize
        self.support: Tensor | None = None
        """The kept tokens, ascending, int64 [v]; set by bind."""
        self.vocab = 0
        """The size of the target's vocabulary; set by bind."""
        self._part: Callable[[Tensor], Tensor] | None = None

    def untrained(self, vocab: int) -> Trimmed:
        """The head over all tokens of a vocabulary but one."""
        return Trimmed(keep=max(1, vocab - 1))

    def bind(self, target: NeuralTarget) -> None:
        """Copies the kept rows of the LM head.

        Raises CompositionError for a target whose LM head cannot be split, InputError for counts that cannot be
        read or belong to another vocabulary, WeightsError for such a stored draft vocabulary.
        """
        whole = divisible(target, "trimmed")
        self.vocab = vocab = target.vocab_size
        if self.weights is not None:
            tokens = load_vocabulary(self.weights, vocab)
        else:
            assert self.keep is not None
            tokens = torch.arange(min(self.keep, vocab))
            if self.counts is not None:
                counts = read_counts(self.counts, vocab)
                tokens = counts.sort(descending=True, stable=True).indices[: self.keep].sort().values
        self.support = tokens.to(target.device)
        rows = slice(0, len(tokens)) if int(tokens[-1]) == len(tokens) - 1 else self.support
        self._part = whole.head_for(rows, self.quantize)

    @property
    def matrix(self) -> Any:
        """The kept rows in native code's format if the logits are their product with the features; else None."""
        return getattr(self._part, "matrix", None)

    def __call__(self, features: Tensor) -> Tensor:
        """The logits of the kept tokens, [..., D] -> [..., v]; differentiable in the features."""
        if self._part is None:
            raise CompositionError("the head 'trimmed' was called before bind(target)")
        return self._part(features)


def store_vocabulary(tokens: Tensor, vocab: int, folder: Path) -> None:
    """Writes a draft vocabulary, int64 [v] of a vocabulary of `vocab` tokens, for the head's `weights`."""
    folder.mkdir(parents=True, exist_ok=True)
    with checkpoint.replacing(folder / checkpoint.WEIGHTS) as path:
        save_file({TOKENS: tokens.sort().values.to(torch.int32)}, path, metadata={"format": "pt"})
    text = json.dumps({"format": "draft_vocabulary", "vocab_size": vocab}, indent=2) + "\n"
    (folder / checkpoint.CONFIG).write_text(text, encoding="utf-8")


def load_vocabulary(weights: str, vocab: int) -> Tensor:
    """A stored draft vocabulary, ascending, int64 [v].

    Raises WeightsError for a folder with other content, or with tokens of another vocabulary.
    """
    checkpoint.check(weights, {"format": "draft_vocabulary", "vocab_size": vocab}, "draft vocabulary")
    path = checkpoint.locate(weights) / checkpoint.WEIGHTS
    try:
        tokens = load_file(path)[TOKENS].long()
    except (OSError, SafetensorError, KeyError) as error:
        raise WeightsError(f"cannot read {path}: {checkpoint.reason(error)}") from error
    if tokens.dim() != 1 or not len(tokens) or tokens[0] < 0 or tokens[-1] >= vocab or (tokens.diff() <= 0).any():
        raise WeightsError(f"{path} does not list tokens of a vocabulary of {vocab}, each once, in ascending order")
    return tokens


def read_counts(path: Path, vocab: int) -> Tensor:
    """Reads each token's number of occurrences, int64 [V], from a JSON object {"token id": count}.

    Raises InputError for a file of another format, or with tokens outside the vocabulary.
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
    occurrences = torch.zeros(vocab, dtype=torch.int64)
    occurrences[torch.tensor(list(counts), dtype=torch.int64)] = torch.tensor(list(counts.values()), dtype=torch.int64)
    return occurrences
