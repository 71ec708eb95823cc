"""What a drafter refuses, with a sentence that names what would fit."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from specframe.components.trees.fixed import Chain
from specframe.kernel.errors import CompositionError, RecipeError, SpecframeError
from specframe.testing.recipes import check_decoding


class Wordless:
    """A target without features: it takes any request for taps and has nothing else."""

    def request(self, taps: frozenset[str]) -> None:
        """Takes the taps."""


def check_refusals(make: Callable[[], Any], bound: Callable[[], Any]) -> None:
    """Raises AssertionError unless a neural drafter refuses what it cannot do, each in a sentence that names the cure.

    That is: a target without features, being saved before it is bound, and drafting without a tree policy. `make` gives
    a new drafter, `bound` one that is bound to a target.
    """
    root = torch.zeros(1, dtype=torch.int64)
    with tempfile.TemporaryDirectory() as folder:
        _refused(lambda: make().bind(Wordless()), CompositionError, "target hf")
        _refused(lambda: make().save(Path(folder)), CompositionError, "bind")
        _refused(lambda: bound().propose(root, None, None), CompositionError, "tree policy")


def check_depth(drafter: str, levels: int) -> None:
    """Raises AssertionError unless a tree deeper than the drafter's `levels` is refused in a line that has the number.

    `drafter` is a section of a recipe, `{use: medusa, heads: 2}`. Refused is a recipe, and a pipeline that is given
    another tree; a tree that deep decodes.
    """
    pipeline = check_decoding(drafter, f"{{use: chain, depth: {levels}}}")
    deeper = pipeline.with_parts(tree=Chain(depth=levels + 1))
    cure = f"make the tree at most {levels} deep"
    _refused(lambda: check_decoding(drafter, f"{{use: chain, depth: {levels + 1}}}"), RecipeError, cure)
    _refused(lambda: deeper.generate([1, 2]), CompositionError, cure)


def _refused(attempt: Callable[[], object], error: type[SpecframeError], cure: str) -> None:
    try:
        attempt()
    except error as problem:
        assert cure in str(problem), f"the sentence {str(problem)!r} does not name {cure!r}"
    else:
        raise AssertionError(f"nothing was refused, where a sentence should name {cure!r}")
