"""A target whose features show whether a token is even, and heads for it."""

from __future__ import annotations

from pathlib import Path

import torch

from specframe.components.targets.table import TableTarget
from specframe.kernel.types import Scores, TokenTree
from specframe.plugin import TargetIdentity
from specframe_judge.head import About, LinearHead, store

VOCAB = 8
NAME = TargetIdentity("made-up/planted", "planted")


class PlantedTarget(TableTarget):
    """A table whose feature at a node is 1 in its first place where the node's token is even, and -1 elsewhere."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__(vocab=VOCAB, order=2, seed=seed)

    def identify(self) -> TargetIdentity:
        return NAME

    def score(self, tree: TokenTree) -> Scores:
        scores = super().score(tree)
        planted = torch.zeros(*tree.tokens.shape, self.hidden)
        planted[..., 0] = 1.0 - 2.0 * (tree.tokens % 2)
        return Scores(scores.logits, dict.fromkeys(scores.features, planted))


def stored(
    folder: Path,
    *,
    width: int = PlantedTarget().hidden,
    target: TargetIdentity = NAME,
    harmful: int = 5,
    tap: str = "last",
) -> str:
    """A folder with a head that calls even tokens harmless, mined with `target`."""
    head = LinearHead(width)
    head.weight[0] = 200.0
    store(head, About(target, tap, "number", 7, max(harmful, 1)), folder)
    if not harmful:
        config = folder / "config.json"
        config.write_text(config.read_text().replace('"harmful": 1', '"harmful": 0'))
    return str(folder)
