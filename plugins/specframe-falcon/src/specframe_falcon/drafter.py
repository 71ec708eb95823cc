"""Falcon's drafter: predicts a block of features per forward pass, which the target's own head turns into tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specframe import InputError
from specframe.neural import NeuralDrafter, Quantization, TextWindow
from specframe_falcon.network import FalconNetwork

if TYPE_CHECKING:
    from specframe.plugin import Head, NeuralTarget


class Falcon(NeuralDrafter[FalconNetwork]):
    """The semi-autoregressive drafter of Gao et al. 2024 (Falcon, Sections 3.1, 3.2 and 3.4).

    From the pairs (f_i, t_(i+1)) up to the root's, it predicts the next `block` features at once; the head turns them
    into laws. Deeper levels are computed from predicted features and drafted tokens, for any number of frontier nodes
    in one forward pass, so every tree policy fits: the paper's tree is a `fixed` one.

    Embedding and head are the target's, frozen and not saved. Without `weights`, the network starts from random weights
    that are equal in every run. A head with weights is trained alone, while the drafter is frozen.

    Args:
        block: number of levels that one forward pass proposes (the paper's k).
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how predicted features become logits; none: the target's own head.
        layers: number of decoder layers after the LSTM; only the last one attends to whole blocks.
        dropout: between the LSTM's layers, in training only.
        window: number of newest committed tokens that a draft sees, in addition to the first `sinks`: constant memory,
            and positions as in short texts; none: all tokens.
        sinks: the first tokens of a text that stay visible with a window.
        quantize: its matrices in 4 or 8 bits while it decodes on a CPU; trained and saved unrounded.
        compile: whether torch.compile computes its decoder layers while it decodes; not with `quantize` on a CPU.
    """

    name = "falcon"

    def __init__(
        self,
        *,
        block: int = 2,
        weights: str | None = None,
        head: Head | None = None,
        layers: int = 1,
        dropout: float = 0.1,
        window: int | None = None,
        sinks: int = 4,
        quantize: Quantization | None = None,
        compile: bool = False,
    ) -> None:
        if block < 1:
            raise InputError(f"falcon: block must be at least 1, got {block}")
        if layers < 1:
            raise InputError(f"falcon: layers must be at least 1, got {layers}")
        if not 0 <= dropout < 1:
            raise InputError(f"falcon: dropout must be at least 0 and below 1, got {dropout}")
        super().__init__(weights=weights, head=head, quantize=quantize, compile=compile)
        self.window = TextWindow.checked(self.name, window, sinks)
        self.promise = replace(self.promise, block=block, window=window)
        self.block = block
        self.dropout = dropout
        self.layers = layers

    def build(self, target: NeuralTarget) -> FalconNetwork:
        """Returns a new network for the target."""
        return FalconNetwork(target.config, self.block, self.dropout, self.layers)

    def round(self, network: FalconNetwork, quantization: Quantization) -> FalconNetwork:
        """Returns a quantized copy of the network, including its LSTM."""
        return network.rounded(quantization)

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the fields on which a checkpoint and the drafter must agree."""
        return {"block": self.block} | ({"num_hidden_layers": self.layers} if self.layers > 1 else {})
