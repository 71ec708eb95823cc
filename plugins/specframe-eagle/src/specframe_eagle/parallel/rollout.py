"""Conditional drop of mask rows (COD): a training step keeps fewer rows of deeper levels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from specframe import CompositionError, InputError
from specframe.neural import NeuralDrafter, gather, require_shares, sample_rows, student_at
from specframe_eagle.parallel.network import Parallel

if TYPE_CHECKING:
    from specframe.plugin import Student, Teacher, Trainable


class COD:
    """P-EAGLE's training with conditional drop of mask rows (arXiv 2602.01469; PARD, 2504.18583).

    Every entry of a text predicts the first level. Of the mask rows d levels further down, a share of `keep` to the
    power of d, but at least `least`, is kept. They are drawn anew in every step, among those whose row above was kept.
    All rows that a row sees in decoding are thus present, and its prediction equals that of decoding. All levels cost
    one forward pass; attention needs memory for the square of the number of kept rows, which is 3.4 times a text's
    length with eight levels.

    A drafter that is not being trained gets every row, so that the simulated tau is that of all cycles.

    Args:
        keep: the share of a level's rows that the next level keeps (published: 0.7).
        least: the share of a text's rows that every level keeps (published: 0.2).
    """

    def __init__(self, *, keep: float = 0.7, least: float = 0.2) -> None:
        require_shares("cod", keep, least)
        self.keep = keep
        self.least = least

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student:
        """Returns the predictions of all entries, [B, n], then those of each level's kept rows; ignores `progress`."""
        model = _parallel(drafter)
        network: Parallel = model.network
        batch, length = teacher.tokens.shape
        n = length - 1
        if n < 1:
            raise InputError("texts of one token are too short to train on; raise train.length")
        features = model.fuse(gather(model.spec, teacher.features)[:, :n])
        tokens = teacher.tokens[:, 1:]
        index = torch.arange(n, device=tokens.device)
        if not model.module.training:
            predicted = model.unroll(features, tokens)
            depths = torch.arange(network.levels, device=index.device).repeat(n)
            entries = index.repeat_interleave(network.levels).expand(batch, -1)
            return student_at(model, predicted, teacher, entries + depths + 1, depths + 1)
        pairs = network.paired(features, tokens, model.target.embed)
        outputs, cache = network.along(pairs)
        entries, depths = index.expand(batch, -1), torch.zeros_like(index)
        real = torch.ones_like(entries, dtype=torch.bool)
        rows = sample_rows(teacher.mask[:, 1:], network.levels, self.keep, self.least)
        if rows:
            places, chosen = (torch.cat(parts, 1) for parts in zip(*rows, strict=True))
            depth = torch.cat([torch.full_like(positions[0], level) for level, (positions, _) in enumerate(rows, 1)])
            outputs = torch.cat([outputs, network.mask_outputs(cache, places, depth, chosen)], 1)
            entries, depths, real = (
                torch.cat([entries, places], 1),
                torch.cat([depths, depth]),
                torch.cat([real, chosen], 1),
            )
        predicted = network.predicted(outputs[:, :, None])
        return student_at(model, predicted, teacher, entries + depths + 1, depths + 1, real)


def _parallel(drafter: Trainable) -> NeuralDrafter[Any]:
    """Returns the drafter if it has mask rows. Raises CompositionError otherwise."""
    if not isinstance(drafter, NeuralDrafter) or not isinstance(drafter.network, Parallel):
        raise CompositionError(
            f"the rollout 'cod' needs a drafter with mask rows (peagle), and {type(drafter).__name__} has none; "
            "use 'training-time-test', 'anchored-blocks' or 'all-levels' for it"
        )
    return drafter
