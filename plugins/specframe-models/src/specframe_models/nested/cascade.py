"""A drafter whose drafts are drafted by a smaller one: speculative decoding within speculative decoding."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

import torch

from specframe import CompositionError, InputError
from specframe.plugin import (
    Drafter,
    Draw,
    Match,
    Observer,
    Promise,
    Recursive,
    TokenTree,
    continuation_of,
    report_of,
    small_form,
    untrained_form,
)
from specframe_models.nested.levels import CopyingProposer, ReviewCounts, ReviewedProposer, StepwiseProposer
from specframe_models.nested.sketch import FunctionPolicy, Reader, Sketch

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Committed, Context, Cycle, Expand, Target, TreePolicy, Verifier
    from specframe_models.nested.levels import ChainProposer

WrapExpand = Callable[["Expand"], "Expand"]


class Cascade:
    """Drafts a chain of a better drafter's tokens, several per forward pass of that drafter.

    `draft` proposes up to `ask` tokens after the chain so far, and `review` reads them in one forward pass. A rule
    keeps a prefix of them and adds a token of the reviewing drafter, until there are `tokens`. Rejected tokens are
    dropped: the draft is the chain.

    With `draw: top` the chain consists of the most probable tokens of `review`, as if it drafted alone. With `draw:
    iid` every token is a draw from its distribution, which is recorded: the rule `match` draws each token, and the rule
    `recursive` accepts and rejects draws of `draft` by speculative sampling. Every verifier is therefore as lossless as
    with `review` alone.

    With a cascade as `draft` there are three levels. Sources: CS-Drafting's vertical cascade (Chen et al. 2024, arXiv
    2312.11462); TriForce (Sun et al. 2024, arXiv 2404.11912), whose code draws the replacement of a rejected token from
    the reviewing distribution instead of the remaining one, which is not done here.

    Options:
        draft: the cheap drafter: one that grows a tree policy, one that copies, such as `suffix`, another cascade, or
            none
        review: the better drafter: one that grows a tree policy and reads several nodes of a path at once, such as
            `model` and `self`
        tokens: number of tokens in a draft
        ask: maximum number of tokens that `draft` proposes at a time
        draw: top (the reviewing drafter's most probable tokens) or iid (draws from its distribution)
        rule: how proposals are judged with `draw: iid`; with `top` both rules are equal
    """

    def __init__(
        self,
        *,
        draft: Drafter,
        review: Drafter,
        tokens: int = 6,
        ask: int = 3,
        draw: Draw = Draw.TOP,
        rule: Literal["match", "recursive"] = "match",
    ) -> None:
        if ask < 1 or tokens < ask:
            raise InputError(f"cascade needs an ask of at least 1 and at most its tokens, got {ask} of {tokens}")
        if draw is Draw.WITHOUT_REPLACEMENT:
            raise InputError("cascade drafts chains, drawn `top` or `iid`: an only child has no siblings")
        _require_review(review)
        _require_draft(draft)
        self.draft, self.review, self.tokens, self.ask, self.draw, self.rule = draft, review, tokens, ask, draw, rule
        self.taps: frozenset[str] = draft.taps | review.taps
        self.promise = Promise(
            frozenset({draw}),
            tokens + 1,
            tokens,
            exact=review.promise.exact,
            fixed_sibling_count=True,
            row_independent=draw is Draw.TOP and draft.promise.row_independent and review.promise.row_independent,
            uses_target_layers=draft.promise.uses_target_layers or review.promise.uses_target_layers,
        )
        self._observers = [part for part in (draft, review) if isinstance(part, Observer)]
        self._wrap: WrapExpand | None = None
        self._counts = ReviewCounts()

    @property
    def verifier(self) -> Verifier:
        """The rule by which proposals are judged."""
        return Match() if self.rule == "match" else Recursive()

    def _changed(self, draft: Drafter, review: Drafter, tokens: int | None = None, ask: int | None = None) -> Cascade:
        """Returns a copy of this cascade with other drafters and, if given, other numbers."""
        numbers = tokens or self.tokens, ask or self.ask
        return Cascade(draft=draft, review=review, tokens=numbers[0], ask=numbers[1], draw=self.draw, rule=self.rule)

    def untrained(self, vocab: int) -> Cascade:
        """Returns a copy with untrained drafters for a target of `vocab` tokens."""
        return self._changed(untrained_form(self.draft, vocab), untrained_form(self.review, vocab))

    def smaller(self) -> Cascade:
        """Returns a copy with at most three tokens, one of them asked for; with four and two above another cascade."""
        tokens, ask = (4, 2) if isinstance(self.draft, Cascade) else (3, 1)
        numbers = min(self.tokens, tokens), min(self.ask, ask)
        return self._changed(small_form(self.draft), small_form(self.review), *numbers)

    def watched(self, wrap: WrapExpand, wrap_search: object = None) -> Cascade:
        """Returns a copy whose forward passes go through `wrap`."""
        twin = self._changed(self.draft.watched(wrap) if isinstance(self.draft, Cascade) else self.draft, self.review)
        twin._wrap, twin._counts = wrap, self._counts
        return twin

    def bind(self, target: Target) -> None:
        """Binds both drafters."""
        self.draft.bind(target)
        self.review.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        spare = self.tokens * self.ask  # proposed and rejected nodes of a draft
        self.draft.open(slots, room + spare)
        self.review.open(slots, room + spare)

    @torch.no_grad()
    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns a chain below root [B]; the root alone if a drafter is at its context's end."""
        return self._enter(root, context, lambda level: self._chain(level, root))

    def _chain(self, level: ChainProposer, root: Tensor) -> TokenTree:
        """Returns the draft of this cascade's level."""
        sketch = Sketch(root)
        made = level.propose(sketch, [0] * len(sketch), [self.tokens] * len(sketch))
        tokens = torch.cat([root[:, None], root.new_tensor(sketch.texts([nodes[-1] for nodes in made.nodes]))], 1)
        order = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        return TokenTree(
            tokens=tokens,
            parent=order - 1,
            valid=torch.ones_like(tokens, dtype=torch.bool),
            draw=torch.full_like(tokens, self.draw),
            levels=self.tokens,
            q=made.laws,
            q_row=None if made.laws is None else (order - 1).clamp(min=0),
        )

    def _enter(self, root: Tensor, context: Context, then: Callable[[ChainProposer], TokenTree]) -> TokenTree:
        """Returns the tree that `then` builds with this cascade's level, within drafts of all drafters below."""

        def with_draft(proposer: ChainProposer) -> TokenTree:
            def with_review(expand: Expand) -> TokenTree:
                reader = Reader(self._watch(expand), chains=True)
                rule, counts = self.verifier, self._counts
                return then(ReviewedProposer(proposer, reader, rule, self.draw, self.ask, context, counts))

            return self.review.propose(root, FunctionPolicy(self.promise, with_review), context)

        draft = self.draft
        if isinstance(draft, Cascade):
            return draft._enter(root, context, with_draft)
        if draft.promise.complete:
            return with_draft(CopyingProposer(continuation_of(draft)))
        draw = Draw.IID if self.draw is Draw.IID and self.rule == "recursive" else Draw.TOP

        def with_steps(expand: Expand) -> TokenTree:
            return with_draft(
                StepwiseProposer(Reader(self._watch(expand), chains=draft.promise.path_in_frontier), draw, context)
            )

        return draft.propose(root, FunctionPolicy(self.promise, with_steps), context)

    def _watch(self, expand: Expand) -> Expand:
        return expand if self._wrap is None else self._wrap(expand)

    def commit(self, committed: Committed) -> None:
        """Forwards the commit to both drafters."""
        self.draft.commit(committed)
        self.review.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Forwards the cycle to the parts that observe."""
        for part in self._observers:
            part.observe(cycle)

    def report(self) -> dict[str, dict[str, float]]:
        """Returns the reviewing drafter's statistics of passes and kept proposals, and the reports of both drafters."""
        own = self._counts.figures()
        found = {"review": own} if own else {}
        for name, part in (("draft", self.draft), ("review", self.review)):
            found |= {f"{name}'s {what}": figures for what, figures in report_of(part).items()}
        return found

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.draft.keep(rows)
        self.review.keep(rows)


def _require_review(review: Drafter) -> None:
    """Raises CompositionError for a drafter that cannot review."""
    name = type(review).__name__
    if review.promise.complete:
        raise CompositionError(
            f"the review of cascade grows a tree policy, such as `model`; {name} builds its own trees"
        )
    if not review.promise.path_in_frontier:
        raise CompositionError(
            f"the review of cascade reads several nodes of a path in one forward pass, as `model` and `self` do; "
            f"{name} cannot"
        )


def _require_draft(draft: Drafter) -> None:
    """Raises CompositionError for a drafter that cannot propose chains after a draft."""
    own = draft.promise
    if own.overlaps_scoring:
        raise CompositionError("a drafter that drafts `ahead` stands alone: cascade takes the drafter in it")
    if own.complete and own.nodes != 1 and not isinstance(draft, Cascade) and continuation_of(draft) is None:
        raise CompositionError(
            f"the draft of cascade proposes chains after a chain, as `model` and `suffix` do; {type(draft).__name__} "
            "builds trees below the root"
        )
    if not own.complete and own.depth is not None:
        raise CompositionError(
            f"the draft of cascade drafts after any chain; {type(draft).__name__} drafts no deeper than {own.depth} "
            "levels"
        )
    if own.block != 1:
        raise CompositionError(
            f"the draft of cascade proposes one level a forward pass; {type(draft).__name__} proposes {own.block}: "
            "set its `block` to 1"
        )
