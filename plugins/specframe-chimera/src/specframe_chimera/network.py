"""Chimera's trained modules: the n-gram encoder, the full context encoder, and a residual decoding head per level."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from specframe.neural import DecoderLayer, Depths, DraftNetwork, Embed
from specframe.plugin import Frontier, PairSpec, Predicted
from specframe_chimera.session import NOTHING, States

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe_chimera.cache import NGramCache


class NGramEncoder(nn.Module):
    """W2 (x + SiLU(W1 x + b)) of the concatenated embeddings of n tokens (Chimera Section 3.2.1, Eq. 2).

    W1 is initialised with zeros, as in the published code.
    """

    def __init__(self, size: int, ngram: int) -> None:
        super().__init__()
        self.inner = nn.Linear(ngram * size, ngram * size)
        self.outer = nn.Linear(ngram * size, size, bias=False)
        nn.init.zeros_(self.inner.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Maps [.., n D], oldest token first, to [.., D]."""
        state: Tensor = self.outer(x + silu(self.inner(x)))
        return state


class ChimeraNetwork(DraftNetwork, nn.Module):
    """Chimera's draft model (Chimera Section 3.2).

    The heads are initialised as published: the target's LM head applied to the sum of their inputs. `output` is its
    weight [V, D]; with None the heads share an LM head, and are initialised as the sum of their inputs.
    """

    spec = PairSpec(feeds=False)
    states: NGramCache | None = None
    """Cache of n-gram states, for reuse when an n-gram recurs."""

    def __init__(
        self, config: PretrainedConfig, levels: int, ngram: int, residual: bool, output: Tensor | None
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.levels = levels
        self.ngram = ngram
        self.residual = residual
        self.own = output is not None
        self.ngrams = NGramEncoder(size, ngram)
        self.layer = DecoderLayer(config)
        start = torch.eye(size) if output is None else output
        start = torch.cat([start, start], 1) if residual else start
        heads = [nn.Linear(start.shape[1], start.shape[0], bias=False) for _ in range(levels)]
        with torch.no_grad():
            for head in heads:
                head.weight.copy_(start)
        self.heads = nn.ModuleList(heads)

    def encode(self, grams: Tensor, embed: Embed) -> Tensor:
        """Returns the states of n-grams: [.., n] tokens, oldest first, to [.., D]. NOTHING is embedded as zero."""
        embedded = embed(grams.clamp(min=0)) * (grams != NOTHING)[..., None]  # [.., n, D]
        state: Tensor = self.ngrams(embedded.flatten(-2))
        return state

    def fuse_context(self, features: Tensor, grams: Tensor, level: int) -> Tensor:
        """Returns the full context encoder's last states, [B, n, D], [B, n + level - 1, D] -> [B, n, D].

        Feature i is at position i, and n-gram j, which ends with token j + 1, at position j + 1. State i is that of the
        newest n-gram that head `level` may see when feature i is the last one (Chimera Section 3.2.2).
        """
        n, count = features.shape[1], grams.shape[1]
        entries = torch.cat([features, grams], 1)
        places = torch.arange(count + 1, device=features.device)
        positions = torch.cat([places[:n], places[1:]]).expand(len(entries), -1)
        states: Tensor = self.layer(entries, positions, fusion_mask(n, level, features.device))
        return states[:, -n:]

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns all levels after every feature, and the encoder's states from which they were predicted.

        Level k from entry i reads the features 0 .. i and the n-grams that end with the tokens 0 .. i + k - 1, and its
        state imitates feature i + k. If gradients are enabled, cached states are dropped because the weights will
        change.
        """
        if self.states is not None and torch.is_grad_enabled():
            self.states.clear()
        n = features.shape[1]
        grams = self.encode(ngrams(tokens, self.ngram), embed)  # [B, n + K - 1, D]
        levels = range(1, self.levels + 1)
        states = [self.fuse_context(features, grams[:, : n + level - 1], level) for level in levels]
        hidden = [self._hidden(level, state, features) for level, state in zip(levels, states, strict=True)]
        return Predicted(torch.stack(hidden, 2), torch.stack(states, 2), self._read if self.own else None)

    def open(self, embed: Embed, slots: int, room: int) -> States:
        """Returns an empty session."""
        encode = self.states if self.states is not None else lambda grams: self.encode(grams, embed)
        return States(self.layer, encode, self._expand, self.ngram, slots, room=room)

    def _expand(self, frontier: Frontier, states: Tensor, depth: Tensor, features: Tensor) -> Predicted:
        """Returns the level below each frontier node, from encoder states [B, F, D], depths and features [B, D]."""
        depths = Depths.of(frontier, depth, "chimera", self.levels)
        features = features[:, None].expand_as(states)
        hidden = depths.choose(lambda level: self._hidden(level, states, features))[:, :, None]
        if not self.own:
            return Predicted(hidden)
        return Predicted(hidden, read=lambda inputs: depths.choose(lambda level: self._logits(level, inputs)))

    def _hidden(self, level: int, states: Tensor, features: Tensor) -> Tensor:
        """Returns the input of head `level` (from 1), given an encoder state and the last true feature (Chimera Eq. 3).

        LM heads per level read both; a shared LM head reads the output of the level's head.
        """
        inputs = torch.cat([states, features], -1) if self.residual else states
        return inputs if self.own else self._logits(level, inputs)

    def _read(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all levels: [.., K, H] -> [.., K, V]."""
        return torch.stack([self._logits(level, part) for level, part in enumerate(hidden.unbind(-2), 1)], -2)

    def _logits(self, level: int, inputs: Tensor) -> Tensor:
        logits: Tensor = self.heads[level - 1](inputs)
        return logits


def ngrams(tokens: Tensor, ngram: int) -> Tensor:
    """Returns the n-gram ending with each token, [B, M] -> [B, M, n]; NOTHING stands for tokens before the text."""
    before = tokens.new_full((len(tokens), ngram - 1), NOTHING)
    return torch.cat([before, tokens], 1).unfold(1, ngram, 1)


def fusion_mask(n: int, level: int, device: torch.device | str | None = None) -> Tensor:
    """Returns the attention mask of n features and the n + level - 1 n-grams after them: [1, 1, S, S] bool (Figure 7).

    An n-gram's query may use the tokens up to its own last one, so it sees the n-grams up to itself; later ones contain
    future tokens. The last `level` of these tokens have no feature yet. Features see the features up to their own;
    their outputs are not used.
    """
    feature = torch.arange(n, device=device)
    gram = torch.arange(n + level - 1, device=device)
    newest_feature = torch.cat([feature, gram - level + 1])[:, None]  # [S, 1], the newest feature that a query sees
    newest_gram = torch.cat([torch.full_like(feature, -1), gram])[:, None]
    return torch.cat([feature <= newest_feature, gram <= newest_gram], 1)[None, None]
