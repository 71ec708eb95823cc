"""Drafters whose heads judge them."""

import math

import torch

from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import Groups, TeacherForced
from specframe.testing import tiny_target
from specframe_eagle.drafter import Eagle
from specframe_falcon.drafter import Falcon
from specframe_falcon.glancing import Glancing
from specframe_models.specdecpp.head import AcceptanceHead
from specframe_parallelspec.drafter import ParallelSpec

SIZE = 8
DRAFTERS = {
    "eagle": (Eagle, {}, MultiStep(steps=3, noise=0.0)),
    "fspad": (Eagle, {"partial_alignment": True}, TeacherForced(noise=0.0)),
    "falcon": (Falcon, {"dropout": 0.0}, Glancing(noise=0.0, first=True)),
    "parallelspec": (ParallelSpec, {"masks": 2}, Groups()),
}


def judged(name="eagle", *, vocab=11, dtype=torch.float64, **options):
    """A random drafter with a random acceptance head on a tiny target: drafter, head, target, its rollout."""
    kind, more, rollout = DRAFTERS[name]
    target, head = tiny_target(layers=1, vocab=vocab, dtype=dtype), AcceptanceHead(**options)
    drafter = kind(head=head, **more)
    drafter.bind(target)
    return drafter, head, target, rollout


def expected_confidence(weights, feature):
    """The probability of `accepted`, number by number: `weights` by published name, a feature [D] as a list."""
    layers = sum(name.endswith("linear.weight") for name in weights)

    def mapped(name, x):
        matrix, bias = weights[f"{name}.weight"].tolist(), weights[f"{name}.bias"].tolist()
        return [sum(w * v for w, v in zip(row, x, strict=True)) + b for row, b in zip(matrix, bias, strict=True)]

    for layer in range(layers):
        inner = mapped(f"model.{layer}.linear", feature)
        feature = [x + y / (1 + math.exp(-y)) for x, y in zip(feature, inner, strict=True)]
    rejected, accepted = mapped(f"model.{layers}", feature)
    return math.exp(accepted) / (math.exp(rejected) + math.exp(accepted))
