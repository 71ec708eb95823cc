"""The linear head, and its storage in a folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe import WeightsError
from specframe.neural import checkpoint
from specframe.plugin import TargetIdentity, identity_of

if TYPE_CHECKING:
    from pathlib import Path

    from specframe.plugin import Target


class LinearHead(nn.Module):
    """The probability that a token is harmless, given the target's feature at it: a logistic regression.

    The features are standardised by `mean` and `scale`, [D], of the labels used in fitting.
    """

    mean: Tensor
    scale: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("scale", torch.ones(width))
        self.register_buffer("weight", torch.zeros(width))
        self.register_buffer("bias", torch.zeros(()))

    def forward(self, features: Tensor) -> Tensor:
        """Maps [..., D] to [...], between 0 and 1."""
        return torch.sigmoid(((features.float() - self.mean) / self.scale) @ self.weight + self.bias)


@dataclass(frozen=True)
class About:
    """Origin of a head: its target, tap, check and labels."""

    target: TargetIdentity
    tap: str
    check: str
    """The check of an answer with which its labels were mined."""
    harmless: int
    """Number of harmless labels."""
    harmful: int
    threshold: float = 0.5
    """Threshold with the share of harmful tokens that was requested in mining."""


def store(head: LinearHead, about: About, folder: Path) -> None:
    """Writes the head. Raises WeightsError if all labels are of one kind, or if the folder cannot be written."""
    require_both(about.harmless, about.harmful)
    words = asdict(about)
    checkpoint.save(head, words | {"trained_for": words.pop("target")}, folder)


def require_both(harmless: int, harmful: int) -> None:
    """Raises WeightsError if all labels are of one kind."""
    if not (harmless and harmful):
        raise WeightsError(
            f"a judge needs labels of both kinds, and there are {harmless} harmless and {harmful} harmful tokens; "
            "mine more prompts that the target solves, or ones that the drafter finds harder"
        )


def read(folder: str, target: Target, tap: str) -> LinearHead:
    """Loads the head of a folder or `zoo://` name, for this target.

    Raises WeightsError for a head of another target, tap or width, and for one without labels of both kinds.
    """
    config = checkpoint.read_config(folder)
    shape = checkpoint.shapes(folder).get("weight", [0])
    if len(shape) != 1 or shape[0] < 1:
        raise WeightsError(f"the weights in {folder} are no judge's: there is no vector `weight`")
    try:
        theirs = TargetIdentity(**config["trained_for"])
        about = About(theirs, *(config[name] for name in ("tap", "check", "harmless", "harmful")))
        require_both(int(about.harmless), int(about.harmful))
    except (KeyError, TypeError, ValueError) as error:
        raise WeightsError(f"the config.json in {folder} is no judge's: {error!r}") from error
    if (own := identity_of(target)) is not None and not theirs.is_of(own):
        raise WeightsError(f"the judge in {folder} was mined with the target {theirs.name}, and this one is {own.name}")
    if about.tap != tap:
        raise WeightsError(f"the judge in {folder} reads the tap '{about.tap}', not '{tap}'; set `tap: {about.tap}`")
    if (width := getattr(getattr(target, "config", None), "hidden_size", shape[0])) != shape[0]:
        raise WeightsError(f"the judge in {folder} reads features of width {shape[0]}; the target's have {width}")
    head = LinearHead(shape[0])
    checkpoint.load(head, folder)
    return head.eval()
