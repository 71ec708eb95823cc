"""Drafting ahead: the drafter continues while the target scores its last draft."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.plugin import (
    Chain,
    Committed,
    Context,
    Costs,
    Cycle,
    Drafter,
    Draw,
    Observer,
    Promise,
    Target,
    TokenTree,
    TreePolicy,
    small_form,
    untrained_form,
)
from specframe_trees.ahead.placed import Placed
from specframe_trees.ahead.ready_chains import After, Chains, Prepared

WINDOW = 4
"""Chain length with `window: auto` if no costs are known."""


class Ahead:
    """Another drafter, which drafts the next chain while the target scores the last one.

    It guesses the bonus token, which the target emits after the accepted path, and drafts a chain below each guess. If
    the target emits one of the guesses, its chain is the next draft and costs no additional time. Otherwise the next
    draft is empty: the target scores the last committed token alone, while the drafter guesses what follows it.

    By default it is PEARL (Liu et al. 2024, arXiv 2408.11850): one guess, the drafter's best token after the whole
    chain (post-verify), and after a miss the chain below the root, whose first token is the guess (pre-verify). With
    `guesses` it is SSD (Kumar et al. 2026, arXiv 2603.03251): that number of guesses after each accepted prefix of the
    chain, including the empty one. The rejected token is not among these guesses, because the target does not emit it.

    Above temperature 0, PEARL tests the token drafted after the whole chain by p/q. Here the target draws a bonus token
    there, too, so the chain can be used if that draw is the guess.

    Tokens drafted ahead are not used before their prefix is committed, and every token is verified once, with its own
    random numbers.

    Options:
        drafter: the drafter, which must grow a tree policy and propose one level per forward pass
        window: number of tokens in a chain; auto: the number of the drafter's forward passes that take as long as one
            of the target (nano-PEARL), by `run.costs`, or 4 without costs
        guesses: number of bonus tokens guessed after each accepted prefix of a chain; none: one, after the whole chain
            alone
        draw: top (the most probable token) or iid (a draw from the drafter's distribution); guesses are top
        most: maximum number of tokens in a chain with `window: auto`
    """

    def __init__(
        self,
        *,
        drafter: Drafter,
        window: int | Literal["auto"] = "auto",
        guesses: int | None = None,
        draw: Draw = Draw.TOP,
        most: int = 8,
    ) -> None:
        longest = most if window == "auto" else window
        if longest < 1 or (guesses is not None and guesses < 1):
            raise InputError(f"ahead needs a window and guesses of at least 1, got {longest} and {guesses or 'none'}")
        if draw is Draw.WITHOUT_REPLACEMENT:
            raise InputError(
                "ahead drafts chains, drawn `top` or `iid`: an only child has no siblings to draw it without"
            )
        own = drafter.promise
        if isinstance(drafter, Placed):
            raise CompositionError(
                "a drafter that drafts ahead on another device is `placed` around `ahead`, not within it"
            )
        if own.uses_target_layers:
            raise CompositionError(
                "the drafter of ahead works while the target scores, so it cannot run the target's own layers; try a "
                "`model` or `eagle`"
            )
        if own.complete:
            raise CompositionError("the drafter of ahead builds its own trees; it needs one that grows a tree policy")
        if own.block != 1:
            raise CompositionError(
                f"the drafter of ahead proposes {own.block} levels a forward pass, and chains of different lengths "
                "need one of one level, such as `model` or `eagle`"
            )
        self.drafter, self.window, self.guesses, self.draw, self.most = drafter, window, guesses, draw, most
        guessed = 1 if guesses is None else guesses * (longest + 1)
        self._nodes = (1 + longest) * (1 + guessed)  # nodes drafted after a chain, and the chain
        if own.depth is not None and own.depth < 2 * longest + 1:
            raise CompositionError(
                f"the drafter of ahead drafts no deeper than {own.depth} levels, and a chain after a chain needs "
                f"{2 * longest + 1}: lower the window"
            )
        self.promise = Promise(
            frozenset({draw}),
            longest + 1,
            longest,
            exact=own.exact,
            fixed_sibling_count=True,
            row_independent=own.row_independent,
            overlaps_scoring=True,
        )
        self.taps = drafter.taps
        self._drafted: Prepared | None = None
        self._ready = Chains.none(torch.zeros(0))

    def untrained(self, vocab: int) -> Ahead:
        """Returns a copy whose drafter is for a target of `vocab` tokens."""
        drafter = untrained_form(self.drafter, vocab)
        return Ahead(drafter=drafter, window=self.window, guesses=self.guesses, draw=self.draw, most=self.most)

    def smaller(self) -> Ahead:
        """Returns a copy with chains of at most two tokens, or of one token if they are drawn."""
        drafter = small_form(self.drafter)
        most = 1 if self.draw is Draw.IID else 2
        return Ahead(
            drafter=drafter,
            window=self.window if self.window == "auto" else min(self.window, most),
            guesses=self.guesses and 1,
            draw=self.draw,
            most=min(self.most, most),
        )

    def timed(self) -> tuple[Drafter, TreePolicy]:
        """The wrapped drafter, and a chain as its tree."""
        return self.drafter, Chain()

    def bind(self, target: Target) -> None:
        """Binds the drafter."""
        self.drafter.bind(target)

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        nodes = self.promise.nodes or 1
        self.drafter.open(slots, room - nodes + self._nodes)
        self._drafted, self._ready = None, Chains.none(torch.zeros(0))

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the chains that are ready, below root [B]; rows without one get the root alone."""
        return self._ready.to_tree(root, self.draw)

    def run_ahead(self, draft: TokenTree, context: Context) -> None:
        """Drafts chains after a draft, below each guess of the token that will follow it."""
        policy = After(draft, self._window(context.costs), self.guesses, self.draw, self._nodes)
        tree = self.drafter.propose(draft.tokens[:, 0], policy, context)
        self._drafted = policy.drafted(tree)

    def commit(self, committed: Committed) -> None:
        """Forwards the commit and keeps the chains that follow the committed tokens; new rows have none."""
        self.drafter.commit(committed)
        if committed.prompt is None:
            self._ready = Chains.none(committed.count) if self._drafted is None else self._drafted.after(committed)
        else:
            joined = len(self._ready.tokens) > 0
            self._ready = self._ready.joined(len(committed.count)) if joined else Chains.none(committed.count)
        self._drafted = None

    def observe(self, cycle: Cycle) -> None:
        """Forwards the cycle to a drafter that observes."""
        if isinstance(self.drafter, Observer):
            self.drafter.observe(cycle)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.drafter.keep(rows)
        self._ready = self._ready.take(rows)

    def _window(self, costs: Costs | None) -> int:
        """Returns the length of the next chains: the drafter's speed relative to the target's (nano-PEARL)."""
        if self.window != "auto":
            return self.window
        if costs is None:
            return min(WINDOW, self.most)
        return max(1, min(self.most, round(1 / costs.level) if costs.level else self.most))
