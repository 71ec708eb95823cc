"""Common parts of drafters after images, whose entries bypass the map of token and feature."""

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
    """Returns the tokens that stand for a part of an image; empty if the target reads only texts."""
    return text_of(target).image_tokens


class ImageNetwork(FeatureNetwork):
    """EAGLE's pairs, of which those for parts of an image are the layer's inputs without `fc`.

    An entry of a text is the embedding of token i + 1 followed by feature i, [.., 2H]; `fc` maps 2H to H. If token i +
    1 stands for a part of an image, the embedding's half is 0, and the feature's half is the layer's input without
    `fc`.
    """

    def __init__(self, hidden: int, tokens: frozenset[int]) -> None:
        super().__init__()
        self.image_tokens: Tensor
        listed = torch.tensor(sorted(tokens), dtype=torch.int64)
        self.register_buffer("image_tokens", listed, persistent=False)  # on the device, because every level reads it
        self.fc = nn.Linear(2 * hidden, hidden)

    def shown(self, tokens: Tensor) -> Tensor:
        """Returns whether tokens stand for a part of an image: [..] bool."""
        return torch.isin(tokens, self.image_tokens)

    def embedded(self, embed: Embed) -> Embed:
        """Returns the target's embedding function, with 0 for a token that stands for a part of an image."""

        def embed_text(tokens: Tensor) -> Tensor:
            return embed(tokens).masked_fill(self.shown(tokens)[..., None], 0.0)

        return embed_text if len(self.image_tokens) else embed

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the layer's inputs for the next entries, [B, M, 2H] -> [B, M, H]; the state is not used."""
        embedding, feature = pairs.chunk(2, -1)
        text: Tensor = self.fc(pairs)
        return torch.where((embedding == 0).all(-1, keepdim=True), feature.to(text.dtype), text), state


@dataclass(frozen=True)
class Layout:
    """Sources and positions of entries after each image's n pairs became m of them: B rows of M pairs, R images."""

    runs: list[tuple[int, int, int]]  # row, first pair, and pair after the last, of each image
    sources: Tensor  # [B, E] int64: pair b M + i, or B M + r m + j for entry j of image r
    positions: Tensor  # [B, E] int64, positions of entries in the text
    counts: list[int]  # number of entries of each row
    places: Tensor  # [B, M] int64, the entry of each pair; for an image's pairs, the last at or before it


def laid_out(
    shown: Sequence[Sequence[bool]], counts: Sequence[int], size: int, device: torch.device | None = None
) -> Layout:
    """Returns the layout of rows of pairs, the first `counts` of each being its own, for images of `size` entries.

    An image is a run of pairs that are `shown`. Its entries are at the last positions of the equal parts of its run; an
    image of fewer parts has as many entries as parts.
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
