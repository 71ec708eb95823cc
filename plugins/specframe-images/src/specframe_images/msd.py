"""MSD's drafter: EAGLE's, with the embeddings of an image's parts as the layer's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe.neural import DecoderLayer, Embed, FeatureNetwork, NeuralDrafter, State
from specframe.plugin import IMAGES, PairSpec, SeeingTarget

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.plugin import NeuralTarget


class MsdNetwork(FeatureNetwork):
    """EAGLE's network, whose image entries are the projected embeddings themselves (MSD, Section 3.2).

    An entry of a text is a pair of the embedding of token i + 1 and feature i, [.., 2H], embedding first; `fc` maps 2H
    to H. Where token i + 1 stands for a part of an image, its embedding, which the target's first layer gets, enters
    the layer as it is, without `fc` and without a feature. So such a pair has the embedding in the place of the
    feature, and 0 in the place of the token's.
    """

    spec = PairSpec(given=(IMAGES,))

    def __init__(self, config: PretrainedConfig, image_tokens: frozenset[int]) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.image_tokens: Tensor
        tokens = torch.tensor(sorted(image_tokens), dtype=torch.int64)
        self.register_buffer("image_tokens", tokens, persistent=False)  # on the device: it is asked at every level
        self.fc = nn.Linear(2 * hidden, hidden)
        self.layer = DecoderLayer(config)
        if hasattr(self.layer.layer, "input_layernorm"):
            self.layer.layer.input_layernorm = nn.Identity()

    def fuse(self, features: Tensor) -> Tensor:
        """The features of entries in a row, or the next token's part of an image: [.., n, 2H] -> [.., n, H].

        An image lies within a prompt, whose entries come together, so the next token's part is always there.
        """
        last, images = features.chunk(2, -1)
        following = torch.cat([images[..., 1:, :], torch.zeros_like(images[..., :1, :])], -2)
        return torch.where((following != 0).any(-1, keepdim=True), following, last)

    def embedded(self, embed: Embed) -> Embed:
        """The target's embedding, and 0 for a token that stands for a part of an image."""

        def embed_text(tokens: Tensor) -> Tensor:
            return embed(tokens).masked_fill(torch.isin(tokens, self.image_tokens)[..., None], 0.0)

        return embed_text if len(self.image_tokens) else embed

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """The layer's inputs for the next entries, [B, M, 2H] -> [B, M, H]; there is no state to carry."""
        embedding, feature = pairs.chunk(2, -1)
        text: Tensor = self.fc(pairs)
        return torch.where((embedding == 0).all(-1, keepdim=True), feature.to(text.dtype), text), state


class Msd(NeuralDrafter[MsdNetwork]):
    """The drafter of Lin et al. 2025 (Speculative Decoding Reimagined for Multimodal Large Language Models, MSD).

    It drafts as EAGLE's does, level by level in any tree. Behind a text alone its predictions are those of EAGLE's
    network; over a target that reads no images it is that. Embedding and head are the target's, frozen and not saved.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how predicted features become logits; none: the target's own head.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
    """

    name = "msd"

    def build(self, target: NeuralTarget) -> MsdNetwork:
        """A new network for the target."""
        tokens = target.image_tokens if isinstance(target, SeeingTarget) else frozenset[int]()
        return MsdNetwork(target.config, tokens)

    @property
    def fusion(self) -> nn.Linear:
        """The map from the pair of embedding and feature to the layer's input."""
        return self.network.fc

    @property
    def branches(self) -> list[nn.Linear]:
        """The last maps of attention and MLP, whose outputs are added to the output of the fusion."""
        layer = self.network.layer.layer
        found = [
            getattr(getattr(layer, part, None), name, None)
            for part, name in (("self_attn", "o_proj"), ("mlp", "down_proj"))
        ]
        return [part for part in found if isinstance(part, nn.Linear)]
