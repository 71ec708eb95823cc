"""A drafter's native search, held against the search level by level on the drafts of a small model.

An enumeration runs on a model in float64, which the native code does not take. So the recipe's drafter and tree are
run once more, on a model in float32 that it does take, and every draft of the native search must be that of the search
level by level: in tokens, parents, marks and ancestors.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from specframe.certify.compositions.guided import Deepest
from specframe.certify.compositions.small import Miniature
from specframe.components.heads import Trimmed
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.recording import WatchedTree
from specframe.decoding.requests import Request
from specframe.decoding.session import Parts, Session
from specframe.kernel.interfaces import TreePolicy
from specframe.kernel.types import Context, Expand, TokenTree
from specframe.neural import NeuralDrafter

VOCAB, KEPT, SIZE, LAYERS = 60, 40, 64, 8
"""Shape of the model: the native code reads 32 weights at a time."""
CYCLES = 4
FIELDS = {
    "tokens": "tokens",
    "parent": "parents",
    "valid": "valid nodes",
    "draw": "kinds of draws",
    "depth": "depths",
    "ancestors": "ancestors",
}
"""The fields of a tree that are compared, in words."""


class HeldTree(WatchedTree):
    """A tree policy whose native drafts are grown level by level, too."""

    def __init__(self, policy: TreePolicy) -> None:
        super().__init__(policy, lambda expand: expand, lambda search: search)
        self.differing: dict[str, None] = {}
        """Fields of a tree in which a draft differed."""

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The policy's tree."""
        found = super().grow(expand, root, context)
        if context.search is not None:
            wanted = super().grow(expand, root, replace(context, search=None))
            self.differing |= dict.fromkeys(_differing(found, wanted))
        return found


def check_search(miniature: Miniature) -> list[str]:
    """The differences between a drafter's native search and the one level by level, in words; empty if there are none.

    Drafters in floats have no native search.
    """
    drafter, policy = miniature.make_drafter(VOCAB), miniature.make_tree()
    if policy is None or not isinstance(drafter, NeuralDrafter) or drafter.quantize is None:
        return []
    head = miniature.drafter.build().head
    if isinstance(head, Trimmed):
        drafter.head = Trimmed(keep=KEPT, quantize=head.quantize)
    target = HFTarget.from_model(_model())
    drafter.bind(target)
    held = HeldTree(policy)
    parts = Parts(target, drafter, held, Deepest())
    length = CYCLES * parts.nodes
    prompts = [[*range(1, 8)], [*range(9, 12)]]
    session = Session(parts, len(prompts), len(prompts[0]) + length + parts.nodes)
    for prompt in prompts:
        session.admit([Request(tokens=prompt, max_new_tokens=length)])
        for _ in range(CYCLES // len(prompts)):
            session.step()
    return [f"the drafter's native search: other {FIELDS[name]} than level by level" for name in held.differing]


@lru_cache(maxsize=1)
def _model() -> torch.nn.Module:
    model: torch.nn.Module = random_model(vocab=VOCAB, size=SIZE, layers=LAYERS).float()
    return model


def _differing(found: TokenTree, wanted: TokenTree) -> list[str]:
    """The fields in which a draft differs from the reference."""
    return [name for name in FIELDS if not torch.equal(getattr(found, name), getattr(wanted, name))]
