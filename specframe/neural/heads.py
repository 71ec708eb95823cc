"""Optional abilities of heads, heads that read a part of the LM head, and heads for one level each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from specframe.kernel.errors import CompositionError, WeightsError
from specframe.kernel.interfaces import Head, NeuralTarget, Target
from specframe.kernel.predictions import LazyStudent
from specframe.kernel.training import FeatureDrafter
from specframe.kernel.types import Frontier, Predicted, Proposal, Teacher
from specframe.neural.quantize import Quantization


@runtime_checkable
class DivisibleTarget(NeuralTarget, Protocol):
    """A neural target whose LM head can be read in part: the targets `hf` and `table`."""

    def head_for(self, tokens: slice | Tensor, quantize: Quantization | None = None) -> Callable[[Tensor], Tensor]:
        """The LM head restricted to these T tokens: a differentiable function [..., D] -> [..., T].

        Rows of a slice are shared with the target, rows of int64 [T] are copied once, with `quantize` into blocks of
        4 or 8 bits. Raises CompositionError for a head without rows, or without rows that can be quantized.
        """
        ...


def divisible(target: NeuralTarget, head: str) -> DivisibleTarget:
    """The target itself, if its LM head can be read in part. Raises CompositionError in the head's name otherwise."""
    if isinstance(target, DivisibleTarget):
        return target
    raise CompositionError(
        f"the head {head!r} reads a part of an LM head, and that of {type(target).__name__} cannot be divided; "
        "use the target hf, or the head full"
    )


def support_of(part: object) -> Tensor | None:
    """The tokens of the logits' columns of a head or drafter, int64 [v]; None: the whole vocabulary.

    A part that proposes from some of the tokens has them as `support`, from `bind` on; such a head has the size of the
    whole vocabulary as `vocab`.
    """
    support: Tensor | None = getattr(part, "support", None)
    return support


def make_proposal(logits: Tensor, head: Head | None, features: Tensor) -> Proposal:
    """The proposal of these logits [B, F, K, v] of the head's support, with the confidence that it has in it, if any.

    `features` [B, F, K, D] are the head's inputs.
    """
    # Looked up in the class: an nn.Module has a slow answer for what it lacks.
    estimate: Callable[[Head, Tensor], Tensor] | None = getattr(type(head), "confidence", None)
    confidence = None if estimate is None or head is None else estimate(head, features)
    return Proposal(logits, confidence, support_of(head), getattr(head, "vocab", None))


def make_student(
    model: FeatureDrafter, predicted: Predicted, position: Tensor, mask: Tensor, level: Tensor
) -> LazyStudent:
    """The predictions [B, n, K, ..] as a student of n K, with features if the drafter imitates some.

    Logits are computed on demand if the drafter has a frozen LM head for all predictions, its `frozen_head`.

    Args:
        model: the drafter.
        predicted: its predictions.
        position: [B, n K] int64, the teacher's positions that they imitate.
        mask: [B, n K] bool, the predictions that count.
        level: [n K] int64, their number of levels below the last true feature.
    """
    tap, features, confidence = model.spec.imitates, predicted.features, predicted.confidence
    frozen: Callable[[Predicted], Callable[[Tensor], Tensor] | None] | None = getattr(model, "frozen_head", None)
    read = None if frozen is None else frozen(predicted)
    return LazyStudent(
        read=read,
        logits=None if read else model.read(predicted).flatten(1, 2),
        position=position,
        mask=mask,
        level=level,
        features=None if tap is None or features is None else features.flatten(1, 2),
        confidence=None if confidence is None else confidence.flatten(1, 2),
        support=support_of(model),
        hidden=predicted.hidden.flatten(1, 2),
        tap=tap or "last",
    )


