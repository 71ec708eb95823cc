"""Common parts of drafters after images, whose entries go into the layer without the map of token and feature."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe.neural import Embed, FeatureNetwork, State, tensor_on
from specframe.plugin import text_of

if TYPE_CHECKING:
    from specframe.plugin import NeuralTarget


def image_tokens(target: NeuralTarget) -> frozenset[int]:
    """The tokens that stand for a part of an image; none where the target reads texts alone."""
    return text_of(target).image_tokens


class ImageNetwork(FeatureNetwork):
    """EAGLE's pairs, of which those for parts of an image enter the layer as they are.

    An entry of a text is a pair of the embedding of token i + 1 and feature i, [.., 2H], embedding first; `fc` maps 2H
    to H. Where token i + 1 stands for a part of an image, 0 has the embedding's place, and what has the feature's place
    enters the layer without `fc`.
    """

    def __init__(self, hidden: int, tokens: frozenset[int]) -> None:
        super().__init__()
        self.image_tokens: Tensor
        listed = torch.tensor(sorted(tokens), dtype=torch.int64)
        self.register_buffer("image_tokens", listed, persistent=False)  # on the device: it is asked at every level
        self.fc = nn.Linear(2 * hidden, hidden)

    def shown(self, tokens: Tensor) -> Tensor:
        """Returns whether tokens stand for a part of an image: [..] bool."""
        return torch.isin(tokens, self.image_tokens)

    def embedded(self, embed: Embed) -> Embed:
        """The target's embedding, and 0 for a token that stands for a part of an image."""

        def embed_text(tokens: Tensor) -> Tensor:
            return embed(tokens).masked_fill(self.shown(tokens)[..., None], 0.0)

        return embed_text if len(self.image_tokens) else embed

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """The layer's inputs for the next entries, [B, M, 2H] -> [B, M, H]; there is no state to carry."""
        embedding, feature = pairs.chunk(2, -1)
        text: Tensor = self.fc(pairs)
        return torch.where((embedding == 0).all(-1, keepdim=True), feature.to(text.dtype), text), state


@dataclass(frozen=True)
class Layout:
    """Sources and positions of entries once each image's n pairs have become m of them: B rows of M pairs, R images."""

    runs: list[tuple[int, int, int]]  # of each image its row, its first pair, and the pair after its last
    sources: Tensor  # [B, E] int64, of each entry: pair b M + i, or B M + r m + j, entry j of image r
    positions: Tensor  # [B, E] int64, of each entry in the text
    counts: list[int]  # entries of each row
    places: Tensor  # [B, M] int64, of each pair the entry that it became; an image's pairs: the last at or before it


def laid_out(
    shown: Sequence[Sequence[bool]], counts: Sequence[int], size: int, device: torch.device | None = None
) -> Layout:
    """The layout of rows of pairs, the first `counts` of each being its own, for images of `size` entries.

    An image is a run of pairs that are `shown`. Its entries stand at the last positions of the equal parts of its run;
    an image of fewer parts has as many entries as parts.
    """
    width, runs = len(shown[0]), list[tuple[int, int, int]]()
    rows: list[tuple[list[int], list[int], list[int]]] = []
    for row, (flags, count) in enumerate(zip(shown, counts, strict=True)):
        sources, positions, places = list[int](), list[int](), list[int]()
        pair = 0
        while pair < count:
            end = pair
            while end < count and flags[end]:
                end += 1
            if end == pair:
                sources.append(row * width + pair)
                positions.append(pair)
                places.append(len(sources) - 1)
                pair += 1
                continue
            entry_count = min(size, end - pair)
            sources += [len(shown) * width + len(runs) * size + j for j in range(entry_count)]
            positions += [pair + (j + 1) * (end - pair) // entry_count - 1 for j in range(entry_count)]
            places += [max(0, len(sources) - 1)] * (end - pair)
            runs.append((row, pair, end))
            pair = end
        rows.append((sources, positions, places + [0] * (width - count)))
    longest = max(len(sources) for sources, _, _ in rows)
    padded = [[part + [0] * (longest - len(part)) for part in each[:2]] for each in rows]
    return Layout(
        runs=runs,
        sources=tensor_on(device, [sources for sources, _ in padded]),
        positions=tensor_on(device, [positions for _, positions in padded]),
        counts=[len(sources) for sources, _, _ in rows],
        places=tensor_on(device, [places for _, _, places in rows]),
    )
