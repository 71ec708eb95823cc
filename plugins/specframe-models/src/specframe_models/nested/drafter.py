"""A drafting model with several exits, which uses as many layers at every node as its confidence requires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specframe import CompositionError, InputError
from specframe.plugin import Drafter, Proposal

if TYPE_CHECKING:
    from torch import Tensor, nn

    from specframe.plugin import Committed, Context, Drafts, Expand, Frontier, Target, TokenTree, TreePolicy


class Nested:
    """S2D's drafter (Kavehzadeh et al. 2024, arXiv 2407.01955): the smallest confident sub-model answers.

    A sub-model consists of the first layers of a drafting model, read by its final norm and LM head. At every node the
    smallest one is evaluated first. If its largest probability is below `confidence`, the next one is, and so on up to
    the last, which is the whole model if its number of layers is not among the exits. The choice depends on the text
    and the node's path alone and is made before a token is drawn, so the recorded distribution is the one drawn from.

    A sub-model answers after reading the whole text: layers that did not run read the missed tokens later, in the
    forward pass of their next answer. In a batch they run for all rows if one row needs them.

    Trained by the rollout `sorted`. It can be used with every target of its vocabulary, each with its own confidence.

    Options:
        drafter: the drafting model, such as `model`
        exits: numbers of layers of the sub-models, ascending; each smaller than the model's
        confidence: largest probability, at temperature 1, from which a sub-model answers; one value for all, or one for
            each but the last
        whole: whether the whole model is the last one evaluated, if it is not among the exits
    """

    def __init__(
        self, *, drafter: Drafter, exits: list[int], confidence: float | list[float] = 0.6, whole: bool = True
    ) -> None:
        if not hasattr(type(drafter), "expand_to"):
            raise CompositionError(
                f"nested needs a drafting model of several depths, such as `model`; {type(drafter).__name__} is none"
            )
        if not exits or exits != sorted(set(exits)) or exits[0] < 1:
            raise InputError(f"nested: exits are ascending numbers of layers from 1 on, not {exits}")
        asked = confidence if isinstance(confidence, list) else [confidence] * (len(exits) if whole else len(exits) - 1)
        if len(asked) != (len(exits) if whole else len(exits) - 1):
            raise InputError("nested: confidence is one number, or one for each sub-model but the last")
        if not all(least >= 0 for least in asked):
            raise InputError(f"nested: confidence must not be negative, not {confidence}")
        self.drafter: Any = drafter
        self.exits, self.confidence, self.whole = exits, asked, whole
        self.promise, self.taps = drafter.promise, drafter.taps

    def untrained(self, vocab: int) -> Nested:
        """Returns a copy around a tiny random model of two layers and `vocab` tokens."""
        twin = copy(self)
        twin.drafter = self.drafter.untrained(vocab)
        twin.exits, twin.confidence, twin.whole = [1], self.confidence[:1] or [0.6], True
        return twin

    def bind(self, target: Target) -> None:
        """Binds the model. Raises the model's errors, and InputError for exits that it does not have."""
        self.drafter.bind(target)
        self.drafter.exit_after(self.exits)

    @property
    def depths(self) -> list[int]:
        """Number of layers of each sub-model, in drafting order."""
        whole = self.whole and self.exits[-1] != self.drafter.depth
        return [*self.exits, *([self.drafter.depth] if whole else [])]

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self.drafter.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns a draft below root [B], grown by the tree policy; raises CompositionError without one."""
        draft: TokenTree = self.drafter.propose(root, None if tree is None else _Through(tree, self.expand), context)
        return draft

    def expand(self, frontier: Frontier) -> Proposal:
        """Returns the logits of the smallest confident sub-model, node by node, [B, F, 1, V]."""
        first, *others = self.depths
        logits: Tensor = self.drafter.expand_to(frontier, first).logits
        unsure: Tensor | None = None
        for depth, least in zip(others, self.confidence, strict=False):
            uncertain = logits[:, :, 0].softmax(-1).amax(-1) < least  # [B, F]
            unsure = uncertain if unsure is None else unsure & uncertain
            if not unsure.any():
                break
            deeper: Tensor = self.drafter.expand_to(frontier, depth).logits
            logits = deeper.where(unsure[:, :, None, None], logits)
        return Proposal(logits)

    def commit(self, committed: Committed) -> None:
        """Appends the committed tokens."""
        self.drafter.commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.drafter.keep(rows)

    def rewind(self, count: Tensor) -> None:
        """Drops all but the first `count` [B] committed tokens of each row, at least 1; a commit must follow."""
        self.drafter.rewind(count)

    @property
    def vocab_size(self) -> int:
        """Vocabulary size of the model."""
        size: int = self.drafter.vocab_size
        return size

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer."""
        return self.drafter.tokenizer

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text of the model."""
        ends: frozenset[int] = self.drafter.ends
        return ends

    @property
    def module(self) -> nn.Module:
        """The model, with parameters that require gradients."""
        module: nn.Module = self.drafter.module
        return module

    @property
    def depth(self) -> int:
        """Number of layers of the whole model."""
        depth: int = self.drafter.depth
        return depth

    def save(self, folder: Path) -> None:
        """Writes the model in the form that `drafter.weights` loads."""
        self.drafter.save(folder)

    def read_text(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        """Returns the whole model's logits after every token of texts [B, L], which may end in drafts: [B, L, V]."""
        logits: Tensor = self.drafter.read_text(tokens, drafts)
        return logits

    def read_exits(
        self, tokens: Tensor, exits: Sequence[int], layer_mask: Tensor | None = None
    ) -> Sequence[Callable[[], Tensor]]:
        """Returns for each exit a function that computes its logits of texts [B, L]."""
        found: Sequence[Callable[[], Tensor]] = self.drafter.read_exits(tokens, exits, layer_mask)
        return found

    def continue_text(self, tokens: Tensor, start: Tensor, temperature: float) -> Tensor:
        """Returns the texts [B, L] with the tokens from `start` [B] on replaced by samples of the whole model."""
        texts: Tensor = self.drafter.continue_text(tokens, start, temperature)
        return texts


class _Through:
    """A tree policy that is grown with another forward pass than the drafter's."""

    def __init__(self, tree: TreePolicy, expand: Expand) -> None:
        self.promise = tree.promise
        self._tree = tree
        self._expand = expand

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the policy's tree."""
        return self._tree.grow(self._expand, root, context)
