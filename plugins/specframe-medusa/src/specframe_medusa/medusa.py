"""Medusa-1: a head per level on the frozen target's last feature."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specframe.neural import Export, NeuralDrafter, own_lm_heads
from specframe.plugin import Promise
from specframe_medusa import engines, published
from specframe_medusa.heads import check_counts, start
from specframe_medusa.networks import MedusaNetwork

if TYPE_CHECKING:
    from pathlib import Path

    from specframe.plugin import Head, NeuralTarget


class Medusa(NeuralDrafter[MedusaNetwork]):
    """The parallel heads of Cai et al. 2024 (Medusa, Section 2.1), trained on a frozen target (Medusa-1).

    Head k reads the last true feature f_i, which gave the root, token i + 1, and proposes token i + 1 + k. One forward
    pass proposes all levels; the law of a level is equal below all nodes of the level above. A tree deeper than the
    number of heads is refused.

    Every head has its own LM head, initialised with the target's: heads x V x D weights. With `head` they share a
    frozen one, and only the residual blocks are trained ("version 2" of the published code is `full`). Without
    `weights`, the heads equal the target's LM head except for a random bias.

    Args:
        heads: number of heads, which is the number of drafted levels.
        layers: residual blocks per head.
        weights: a trained drafter's folder, in specframe's or Medusa's layout, `zoo://name` or Hub name; none:
            untrained.
        head: how the blocks' outputs become logits; none: an LM head for every level, as published.
    """

    name = "medusa"
    forms = engines.FORMS

    def __init__(
        self, *, heads: int = 4, layers: int = 1, weights: str | None = None, head: Head | None = None
    ) -> None:
        check_counts("medusa", heads, layers)
        super().__init__(weights=weights, head=head)
        self.levels = heads
        self.promise = Promise(depth=heads, block=heads)
        self.layers = layers

    def build(self, target: NeuralTarget) -> MedusaNetwork:
        """Returns new heads for the target."""
        vocab = target.vocab_size if self.head is None else None
        return MedusaNetwork(target.config.hidden_size, self.levels, self.layers, vocab)

    def fresh(self, target: NeuralTarget) -> MedusaNetwork:
        """Returns new heads whose LM heads are copies of the target's."""
        network = super().fresh(target)
        start(network.lm_heads(), target)
        return network

    def load(self, target: NeuralTarget, weights: str) -> MedusaNetwork:
        """Loads the heads of a checkpoint in specframe's or Medusa's layout."""
        stored = published.find(weights, published.MEDUSA)
        published.check(stored, "medusa", self.levels, r"(\d+)\.")
        if self.head is not None and f"0.{self.layers}.weight" in stored.names:
            raise own_lm_heads(weights)
        return self.filled(target, stored.folder, file=stored.file)

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the drafter's fields of config.json, under the published names."""
        return {"medusa_num_heads": self.levels, "medusa_num_layers": self.layers}

    def export(self, form: str) -> Export:
        """Returns the heads in the form of vLLM or Medusa's code. Raises WeightsError if the form has no place."""
        return engines.export(form, self.network, self.target, self.head)

    def publish(self, folder: Path, *, base: str, dtype: torch.dtype = torch.float16) -> None:
        """Writes the heads in the layout of Medusa's code; `base` is the target's name."""
        published.save_medusa(self.network, folder, base=base, layers=self.layers, dtype=dtype)
