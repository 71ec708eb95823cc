"""What is trained: the n-gram encoder, the full context encoder, and a residual decoding head per level."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specframe.neural import DecoderLayer

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NOTHING = -1
"""In an n-gram, the place of a token before the text's first."""


class NGramEncoder(nn.Module):
    """W2 (x + SiLU(W1 x + b)) of the embeddings of n tokens side by side (Chimera Section 3.2.1, Eq. 2).

    W1 is zero at first, as in the published code.
    """

    def __init__(self, size: int, ngram: int) -> None:
        super().__init__()
        self.inner = nn.Linear(ngram * size, ngram * size)
        self.outer = nn.Linear(ngram * size, size, bias=False)
        nn.init.zeros_(self.inner.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[.., n D], the oldest token first, to [.., D]."""
        state: Tensor = self.outer(x + silu(self.inner(x)))
        return state


class Network(nn.Module):
    """Chimera's draft model (Chimera Section 3.2).

    The heads start as the published ones do: as the target's LM head on the sum of what they read. `output` is its
    weight [V, D]; with None they end before an LM head that they share, and start as the sum alone.
    """

    def __init__(
        self, config: PretrainedConfig, levels: int, ngram: int, residual: bool, output: Tensor | None
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.residual = residual
        self.ngrams = NGramEncoder(size, ngram)
        self.layer = DecoderLayer(config)
        start = torch.eye(size) if output is None else output
        start = torch.cat([start, start], 1) if residual else start
        heads = [nn.Linear(start.shape[1], start.shape[0], bias=False) for _ in range(levels)]
        with torch.no_grad():
            for head in heads:
                head.weight.copy_(start)
        self.heads = nn.ModuleList(heads)

    def encode(self, grams: Tensor, embed: Callable[[Tensor], Tensor]) -> Tensor:
        """The states of n-grams: [.., n] tokens, the oldest first, to [.., D]. NOTHING embeds as zero."""
        embedded = embed(grams.clamp(min=0)) * (grams != NOTHING)[..., None]  # [.., n, D]
        state: Tensor = self.ngrams(embedded.flatten(-2))
        return state

    def fuse(self, features: Tensor, grams: Tensor, level: int) -> Tensor:
        """The full context encoder's last states, [B, n, D], [B, n + level - 1, D] -> [B, n, D].

        Feature i stands at position i, and n-gram j, which ends with token j + 1, at j + 1. State i is that of the
        newest n-gram which head `level` may see when feature i is the last one (Chimera Section 3.2.2).
        """
        n, count = features.shape[1], grams.shape[1]
        entries = torch.cat([features, grams], 1)
        places = torch.arange(count + 1, device=features.device)
        positions = torch.cat([places[:n], places[1:]]).expand(len(entries), -1)
        states: Tensor = self.layer(entries, positions, fusion_mask(n, level, features.device))
        return states[:, -n:]

    def speak(self, level: int, states: Tensor, features: Tensor) -> Tensor:
        """What head `level` (from 1) says of an encoder state and the last true feature (Chimera Eq. 3).

        [.., D], [.., D] -> [.., V], or [.., D] where the LM head is shared.
        """
        inputs = torch.cat([states, features], -1) if self.residual else states
        said: Tensor = self.heads[level - 1](inputs)
        return said


def ngrams(tokens: Tensor, ngram: int) -> Tensor:
    """The n-gram that ends with each token, [B, M] -> [B, M, n]; the first ones are shorter, NOTHING before them."""
    before = tokens.new_full((len(tokens), ngram - 1), NOTHING)
    return torch.cat([before, tokens], 1).unfold(1, ngram, 1)


def fusion_mask(n: int, level: int, device: torch.device | str | None = None) -> Tensor:
    """Who sees whom among n features and n + level - 1 n-grams behind them: [1, 1, S, S] bool (Chimera Figure 7).

    An n-gram's query knows the tokens up to its own last one, so that it sees the n-grams up to itself: a later one
    holds a future token. Of these tokens the last `level` have no feature yet. Features see the features up to their
    own; what comes out there is not used.
    """
    feature = torch.arange(n, device=device)
    gram = torch.arange(n + level - 1, device=device)
    newest_feature = torch.cat([feature, gram - level + 1])[:, None]  # [S, 1], that a query sees
    newest_gram = torch.cat([torch.full_like(feature, -1), gram])[:, None]
    return torch.cat([feature <= newest_feature, gram <= newest_gram], 1)[None, None]
