"""What rollouts share: the token-shifted training sequence, what several levels imitate, and the noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import FeatureDrafter
from specframe.neural.masks import block_end

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.kernel.interfaces import Trainable
    from specframe.kernel.types import Teacher


@dataclass(frozen=True)
class Shifted:
    """Pairs (feature i, token i + 1) for i = 0 .. n - 1, and what stands at i + block for each."""

    features: Tensor  # [B, n, D], true
    tokens: Tensor  # [B, n] int64, token i + 1
    position: Tensor  # [B, n] int64, i + block: what the prediction at i imitates
    mask: Tensor  # [B, n] bool, whether that counts
    place: Tensor  # [n] int64, 1 .. block: the place in its block of the prediction made at i


def shift(teacher: Teacher, block: int) -> Shifted:
    """The training sequence for blocks of `block`, its end cropped at random.

    Blocks end at a sequence's last position, so a text always cut at the same place would always be
    divided the same way, while in decoding a block may begin anywhere. The crop, 0 to block - 1
    positions, the same for the whole batch, trains all alignments alike.
    """
    length = teacher.tokens.shape[1]
    crop = int(torch.randint(block, ())) if block > 1 else 0  # host generator: no device sync
    n = length - block - crop
    if n < 1:
        raise InputError(f"texts of {length} tokens are too short for blocks of {block}; raise train.length")
    index = torch.arange(n, device=teacher.tokens.device)
    return Shifted(
        features=teacher.features["last"][:, :n],
        tokens=teacher.tokens[:, 1 : n + 1],
        position=(index + block).expand(len(teacher.tokens), n),
        mask=teacher.mask[:, block : n + block],
        place=block - (block_end(n, block, index.device) - index),
    )


def levels_ahead(teacher: Teacher, levels: int) -> tuple[Tensor, Tensor, Tensor]:
    """What `levels` predictions from each of the n = L - 1 first positions imitate, a position's side by side.

    Their positions [B, n levels], whether they count, and their levels [n levels]. What lies beyond the text does not
    count. Raises InputError for texts of one token.
    """
    batch, length = teacher.tokens.shape
    if length < 2:
        raise InputError("texts of one token have nothing to predict; raise train.length")
    level = torch.arange(1, levels + 1, device=teacher.tokens.device)
    position = (torch.arange(length - 1, device=level.device)[:, None] + level).flatten()  # [n levels]
    inside = position.clamp(max=length - 1).expand(batch, -1)
    return inside, teacher.mask.gather(1, inside) & (position < length), level.repeat(length - 1)


def feature_part(predicted: Tensor, true: Tensor) -> Tensor:
    """The predicted features in predictions [.., P], as wide as the true ones [.., D]: [.., D]."""
    return predicted[..., -true.shape[-1] :]


def jitter(features: Tensor, noise: float) -> Tensor:
    """The features with U(-noise, noise) added, against error accumulation (EAGLE; Falcon Section 3.2)."""
    return features + torch.empty_like(features).uniform_(-noise, noise) if noise else features


def feature_drafter(drafter: Trainable, rollout: str) -> FeatureDrafter:
    """The drafter itself, if it predicts features. Raises CompositionError otherwise."""
    if not isinstance(drafter, FeatureDrafter):
        raise CompositionError(
            f"the rollout {rollout!r} needs a drafter that predicts the target's features (as EAGLE's and "
            f"Falcon's do), and {type(drafter).__name__} does not; use the rollout made for it"
        )
    return drafter
