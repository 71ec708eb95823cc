"""ParallelSpec's drafter: drafts all levels in one forward pass, prompted by [MASK] tokens."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import nn

from specframe import InputError
from specframe.neural import NeuralDrafter, Quantization, checkpoint
from specframe_parallelspec.network import ParallelSpecNetwork

if TYPE_CHECKING:
    from specframe.plugin import Head, NeuralTarget

logger = logging.getLogger(__name__)

EAGLE = {"fc.weight", "layers.0.mlp.up_proj.weight"}
"""Tensor names that identify a checkpoint of EAGLE's drafter."""


class ParallelSpec(NeuralDrafter[ParallelSpecNetwork]):
    """The parallel drafter of Xiao et al. 2024 (ParallelSpec).

    A forward pass reads the entries committed since the last one, followed by K [MASK] tokens. The root's entry gives
    the law of the first level and [MASK] k that of level k + 1, so one pass predicts K + 1 levels, independently of the
    tokens drawn at each. The [MASK]s are not cached. A deeper tree continues from the drafted tokens, K + 1 levels at a
    time.

    With `features` it is EAGLE's drafter made parallel (EAGLE-ParallelSpec): an entry is a token and the feature before
    it. Without, it reads tokens alone and replaces Medusa's heads (Medusa-ParallelSpec).

    Embedding and head are the target's, frozen and not saved. Without `weights`, the network starts from random weights
    that are equal in every run.

    Args:
        masks: the paper's K, the number of [MASK] tokens; a forward pass proposes K + 1 levels.
        features: whether it reads the target's features in addition to the tokens.
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained. Surplus masks are dropped. With
            `features` it may be EAGLE's, from which training starts: its layer is kept, the masks are new.
        head: how its outputs become logits; none: the target's own head.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
        compile: whether torch.compile computes its decoder layers while it decodes; not with `quantize` on a CPU.
    """

    # Without `features`, it may still be trained on features: its outputs are the LM head's inputs.
    name = "parallelspec"

    def __init__(
        self,
        *,
        masks: int = 4,
        features: bool = True,
        weights: str | None = None,
        head: Head | None = None,
        quantize: Quantization | None = None,
        compile: bool = False,
    ) -> None:
        if masks < 1:
            raise InputError(f"parallelspec: masks must be at least 1, got {masks}; without any, use the drafter eagle")
        super().__init__(weights=weights, head=head, quantize=quantize, compile=compile)
        self._masks = masks
        self.promise = replace(self.promise, block=masks + 1)
        self.features = features

    def build(self, target: NeuralTarget) -> ParallelSpecNetwork:
        """Returns a new network for the target."""
        return ParallelSpecNetwork(target.config, self._masks, self.features)

    def load(self, target: NeuralTarget, weights: str) -> ParallelSpecNetwork:
        """Loads the network of a checkpoint; if it has more masks than requested, the first ones are used."""
        config = checkpoint.read_config(weights)
        if self.features and "masks" not in config and checkpoint.shapes(weights).keys() >= EAGLE:
            return self._begun(target, weights)
        wanted, trained = self._masks, config.get("masks")
        self._masks = max(wanted, trained) if isinstance(trained, int) else wanted
        network = super().load(target, weights)
        network.keep_masks(wanted)
        self._masks = wanted
        return network

    def _begun(self, target: NeuralTarget, weights: str) -> ParallelSpecNetwork:
        """Returns a network with EAGLE's layer and new masks."""
        network = self.fresh(target)
        assert network.fc is not None  # true for a network with features
        checkpoint.load(nn.ModuleDict({"fc": network.fc, "layers": nn.ModuleList([network.layer.layer])}), weights)
        logger.warning(
            "drafter parallelspec: %s is EAGLE's and has no masks: train it; drafts beyond a first token are random",
            weights,
        )
        return network

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the fields on which a checkpoint and the drafter must agree."""
        return {"masks": self._masks, "features": self.features, "vocab_size": config.vocab_size}
