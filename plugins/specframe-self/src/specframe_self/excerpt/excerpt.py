"""A drafter that reads an excerpt of a long prompt, and all tokens after the prompt."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from specframe import CompositionError
from specframe.plugin import (
    Committed,
    Context,
    Cycle,
    Drafter,
    Observer,
    Promise,
    Prompts,
    PromptSelection,
    Target,
    TokenTree,
    TreePolicy,
    small_form,
    untrained_form,
)
from specframe_self.excerpt.selection import Bm25Pieces


class Excerpt:
    """Another drafter, which reads only a part of a long prompt, in order.

    The target reads everything, so a lossless verifier remains lossless. A prompt of at most `tokens` tokens is read as
    a whole. After a long prompt, a drafting model, which may be the target's own checkpoint, thus drafts at the cost of
    a short one, and its prefill takes less time.

    A selection chooses the part: the pieces that match the prompt's end, the question (`bm25`, as in RAPID, Chen et al.
    2025, arXiv 2502.20330), or the tokens that a small model attends to there (`specpc`).

    Options:
        drafter: the drafter, which must read tokens alone
        tokens: maximum number of prompt tokens that are read; none: the selection's
        select: the selection; none: bm25
    """

    taps: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        drafter: Drafter,
        tokens: int | None = None,
        select: PromptSelection | None = None,
    ) -> None:
        if drafter.taps or drafter.promise.uses_target_layers or drafter.promise.overlaps_scoring:
            raise CompositionError(
                "the drafter of excerpt reads another prompt than the target, so it cannot use the target's features, "
                "layers or keys, nor draft ahead; try a `model`"
            )
        self.drafter = drafter
        chosen: PromptSelection = Bm25Pieces() if select is None else select
        self.select = chosen if tokens is None else chosen.sized(tokens)

    @property
    def promise(self) -> Promise:
        """The drafter's promise."""
        return self.drafter.promise

    def untrained(self, vocab: int) -> Excerpt:
        """Returns a small excerpt, with a drafter for a target of `vocab` tokens, whose context may be small, too."""
        select = small_form(untrained_form(self.select, vocab))
        return Excerpt(drafter=untrained_form(self.drafter, vocab), select=select)

    def smaller(self) -> Excerpt:
        """Returns a small excerpt around the drafter's small form, if it has one."""
        return Excerpt(drafter=small_form(self.drafter), select=small_form(self.select))

    def bind(self, target: Target) -> None:
        """Binds the drafter.

        Raises CompositionError for excerpts longer than the drafter's context, and the selection's errors.
        """
        self.drafter.bind(target)
        self.select.bind(target, self.drafter)
        context: int | None = getattr(self.drafter, "context", None)
        if context is not None and self.select.tokens >= context:
            raise CompositionError(
                f"an excerpt of {self.select.tokens} tokens leaves no room in the drafter's context of {context}"
            )

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self.drafter.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the drafter's draft below root [B]."""
        return self.drafter.propose(root, tree, context)

    def commit(self, committed: Committed) -> None:
        """Forwards the commit, with excerpts of the prompts of new rows."""
        if committed.prompt is not None:
            committed = self._admitted(committed, committed.prompt)
        self.drafter.commit(committed)

    def observe(self, cycle: Cycle) -> None:
        """Forwards the cycle to a drafter that observes."""
        if isinstance(self.drafter, Observer):
            self.drafter.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.drafter.keep(rows)

    def _admitted(self, committed: Committed, prompts: Prompts) -> Committed:
        """Returns the admission of these rows with their prompts' excerpts."""
        texts = zip(prompts.tokens.tolist(), prompts.count.tolist(), strict=True)
        excerpts = [self._excerpt(text[:count]) for text, count in texts]
        firsts = committed.root.tolist()
        following = [[*text[1:], first] for text, first in zip(excerpts, firsts, strict=True)]
        device = prompts.tokens.device
        count = torch.tensor([len(text) for text in excerpts], device=device)
        tokens, shifted = _padded(excerpts, device), _padded(following, device)  # [B, M]
        return Committed(shifted, count, {}, committed.root, Prompts(tokens, count))

    def _excerpt(self, prompt: list[int]) -> list[int]:
        """Returns the tokens of a prompt that are read."""
        chosen = range(len(prompt)) if len(prompt) <= self.select.tokens else self.select.choose(prompt)
        return [prompt[place] for place in chosen]


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    return pad_sequence([torch.tensor(row, device=device) for row in rows], batch_first=True)
