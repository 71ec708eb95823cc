"""Whether a drafting model can draft for a target."""

from __future__ import annotations

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import Target, text_of


def require_fitting(model: HFTarget, target: Target) -> None:
    """Raises CompositionError for a target of other tokens, or on another device."""
    mine, theirs = model.vocab_size, target.vocab_size
    if mine != theirs:
        raise CompositionError(
            f"the drafting model has {mine} tokens and the target {theirs}; a model drafter needs the "
            "target's vocabulary, so take a smaller model of the target's family"
        )
    ours, other = model.tokenizer, text_of(target).tokenizer
    if ours is not None and other is not None and ours.get_vocab() != other.get_vocab():
        raise CompositionError(
            "the drafting model's tokenizer gives tokens other numbers than the target's; a model "
            "drafter needs the target's vocabulary, so take a smaller model of the target's family"
        )
    device = text_of(target).device or model.device
    if device != model.device:
        raise CompositionError(
            f"the drafting model is on {model.device} and the target on {device}; "
            "set the drafter's `device` to the target's"
        )
