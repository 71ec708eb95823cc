"""ParallelSpec's trained modules: K [MASK] tokens and one decoder layer, over tokens and features or tokens alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe.neural import DecoderLayer, Embed, FeatureNetwork, State, block_causal
from specframe.plugin import Predicted
from specframe_parallelspec.groups import GroupCache, places, visible

if TYPE_CHECKING:
    from transformers import PretrainedConfig

CHUNK = 64
"""Number of groups predicted at a time: large enough to use the processor well, small enough for a small mask."""


class ParallelSpecNetwork(FeatureNetwork):
    """ParallelSpec's parallel head (Xiao et al. 2024, Sections 4.1 and 4.3).

    With `features` it is EAGLE's head made parallel: a pair is the embedding of token i + 1 followed by feature i, [..,
    2H]; `fc` maps 2H to H, and the decoder layer has no input norm. No norm follows, because the output is compared
    with features that have passed the target's. Without `features`, it is the Transformer that replaces Medusa's heads:
    embeddings alone, a complete layer, and a norm.

    A [MASK] is a trained embedding. It is paired with the newest feature, that of the pair at which its group starts.
    """

    def __init__(self, config: PretrainedConfig, masks: int, features: bool) -> None:
        super().__init__()
        size = config.hidden_size
        self.levels = 1 + masks
        self.masks = nn.Parameter(torch.empty(masks, size))
        nn.init.normal_(self.masks, std=getattr(config, "initializer_range", 0.02))
        self.fc = nn.Linear(2 * size, size) if features else None
        self.layer = DecoderLayer(config)
        self.norm: nn.Module = nn.Identity()
        if not features:
            self.norm = nn.RMSNorm(size, eps=getattr(config, "rms_norm_eps", 1e-6))
        elif hasattr(self.layer.layer, "input_layernorm"):
            self.layer.layer.input_layernorm = nn.Identity()

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns the predictions of every group along texts; they do not use the tokens after the group's entry."""
        pairs = torch.cat([embed(tokens[:, : features.shape[1]]), features], -1)
        return self.predicted(self.groups(pairs))

    def groups(self, pairs: Tensor, chunk: int = CHUNK) -> Tensor:
        """Returns the outputs for every group of whole texts, [B, n, 2H] -> [B, n, 1 + K, H] (Section 4.1, Figure 3).

        Group i starts at entry i and predicts the features i + 1 .. i + 1 + K. Entries see the text up to themselves
        and are computed once. The groups' [MASK]s are computed for `chunk` groups at a time against the entries' keys
        and values, so that no mask is wider than the text and one chunk.
        """
        inputs, _ = self.inputs(pairs, ())
        batch, length, _ = inputs.shape
        masks, device = len(self.masks), pairs.device  # K
        index = torch.arange(length, device=device).expand(batch, -1)
        cache = GroupCache()
        heads = self.layer(inputs, index, block_causal(length, 1, device), cache)  # [B, n, H]
        followers = []
        for first in range(0, length, chunk):
            last = cache.seen = min(first + chunk, length)
            asked = self.layer(
                self.mask(pairs[:, first:last]).flatten(1, 2),
                places(first, last, masks, device).expand(batch, -1),
                visible(first, last, masks, device)[None, None],
                cache,
            )  # [B, G K, H]
            followers.append(asked.unflatten(1, (last - first, masks)))
        return torch.cat([heads[:, :, None], torch.cat(followers, 1)], 2)

    def keep_masks(self, count: int) -> None:
        """Keeps the first `count` [MASK]s. Their predictions do not change, as a [MASK] sees none of the later ones."""
        self.masks = nn.Parameter(self.masks.detach()[:count].clone())
        self.levels = 1 + count

    def mask(self, pairs: Tensor) -> Tensor:
        """Returns the layer's inputs for the [MASK]s after each pair, [.., 2H] -> [.., K, H]."""
        count, size = self.masks.shape
        embedded = self.masks.expand(*pairs.shape[:-1], -1, -1)
        if self.fc is None:
            return embedded
        features = pairs[..., None, size:].expand(*pairs.shape[:-1], count, -1)
        fused: Tensor = self.fc(torch.cat([embedded, features], -1))
        return fused

    def hidden(self, outputs: Tensor) -> Tensor:
        """Returns the LM head's input, [.., H] -> [.., H]; without `features`, after a norm."""
        normed: Tensor = self.norm(outputs)
        return normed

    def features(self, outputs: Tensor) -> Tensor:
        """Returns the outputs unchanged: they are compared with features that have passed the target's norm."""
        return self.hidden(outputs)

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the layer's inputs for the next pairs, [B, M, 2H] -> [B, M, H]; the state is not used."""
        if self.fc is None:
            return pairs[..., : pairs.shape[-1] // 2], state
        return self.fc(pairs), state
