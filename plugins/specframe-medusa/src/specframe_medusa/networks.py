"""Trained modules: residual blocks on a feature, one stack per level, and the LM heads after them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, silu

from specframe.neural import DecoderLayer, Depths, DraftNetwork, FeatureNetwork, FeatureSession, LastFeature, too_deep
from specframe.plugin import Frontier, PairSpec, Predicted, TokenTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig

    from specframe.neural import Embed, State
    from specframe.plugin import Committed


class ResBlock(nn.Module):
    """x + SiLU(W x + b) with W initialised to zero (Medusa, Section 2.1.1).

    A block that also reads `conditions` embeddings, [.., (1 + conditions) D] -> [.., D], has a projection for its
    residual (Hydra's code), which is initialised to select the feature.
    """

    def __init__(self, size: int, conditions: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear((1 + conditions) * size, size)
        nn.init.zeros_(self.linear.weight)
        self.res_connection: nn.Module = nn.Identity()
        if conditions:
            projection = nn.Linear((1 + conditions) * size, size)
            nn.init.eye_(projection.weight)
            nn.init.zeros_(projection.bias)
            self.res_connection = projection

    def forward(self, x: Tensor) -> Tensor:
        """Maps [.., (1 + conditions) D] to [.., D]."""
        states: Tensor = self.res_connection(x) + silu(self.linear(x))
        return states


class MedusaNetwork(DraftNetwork, nn.ModuleList):
    """Medusa's heads (Medusa, Section 2.1.1), under the names of the published checkpoints.

    Head k is `k`: its residual blocks, then its own LM head, unless `vocab` is None and the heads share one.
    """

    spec = PairSpec(imitates=None, feeds=False)

    def __init__(self, size: int, heads: int, layers: int, vocab: int | None) -> None:
        def head() -> nn.Sequential:
            own = [] if vocab is None else [nn.Linear(size, vocab, bias=False)]
            return nn.Sequential(*(ResBlock(size) for _ in range(layers)), *own)

        super().__init__(head() for _ in range(heads))
        self.levels = heads
        self.layers = layers

    def forward(self, features: Tensor) -> Predicted:
        """Applies every head's blocks to the features, with its own LM head as reader: [.., D] -> [.., K, D]."""
        hidden = torch.stack([self._blocks(head, features) for head in self], -2)
        return Predicted(hidden, read=self._read if self.lm_heads() else None)

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns all levels after every feature; the tokens are not used."""
        return self(features)

    def open(self, embed: Embed, slots: int, room: int) -> LastFeature:
        """Returns an empty session."""
        return LastFeature(self._expand, self.spec)

    def lm_heads(self) -> list[nn.Linear]:
        """The heads' own LM heads; empty if they share one."""
        return [part for head in self for part in head.children() if isinstance(part, nn.Linear)]

    def _expand(self, features: Tensor, frontier: Frontier) -> Predicted:
        """Returns all levels below the root; deeper nodes have none."""
        if frontier.tree.levels >= self.levels:
            raise too_deep("medusa", self.levels)
        return self(features[:, None].expand(-1, frontier.nodes.shape[1], -1))

    def _blocks(self, head: nn.Module, features: Tensor) -> Tensor:
        """Applies a head's residual blocks to the features: [.., D] -> [.., D]."""
        for block in list(head.children())[: self.layers]:
            features = block(features)
        return features

    def _read(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all levels: [.., K, D] -> [.., K, V]."""
        return torch.stack([head(part) for head, part in zip(self.lm_heads(), hidden.unbind(-2), strict=True)], -2)


class Prefix(FeatureNetwork):
    """Hydra++'s prefix attention: a decoder layer of the target's type over its features alone, and a norm."""

    def __init__(self, config: PretrainedConfig) -> None:
        super().__init__()
        self.layer = DecoderLayer(config)
        self.norm = nn.RMSNorm(config.hidden_size, eps=getattr(config, "rms_norm_eps", 1e-6))

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the features unchanged."""
        return pairs, state

    def hidden(self, outputs: Tensor) -> Tensor:
        """Returns the base states, [.., D] -> [.., D]."""
        states: Tensor = self.norm(outputs)
        return states


class HydraNetwork(DraftNetwork, nn.Module):
    """Hydra's sequentially dependent heads (Ankner et al. 2024), with or without the prefix layer of Hydra++.

    Head k reads the base state and the embeddings of the root and of the k - 1 drafted tokens below it.
    """

    spec = PairSpec(imitates=None, feeds=False)

    def __init__(
        self,
        config: PretrainedConfig,
        heads: int,
        layers: int,
        vocab: int | None,
        prefix: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.levels = heads
        self.dropout = dropout
        self.prefix = Prefix(config) if prefix else None
        self.mlp = nn.ModuleList(
            nn.ModuleList([ResBlock(size, level), *(ResBlock(size) for _ in range(layers - 1))])
            for level in range(1, heads + 1)
        )
        self.lm_head = None if vocab is None else nn.ModuleList(nn.Linear(size, vocab) for _ in range(heads))

    def forward(self, level: int, base: Tensor, path: Tensor) -> Tensor:
        """Applies the blocks of head `level` (from 1) to a base state and a path: [.., D], [.., level, D] -> [.., D].

        The path holds embeddings, starting with the root's.
        """
        states = torch.cat([base, path.flatten(-2)], -1)
        for block in self.mlp[level - 1].children():
            states = block(dropout(states, self.dropout, self.training))
        return states

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns all levels after every feature; level k reads the tokens i .. i + k - 1 with entry i's base state."""
        base = features if self.prefix is None else self.prefix.hidden(self.prefix(features))  # [B, n, D]
        paths = embed(tokens).unfold(1, self.levels, 1).transpose(-1, -2)  # [B, n, K, D]
        hidden = [self(level, base, paths[:, :, :level]) for level in range(1, self.levels + 1)]
        return Predicted(torch.stack(hidden, 2), read=None if self.lm_head is None else self._read)

    def open(self, embed: Embed, slots: int, room: int) -> LastFeature | PrefixedFeature:
        """Returns an empty session."""

        def expand(base: Tensor, frontier: Frontier) -> Predicted:
            return self._expand(base, frontier, embed)

        return (
            LastFeature(expand, self.spec) if self.prefix is None else PrefixedFeature(self.prefix, expand, slots, room)
        )

    def lm_heads(self) -> list[nn.Linear]:
        """The heads' own LM heads; empty if they share one."""
        return [head for head in self.lm_head or () if isinstance(head, nn.Linear)]

    def _expand(self, base: Tensor, frontier: Frontier, embed: Embed) -> Predicted:
        """Returns the level below each frontier node, given the base states [B, D]."""
        climb, depth = _climb(frontier)  # [B, F, levels + 1], [B, F]
        depths = Depths.of(frontier, depth, "hydra", self.levels)
        base = base[:, None].expand(-1, climb.shape[1], -1)
        embedded = embed(climb)  # [B, F, levels + 1, D], from the node's own token to the root's
        hidden = depths.choose(lambda level: self(level, base, embedded[:, :, :level].flip(2)))[:, :, None]
        if self.lm_head is None:
            return Predicted(hidden)
        return Predicted(hidden, read=lambda states: depths.choose(lambda level: self._logits(level, states)))

    def _read(self, hidden: Tensor) -> Tensor:
        """Returns the logits of all levels: [.., K, D] -> [.., K, V]."""
        return torch.stack([self._logits(level, part) for level, part in enumerate(hidden.unbind(-2), 1)], -2)

    def _logits(self, level: int, hidden: Tensor) -> Tensor:
        return self.lm_heads()[level - 1](dropout(hidden, self.dropout, self.training))


class PrefixedFeature:
    """The prefix layer's output at each row's last true feature; keys and values of earlier features are cached."""

    def __init__(self, prefix: Prefix, expand: Callable[[Tensor, Frontier], Predicted], slots: int, room: int) -> None:
        def nothing(tokens: Tensor) -> Tensor:
            return prefix.norm.weight.new_zeros(*tokens.shape, 0)

        self._session = FeatureSession(prefix, nothing, slots, room=room)
        self._expand = expand

    def commit(self, committed: Committed) -> None:
        """Stores the committed pairs; the next draft's first forward pass reads them."""
        self._session.commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._session.keep(rows)

    def expand(self, frontier: Frontier) -> Predicted:
        """Returns the predictions below each frontier node."""
        root = TokenTree.root_only(frontier.tree.tokens[:, 0])
        base = self._session.expand(Frontier(root, torch.zeros_like(root.tokens))).hidden[:, 0, 0]
        return self._expand(base, frontier)


def _climb(frontier: Frontier) -> tuple[Tensor, Tensor]:
    """Returns the tokens from each frontier node up, [B, F, levels + 1], padded with the root's; and depths [B, F]."""
    tree, node = frontier.tree, frontier.nodes
    tokens, depth = [], torch.zeros_like(node)
    for _ in range(tree.levels + 1):
        tokens.append(tree.tokens.gather(1, node))
        parent = tree.parent.gather(1, node)
        depth = depth + (parent >= 0)
        node = parent.clamp(min=0)
    return torch.stack(tokens, 2), depth
