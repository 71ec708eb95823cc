"""Controls for drafters after images: EAGLE's network with an image's entries left out, or empty.

specframe train recipes/images/eagle.yaml 'drafter={use: ./research/analysis/images/blind.py:Dropped}'
specframe train recipes/images/msd.yaml 'drafter={use: ./research/analysis/images/blind.py:Empty}'
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe.neural import DecoderLayer, NeuralDrafter
from specframe.plugin import NeuralTarget
from specframe_images.entries import image_tokens
from specframe_images.flash import FlashNetwork
from specframe_images.msd import Msd, MsdNetwork

if TYPE_CHECKING:
    from transformers import PretrainedConfig


class DroppedNetwork(FlashNetwork):
    """EAGLE's network over a text's entries alone; they keep their positions after an image."""

    def __init__(self, config: PretrainedConfig, tokens: frozenset[int]) -> None:
        super().__init__(config, tokens, 0, 1, 1)
        del self.queries
        self.queries: Tensor
        self.register_buffer("queries", torch.empty(0, config.hidden_size), persistent=False)
        self.layer = DecoderLayer(config)
        if hasattr(self.layer.layer, "input_layernorm"):
            self.layer.layer.input_layernorm = nn.Identity()


class Dropped(NeuralDrafter[DroppedNetwork]):
    """EAGLE's drafter that drops an image's entries: it knows of the image by the features of texts alone."""

    name = "dropped"

    def build(self, target: NeuralTarget) -> DroppedNetwork:
        """A new network for the target."""
        return DroppedNetwork(target.config, image_tokens(target))

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the fields on which a checkpoint and the drafter must agree."""
        return {"vocab_size": config.vocab_size}


class EmptyNetwork(MsdNetwork):
    """MSD's network with zeros in place of the embeddings of an image's parts."""

    def fuse(self, features: Tensor) -> Tensor:
        """The features of entries in a row, 0 where the next token stands for a part of an image."""
        last, _ = features.chunk(2, -1)
        return torch.where((super().fuse(features) == last).all(-1, keepdim=True), last, 0.0)


class Empty(Msd):
    """MSD's drafter whose entries of an image hold nothing of it."""

    name = "empty"

    def build(self, target: NeuralTarget) -> EmptyNetwork:
        """A new network for the target."""
        return EmptyNetwork(target.config, image_tokens(target))
