"""Hydra and Hydra++: heads that read the path that they continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specframe import InputError
from specframe.neural import NeuralDrafter, own_lm_heads, seeded
from specframe.plugin import Promise
from specframe_medusa import published
from specframe_medusa.heads import check_counts, start
from specframe_medusa.networks import HydraNetwork

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from specframe.plugin import Head, NeuralTarget


class Hydra(NeuralDrafter[HydraNetwork]):
    """The sequentially dependent heads of Ankner et al. 2024 (Hydra, and Hydra++ of the same paper).

    Head k reads the base state, the root's embedding and those of the k - 1 drafted tokens below it, and proposes the
    next token: one level per forward pass, with a law for each path. The base state is the last true feature or, with
    `prefix`, the output of a decoder layer over all features. A tree deeper than the number of heads is refused.

    Hydra++ is `prefix: true, layers: 4` and training on the target's law (loss `cross-entropy` with its defaults).
    Embeddings are the target's, frozen and not saved. LM heads are as for `medusa`, with a bias as published.

    Args:
        heads: number of heads, which limits the depth of a draft.
        layers: residual blocks per head, the first of which reads the path; 4 in Hydra++.
        prefix: put a decoder layer of the target's type between its features and the heads, as in Hydra++.
        dropout: before every block and LM head, in training only; 0.2 in the published Hydra++.
        weights: a trained drafter's folder, in specframe's or Hydra's layout, `zoo://name` or Hub name; none:
            untrained.
        head: how the blocks' outputs become logits; none: an LM head for every level, as published.
    """

    name = "hydra"

    def __init__(
        self,
        *,
        heads: int = 4,
        layers: int = 1,
        prefix: bool = False,
        dropout: float = 0.0,
        weights: str | None = None,
        head: Head | None = None,
    ) -> None:
        check_counts("hydra", heads, layers)
        if not 0 <= dropout < 1:
            raise InputError(f"hydra: dropout must be at least 0 and below 1, got {dropout}")
        super().__init__(weights=weights, head=head)
        self.levels = heads
        self.promise = Promise(depth=heads)
        self.layers = layers
        self.prefix = prefix
        self.dropout = dropout

    def build(self, target: NeuralTarget) -> HydraNetwork:
        """Returns new heads for the target."""
        vocab = target.vocab_size if self.head is None else None
        return HydraNetwork(target.config, self.levels, self.layers, vocab, self.prefix, self.dropout)

    def fresh(self, target: NeuralTarget) -> HydraNetwork:
        """Returns new heads whose LM heads are copies of the target's."""
        network = super().fresh(target)
        start(network.lm_heads(), target)
        return network

    def load(self, target: NeuralTarget, weights: str) -> HydraNetwork:
        """Loads the heads of a checkpoint in specframe's or Hydra's layout."""
        stored = published.find(weights, published.HYDRA)
        published.check(stored, "hydra", self.levels, r"(?:hydra_)?mlp\.(\d+)\.")
        if self.head is not None and any("lm_head." in name for name in stored.names):
            raise own_lm_heads(weights)
        if stored.file == published.OWN:
            return self.filled(target, stored.folder)
        network = seeded(lambda: self.build(target), target)
        published.load_hydra(network, stored, _embedding(target))
        return network

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the drafter's fields of config.json."""
        return {"heads": self.levels, "layers": self.layers, "prefix": self.prefix}

    def publish(self, folder: Path, *, base: str, dtype: torch.dtype = torch.float16) -> None:
        """Writes the heads in the layout of Hydra's code; `base` is the target's name."""
        embedding = _embedding(self.target)
        published.save_hydra(self.network, folder, embedding, base=base, layers=self.layers, dtype=dtype)


def _embedding(target: NeuralTarget) -> Tensor:
    """Returns the target's token embeddings, [V, D]."""
    return target.embed(torch.arange(target.vocab_size, device=target.device))
