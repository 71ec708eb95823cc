"""DFlash's training: blocks that start at random positions of a text, all computed in one forward pass."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import pad

from specframe import CompositionError, InputError
from specframe.neural import NeuralDrafter, gather, student_at
from specframe.plugin import Chunks
from specframe_blocks.dflash.backbone import Backbone

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Predicted, Student, Teacher, Trainable


class AnchoredBlocks:
    """Anchored blocks (DFlash, arXiv 2602.06036; DSpark trains in the same way).

    An anchor is an entry of the text: its context feature is the last one that its block sees, its token the block's
    root. Blocks of a text share one forward pass over its context and never see each other, so a block's predictions
    equal those of decoding. DSpark's bias follows the text's tokens.

    Logits need the most memory: `anchors` x levels x vocabulary for each text. With `chunk` they are computed for
    `chunk` anchors at a time, scored, dropped, and computed again for the gradients; losses are equal, except at
    positions that a loss itself leaves out, such as the text's last.

    A drafter that is not being trained gets every entry as an anchor, so that the simulated tau is that of all cycles.

    Args:
        anchors: maximum number of blocks trained per text, drawn anew in every step (published: 512).
        chunk: number of anchors of every text whose logits are computed at a time; none: all.
    """

    def __init__(self, *, anchors: int = 64, chunk: int | None = None) -> None:
        if anchors < 1 or (chunk is not None and chunk < 1):
            raise InputError(f"anchored-blocks: anchors and chunk must be at least 1, not {anchors} and {chunk}")
        self.anchors = anchors
        self.chunk = chunk

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student | Chunks:
        """Returns predictions [B, A K], the K of a block adjacent; `progress` is ignored."""
        model = _blockwise(drafter)
        length = teacher.tokens.shape[1]
        if length < 2:
            raise InputError("texts of one token are too short to train on; raise train.length")
        entries, chosen = self._entries(teacher, training=model.module.training)
        levels = model.network.levels
        features = model.fuse(gather(model.spec, teacher.features)[:, :-1])
        tokens = pad(teacher.tokens[:, 1:], (0, levels - 1))
        predicted = model.network.blocks(features, tokens, model.target.embed, entries)
        count = entries.shape[1]
        size = count if self.chunk is None else min(self.chunk, count)
        parts = [
            partial(_student, model, predicted.part(part), teacher, entries[:, part], chosen[:, part])
            for part in (slice(first, min(first + size, count)) for first in range(0, count, size))
        ]
        return Chunks(parts) if len(parts) > 1 else parts[0]()

    def _entries(self, teacher: Teacher, *, training: bool) -> tuple[Tensor, Tensor]:
        """Returns the anchors, [B, A] int64 ascending, and which of them are used, [B, A] bool."""
        counts = teacher.mask[:, 1:]  # [B, n], the law after an entry's root is trained
        batch, n = counts.shape
        if not training or n <= self.anchors:
            return torch.arange(n, device=counts.device).expand(batch, -1), counts
        place = torch.rand(counts.shape, device=counts.device).masked_fill(~counts, -1.0)
        entries = place.topk(self.anchors).indices.sort().values
        return entries, counts.gather(1, entries)


def _student(
    model: NeuralDrafter[Any], predicted: Predicted, teacher: Teacher, entries: Tensor, chosen: Tensor
) -> Student:
    """Returns the predictions of some blocks; positions beyond the text do not count."""
    levels = model.network.levels
    level = torch.arange(1, levels + 1, device=entries.device)
    position = (entries[..., None] + level).flatten(1)  # [B, A K]
    chosen = chosen.repeat_interleave(levels, 1)
    return student_at(model, predicted, teacher, position, level.repeat(entries.shape[1]), chosen)


def _blockwise(drafter: Trainable) -> NeuralDrafter[Any]:
    """Returns the drafter if it drafts blocks. Raises CompositionError otherwise."""
    if not isinstance(drafter, NeuralDrafter) or not isinstance(drafter.network, Backbone):
        raise CompositionError(
            f"the rollout 'anchored-blocks' needs a drafter of blocks (dflash, dspark), and {type(drafter).__name__} "
            "is none; use 'all-levels' or 'teacher-forced' for it"
        )
    return drafter
