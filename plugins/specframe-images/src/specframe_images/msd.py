"""MSD's drafter: EAGLE's, in which the embeddings of an image's parts are the layer's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe.neural import DecoderLayer, NeuralDrafter
from specframe.plugin import IMAGES, PairSpec
from specframe_images.entries import ImageNetwork, image_tokens

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.plugin import NeuralTarget


class MsdNetwork(ImageNetwork):
    """EAGLE's network, whose image entries are the projected embeddings themselves (MSD, Section 3.2).

    If token i + 1 stands for a part of an image, its embedding, as the target's first layer receives it, is the layer's
    input, without `fc` and without a feature.
    """

    spec = PairSpec(given=(IMAGES,))

    def __init__(self, config: PretrainedConfig, tokens: frozenset[int]) -> None:
        super().__init__(config.hidden_size, tokens)
        self.layer = DecoderLayer(config)
        if hasattr(self.layer.layer, "input_layernorm"):
            self.layer.layer.input_layernorm = nn.Identity()

    def fuse(self, features: Tensor) -> Tensor:
        """Returns the features of entries in a row, or the next token's part of an image: [.., n, 2H] -> [.., n, H].

        An image lies within a prompt, whose entries are processed together, so the next token's part is always
        available.
        """
        last, images = features.chunk(2, -1)
        following = torch.cat([images[..., 1:, :], torch.zeros_like(images[..., :1, :])], -2)
        return torch.where((following != 0).any(-1, keepdim=True), following, last)


class Msd(NeuralDrafter[MsdNetwork]):
    """The drafter of Lin et al. 2025 (Speculative Decoding Reimagined for Multimodal Large Language Models, MSD).

    It drafts as EAGLE's does, level by level in any tree. After a text without images, and with a target that reads
    none, it is EAGLE's network. Embedding and head are the target's, frozen and not saved.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how predicted features become logits; none: the target's own head.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
    """

    name = "msd"

    def build(self, target: NeuralTarget) -> MsdNetwork:
        """Returns a new network for the target."""
        return MsdNetwork(target.config, image_tokens(target))

    @property
    def fusion(self) -> nn.Linear:
        """Returns the map from a pair of embedding and feature to the layer's input."""
        return self.network.fc

    @property
    def branches(self) -> list[nn.Linear]:
        """Returns the last maps of attention and MLP, whose outputs are added to the output of the fusion."""
        layer = self.network.layer.layer
        found = [
            getattr(getattr(layer, part, None), name, None)
            for part, name in (("self_attn", "o_proj"), ("mlp", "down_proj"))
        ]
        return [part for part in found if isinstance(part, nn.Linear)]