def student_at(
    model: FeatureDrafter,
    predicted: Predicted,
    teacher: Teacher,
    position: Tensor,
    level: Tensor,
    chosen: Tensor | None = None,
) -> LazyStudent:
    """The student of predictions [B, n, K, ..] of positions that may lie beyond the texts, where they do not count.

    `chosen` [B, n K] bool are the predictions that may count; None: all. Other arguments as for `make_student`.
    """
    inside = position.clamp(max=teacher.tokens.shape[1] - 1)
    mask = teacher.mask.gather(1, inside) & (position == inside)
    return make_student(model, predicted, inside, mask if chosen is None else mask & chosen, level)


@dataclass(frozen=True)
class Depths:
    """Depths of a frontier's nodes, and the set of depths among them."""

    depth: Tensor  # [B, F] int64
    found: list[int]

    @classmethod
    def of(cls, frontier: Frontier, depth: Tensor, drafter: str, heads: int) -> Depths:
        """The depths [B, F] of a frontier's nodes, for a drafter with `levels` heads.

        Raises CompositionError in the drafter's name for a node without a head for its next level. The choice of heads
        is control flow, so the host reads it once for every forward pass below the root.
        """
        found = depth.unique().tolist() if frontier.tree.levels else [0]
        if max(found) >= heads:
            raise too_deep(drafter, heads)
        return cls(depth, found)

    def choose(self, answer: Callable[[int], Tensor]) -> Tensor:
        """Selects for every node the output of its level's head, `answer(level)` [B, F, ..], levels from 1 on."""
        first, *others = self.found
        chosen = answer(first + 1)
        for depth in others:
            own = (self.depth == depth).view(*self.depth.shape, *[1] * (chosen.dim() - 2))
            chosen = torch.where(own, answer(depth + 1), chosen)
        return chosen


def own_lm_heads(weights: str) -> WeightsError:
    """The error of a drafter with a separate head whose checkpoint has an LM head for every level."""
    return WeightsError(
        f"the drafter in {weights} has an LM head for every level, and no other head reads it: leave drafter.head out, "
        "or train a drafter with this head"
    )


def too_deep(drafter: str, heads: int) -> CompositionError:
    """The error of a tree deeper than the number of heads of a drafter with one head per level."""
    return CompositionError(
        f"drafter {drafter} has {heads} heads and drafts no deeper than {heads} levels; "
        f"make the tree at most {heads} deep, or train more heads"
    )


def neural_target(target: Target, drafter: str) -> NeuralTarget:
    """The target itself, if it is a neural one whose LM head reads its layers' outputs.

    Raises CompositionError in the drafter's name otherwise.
    """
    if not isinstance(target, NeuralTarget):
        raise CompositionError(
            f"drafter {drafter} reads a neural target's features, and {type(target).__name__} has none; "
            "use the target hf, or a drafter such as lookup"
        )
    width, read = target.config.hidden_size, getattr(target.config, "word_embed_proj_dim", None)
    if read not in (None, width):
        raise CompositionError(
            f"drafter {drafter} shares the target's LM head, which reads {read} numbers of a token where its layers "
            f"give {width}; use a drafter such as lookup, model or self"
        )
    return target


def last_place(tokens: Tensor) -> Tensor:
    """The last position of texts [B, L] as an index, int64 [1], so that an LM head runs over few positions.

    An index makes their states contiguous. For a slice, as by `logits_to_keep=1`, PyTorch copies the head for each row:
    for eight texts and 49,152 tokens half a gigabyte, and a fifth of a training's time.
    """
    return torch.full((1,), -1, device=tokens.device)


@torch.no_grad()
def output_weight(target: NeuralTarget) -> Tensor:
    """The weight of the target's LM head, [V, D], scale included, computed from its outputs for unit vectors.

    Exact for linear heads; for a head that caps its logits, the slope between 0 and a unit vector.
    """
    units = torch.eye(target.config.hidden_size, device=target.device, dtype=target.dtype)
    return (target.head(units) - target.head(torch.zeros_like(units[:1]))).T
