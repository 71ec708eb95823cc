"""The target without some of its attentions and MLPs as its drafter; a search while decoding chooses them."""

from __future__ import annotations

import logging
from copy import copy

import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.plugin import (
    Committed,
    CommittedText,
    Context,
    Frontier,
    LayerChoice,
    LayeredTarget,
    Promise,
    Proposal,
    Target,
    TokenTree,
    TreePolicy,
)
from specframe_self.layers.search import SetSearch

log = logging.getLogger("specframe.swift")


class SWIFT:
    """Drafts by the target without some attentions and MLPs, and searches between cycles for those to skip.

    Once a row has `window` generated tokens, every `interval`-th cycle tries another set: it runs over the last
    `window` tokens, and its score, the matchness, is the share of these tokens that it would have drafted. The best set
    so far drafts. Most sets are random; every 25th is chosen by the scores of earlier ones (Bayesian optimisation). The
    search continues across requests until it ends, after which it costs nothing.

    A set is chosen between two drafts, so recorded distributions are exact. All rows share one set, which depends on
    all of them and on earlier requests, and so does a row's sample, unless the verifier is `match`.

    Options:
        ratio: share of the attentions and MLPs that is skipped, of those that may be skipped
        ends: number of first and of last layers that always run whole; fewer if no layer lies between
        window: number of generated tokens on which a set is tried
        interval: number of cycles between two sets
        rounds: number of sets after which the search ends
        patience: number of sets without a better one after which the search ends
        enough: matchness above which the search ends

    Source: SWIFT (Xia et al. 2025, arXiv 2410.06916). Its confidence-aware drafting is the tree policy `threshold`.
    """

    taps: frozenset[str] = frozenset()
    promise = Promise(row_independent=False, uses_target_layers=True)
    _text: CommittedText
    _prompt: Tensor  # [B] tokens of the prompts
    _cycles: int

    def __init__(
        self,
        *,
        ratio: float = 0.45,
        ends: int = 1,
        window: int = 32,
        interval: int = 1,
        rounds: int = 1000,
        patience: int = 300,
        enough: float = 0.95,
    ) -> None:
        if not 0 < ratio < 1 or not 0 <= enough <= 1:
            raise InputError(f"swift: ratio and enough are shares, above 0 and up to 1, not {ratio:g} and {enough:g}")
        least = {"ends": 0, "window": 1, "interval": 1, "rounds": 0, "patience": 1}
        given = {"ends": ends, "window": window, "interval": interval, "rounds": rounds, "patience": patience}
        for option, value in given.items():
            if value < least[option]:
                raise InputError(f"swift: {option} must be at least {least[option]}, not {value}")
        self.ratio, self.ends, self.window, self.interval = ratio, ends, window, interval
        self.rounds, self.patience, self.enough = rounds, patience, enough
        self._forgets = False
        self._target: LayeredTarget | None = None
        self._begin()

    def untrained(self, vocab: int) -> SWIFT:
        """Returns a copy for a target of two layers that tries a set in every cycle; sessions start new searches."""
        small = copy(self)
        small.ends, small.window, small.interval, small.enough = 0, 1, 1, 1.0
        small._forgets, small._target = True, None
        small._begin()
        return small

    def bind(self, target: Target) -> None:
        """Shares the target's layers, and begins the search.

        Raises CompositionError for a target without such layers, or with too few of them for the ratio.
        """
        if not isinstance(target, LayeredTarget):
            raise CompositionError(
                "drafter swift takes layers from a target that is a transformers model, such as `hf`"
            )
        layers: int = target.config.num_hidden_layers
        ends = min(self.ends, (layers - 1) // 2)
        self._parts = [(name, layer) for layer in range(ends, layers - ends) for name in ("attention", "mlp")]
        self._count = round(self.ratio * len(self._parts))
        if not 0 < self._count < 2 * layers:
            raise CompositionError(
                f"swift: the target has {layers} layers, of which {len(self._parts)} attentions and MLPs may be "
                f"skipped; a share of {self.ratio:g} of them is {self._count}: change the ratio"
            )
        self._target, self._layers = target, layers
        self.search = self._fresh()
        target.check_layers(self.chosen)
        for part in self._parts[:2]:  # an attention alone and an MLP alone can be left out if other sets can
            target.check_layers(self._without(torch.tensor([other == part for other in self._parts])))

    @property
    def chosen(self) -> LayerChoice:
        """The layers that currently draft."""
        return self._without(self.search.best)

    @property
    def skip(self) -> dict[str, list[int]]:
        """The best set as the option `skip` of the drafter `self`, for decoding without a search."""
        left_out = [part for part, out in zip(self._parts, self.search.best.tolist(), strict=True) if out]
        return {name: [layer for part, layer in left_out if part == name] for name in ("attention", "mlp")}

    def open(self, slots: int, room: int) -> None:
        """Begins a session. The search continues."""
        self._begin()
        if self._forgets and self._target is not None:
            self.search = self._fresh()

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns a draft below root [B], grown by the tree policy. Raises CompositionError without one."""
        if tree is None:
            raise CompositionError("drafter swift needs a tree policy, such as threshold, chain or dynamic")
        return tree.grow(self.expand, root, context)

    @torch.no_grad()
    def expand(self, frontier: Frontier) -> Proposal:
        """Returns the logits of the level below each frontier node."""
        target = self._bound()
        last = target.run_layers(self.chosen, frontier.tree, frontier.nodes)["last"]  # [B, F, D]
        return Proposal(target.head(last)[:, :, None])

    def commit(self, committed: Committed) -> None:
        """Appends the tokens, and tries a set on them if it is due."""
        self._text.commit(committed)
        if committed.prompt is not None:
            self._prompt = torch.cat([self._prompt.to(committed.count.device), committed.prompt.count])
            return
        self._cycles += 1
        if self._cycles % self.interval == 0 and not self.search.done:
            self._try()

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._text.keep(rows)
        self._prompt = self._prompt[rows]

    def _begin(self) -> None:
        self._text = CommittedText()
        self._prompt = torch.zeros(0, dtype=torch.int64)
        self._cycles = 0

    def _fresh(self) -> SetSearch:
        """Returns a search that begins with every other layer skipped, as SWIFT's does."""
        odd_first = sorted(range(len(self._parts)), key=lambda place: (self._parts[place][1] % 2 == 0, place))
        return SetSearch(
            len(self._parts),
            odd_first[: self._count],
            rounds=self.rounds,
            patience=self.patience,
            enough=self.enough,
        )

    @torch.no_grad()
    def _try(self) -> None:
        """Tries a set on the last tokens of the rows that have generated enough."""
        ready = self._text.count - self._prompt >= self.window  # [B]
        if not ready.any():
            return
        where = self._text.count[:, None] - 1 - self.window + torch.arange(self.window + 1, device=ready.device)
        tokens = self._text.tokens.gather(1, where.clamp(min=0))  # [B, W + 1]
        score = self._matchness(self._without(self.search.next()), tokens, ready)
        self.search.record(score)
        if self.search.done:
            log.info("the search has ended with matchness %.3f; skip: %s", self.search.score, self.skip)

    def _matchness(self, chosen: LayerChoice, tokens: Tensor, ready: Tensor) -> float:
        """Returns the share of tokens 1 .. W of [B, W + 1] that these layers would draft, in `ready` rows [B]."""
        target = self._bound()
        drafted = target.head(target.replay_layers(chosen, tokens[:, :-1])).argmax(-1)  # [B, W]
        return float((drafted == tokens[:, 1:])[ready].double().mean())

    def _without(self, left_out: Tensor) -> LayerChoice:
        """Returns all layers except these parts, [n] bool."""
        out = {part for part, is_out in zip(self._parts, left_out.tolist(), strict=True) if is_out}
        attention, mlp = ({layer for part, layer in out if part == name} for name in ("attention", "mlp"))
        return LayerChoice.without(self._layers, attention, mlp)

    def _bound(self) -> LayeredTarget:
        if self._target is None:
            raise CompositionError("drafter swift was used before bind(target)")
        return self._target
