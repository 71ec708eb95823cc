"""Helpers of rollouts: the token-shifted training sequence, the features its predictions imitate, and the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.training import FeatureDrafter
from specframe.kernel.types import Student
from specframe.neural.features import gather
from specframe.neural.heads import make_student
from specframe.neural.masks import anchored_positions, block_end

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.training import Trainable
    from specframe.kernel.types import PairSpec, Predicted, Teacher


@dataclass(frozen=True)
class Shifted:
    """Pairs (features i, token i + 1) for i = 0 .. n - 1, and the positions that each pair's K predictions imitate."""

    features: Tensor  # [B, n, A D], true
    tokens: Tensor  # [B, n + K - 1] int64, token i + 1; 0 beyond the text
    position: Tensor  # [B, n K] int64, from i + block on: the positions imitated by the predictions at i
    mask: Tensor  # [B, n K] bool, false beyond the text
    level: Tensor  # [n K] int64: the prediction's index in its block, 1 .. block, or 1 .. K


def shift(teacher: Teacher, spec: PairSpec, block: int = 1, levels: int = 1) -> Shifted:
    """The training sequence for blocks of `block`, randomly cropped at the end, or for `levels` predictions per entry.

    With `block` 0 the predictions are of the entries' own positions, all of level 1.

    Blocks are aligned to the last position, so an uncropped text would always be divided in one way, while
    in decoding a block may begin anywhere. The random crop of 0 to block - 1 positions, shared by the batch,
    trains all alignments equally. Raises InputError for texts that are too short.
    """
    batch, length = teacher.tokens.shape
    crop = int(torch.randint(block, ())) if block > 1 else 0  # host generator: no device sync
    n = length - block - crop
    if n < 1:
        raise InputError(f"texts of {length} tokens are too short for blocks of {block}; raise train.length")
    index = torch.arange(n, device=teacher.tokens.device)
    offsets = torch.arange(levels, device=index.device)
    position = ((index + block)[:, None] + offsets).flatten()  # [n K]
    inside = position.clamp(max=length - 1).expand(batch, -1)
    size = max(1, block)
    place = size - (block_end(n, size, index.device) - index)
    return Shifted(
        features=gather(spec, teacher.features)[:, :n],
        tokens=F.pad(teacher.tokens[:, 1 : n + levels], (0, max(0, n + levels - length))),
        position=inside,
        mask=teacher.mask.gather(1, inside) & (position < length),
        level=(place[:, None] + offsets).flatten(),
    )


def predict_texts(drafter: Trainable, teacher: Teacher, noise: float, rollout: str, offset: int = 0) -> Student:
    """Predictions of one forward pass on the text's true features and tokens, masked beyond the text."""
    model = feature_drafter(drafter, rollout)
    pairs = shift(teacher, model.spec, model.block, model.levels)
    features = model.fuse(jitter(pairs.features, noise, model.spec))
    positions = moved(pairs, offset) if model.module.training else None
    return student(model, model.unroll(features, pairs.tokens, positions), pairs)


def moved(pairs: Shifted, offset: int) -> Tensor | None:
    """The entries' positions with a random offset, below `offset`, [B, n] int64; None: unchanged."""
    batch, n = pairs.features.shape[:2]
    return anchored_positions(batch, n, offset, pairs.features.device)


def student(model: FeatureDrafter, predicted: Predicted, pairs: Shifted) -> Student:
    """The predictions [B, n, K, ..] of the pairs, with the positions that they imitate."""
    return make_student(model, predicted, pairs.position, pairs.mask, pairs.level)


def jitter(features: Tensor, noise: float, spec: PairSpec) -> Tensor:
    """The features with U(-noise, noise) added, against error accumulation (EAGLE; Falcon Section 3.2).

    Features that the spec marks as `given` get no noise, as predictions never replace them.
    """
    if not noise:
        return features
    width = features.shape[-1] * len(spec.taps) // (len(spec.taps) + len(spec.given))
    predicted, given = features[..., :width], features[..., width:]
    noisy = predicted + torch.empty_like(predicted).uniform_(-noise, noise)
    return torch.cat([noisy, given], -1) if spec.given else noisy


def feature_drafter(drafter: Trainable, rollout: str) -> FeatureDrafter:
    """The drafter, if rollouts can unroll it. Raises CompositionError otherwise."""
    if not isinstance(drafter, FeatureDrafter):
        raise CompositionError(
            f"the rollout {rollout!r} needs a drafter that reads the target's features (as EAGLE's, Falcon's and "
            f"Medusa's do), and {type(drafter).__name__} does not"
        )
    return drafter


def feeding_drafter(drafter: Trainable, rollout: str) -> FeatureDrafter:
    """The drafter, if its predictions replace features at deeper levels. Raises CompositionError otherwise."""
    model = feature_drafter(drafter, rollout)
    if not model.spec.feeds or model.levels != 1:
        raise CompositionError(
            f"the rollout {rollout!r} feeds predicted features back, as EAGLE's and Falcon's drafters draft, and "
            f"{type(drafter).__name__} is not trained so: use the rollout all-levels or groups"
        )
    return model


def checked_noise(rollout: str, noise: float) -> float:
    """The noise, half the width of a uniform law. Raises InputError, naming the rollout, if it is negative."""
    if noise < 0:
        raise InputError(f"{rollout}: noise must not be negative, not {noise}")
    return noise
