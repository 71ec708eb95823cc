"""The target as its own drafter: some of its layers left out."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from torch import Tensor

from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.thinning import thin
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.promises import Promise
from specframe.kernel.types import Committed, Context, TokenTree


class OwnLayers:
    """The target's own layers, all but some: it leaves early, or skips layers (self-speculative decoding).

    Weights are the target's: nothing is loaded and nothing trained. `exit` keeps the first layers and reads them with
    the target's final norm and LM head, which suits targets that were trained for it (LayerSkip); `skip` leaves out
    layers anywhere. The drafter has keys and values of its own, and reads through its own layers what was committed.

    Options:
        exit: how many layers to run, from the first on
        skip: the layers to leave out, counted from 0

    Sources: Draft & Verify (Zhang et al. 2024) and SWIFT (Xia et al. 2025) for skipping; LayerSkip (Elhoushi et al.
    2024) for leaving early.
    """

    taps: frozenset[str] = frozenset()
    promise = Promise()

    def __init__(self, *, exit: int | None = None, skip: list[int] | None = None) -> None:
        if (exit is None) == (skip is None):
            raise InputError("the drafter self needs exactly one of `exit` and `skip`")
        if exit is not None and exit < 1:
            raise InputError(f"self: exit must leave at least 1 layer, not {exit}")
        if skip is not None and (not skip or min(skip) < 0 or len(set(skip)) < len(skip)):
            raise InputError(f"self: skip lists layers from 0 on, each once, not {skip}")
        self.exit = exit
        self.skip = skip
        self._drafter: ModelDrafter | None = None

    def untrained(self, vocab: int) -> OwnLayers:
        """The same for a target of two layers, the first of which drafts."""
        small = copy(self)
        small.exit, small.skip, small._drafter = (1, None, None) if self.exit is not None else (None, [1], None)
        return small

    def bind(self, target: Target) -> None:
        """Takes the layers from the target. Raises CompositionError for one that is no model with such layers."""
        if not isinstance(target, HFTarget):
            raise CompositionError("drafter self takes layers from a target that is a transformers model, such as `hf`")
        self._drafter = ModelDrafter.from_model(thin(target.model, self._kept(target.config.num_hidden_layers)))
        self._drafter.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Forgets every row."""
        self._bound().open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """A draft below root [B], grown by the tree policy."""
        return self._bound().propose(root, tree, context)

    def commit(self, committed: Committed) -> None:
        """Takes in what was committed."""
        self._bound().commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._bound().keep(rows)

    def _kept(self, count: int) -> Sequence[int]:
        if self.exit is not None:
            if self.exit >= count:
                raise CompositionError(
                    f"self: the target has {count} layers; leave before the last, not after {self.exit}"
                )
            return range(self.exit)
        skipped = self.skip or []
        if max(skipped) >= count or len(skipped) >= count:
            raise CompositionError(f"self: the target has layers 0 .. {count - 1}, and skip is {skipped}")
        return [index for index in range(count) if index not in skipped]

    def _bound(self) -> ModelDrafter:
        if self._drafter is None:
            raise CompositionError("drafter self was used before bind(target)")
        return self._drafter
