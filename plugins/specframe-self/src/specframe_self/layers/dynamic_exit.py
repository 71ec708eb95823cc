"""The target's first layers as its drafter; exit layer and draft length are chosen by context."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from specframe import CompositionError, InputError
from specframe.plugin import (
    Committed,
    Context,
    Draw,
    Expand,
    Frontier,
    Growth,
    LayerChoice,
    LayeredTarget,
    Promise,
    Proposal,
    Target,
    TokenTree,
    TreePolicy,
)
from specframe_self.layers.shadow import ShadowTokens


class DEL:
    """Drafts a chain by the target's first layers, with the exit and length of most tokens per layer in this context.

    When tokens are committed, the states that verification had after every candidate exit go through the target's final
    norm and LM head, which gives the token that this exit would have drafted. Its acceptance a is the recent share of
    positions at which this is the committed token. The next draft has the exit l and the length d with the largest (1 +
    a + .. + a^d) / (d l + L), where L is the number of layers; length 0, plain decoding, is a candidate, too. A draft
    ends early before a token whose confidence is below the midpoint between the exit's mean confidence where it was
    right and where it was wrong.

    All of this is known before a token is drawn, so recorded distributions are exact. All rows share one choice, by the
    sum of their expected tokens; each row has its own statistics, starting with its first token. A row's sample depends
    on the other rows, unless the verifier is `match`.

    Options:
        exits: numbers of layers after which a draft may exit; none: every number but the last. Each costs an LM head
            for every committed token
        depth: maximum length of a draft
        decay: weight of a cycle relative to the next one
        stopping: whether a draft ends before a token of which the exit is not confident
        draw: top (the most probable token) or iid (a draw from the exit's law)

    Source: DEL (Entezari Zarch et al. 2025, arXiv 2504.05598).
    """

    taps: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        exits: list[int] | None = None,
        depth: int = 6,
        decay: float = 0.95,
        stopping: bool = True,
        draw: Draw = Draw.TOP,
    ) -> None:
        if exits is not None and (not exits or min(exits) < 1 or len(set(exits)) < len(exits)):
            raise InputError(f"del: exits are numbers of layers of at least 1, each once, not {exits}")
        if depth < 1:
            raise InputError(f"del: depth must be at least 1, not {depth}; to draft nothing use `none`")
        if not 0 < decay <= 1:
            raise InputError(f"del: decay must be above 0 and at most 1, not {decay:g}")
        self.exits = None if exits is None else sorted(exits)
        self.depth = depth
        self.decay = decay
        self.stopping = stopping
        self.draw = draw
        self.promise = Promise(
            frozenset({draw}),
            depth + 1,
            depth,
            fixed_sibling_count=True,
            row_independent=False,
            uses_target_layers=True,
        )
        self.choices: Counter[tuple[int, int]] = Counter()
        """Number of times that each exit and length was chosen."""
        self._guess: float | None = None
        self._wrap: Callable[[Expand], Expand] = lambda expand: expand
        self._target: LayeredTarget | None = None
        self._shadow: ShadowTokens | None = None

    def untrained(self, vocab: int) -> DEL:
        """Returns a copy for a target of two layers, which drafts from the first cycle on."""
        small = copy(self)
        small.exits, small._guess = [1], 0.9
        small._target = small._shadow = None
        return small

    def smaller(self) -> DEL:
        """Returns a copy whose drafts have at most two tokens."""
        small = copy(self)
        small.depth = min(self.depth, 2)
        small.promise = replace(self.promise, nodes=small.depth + 1, depth=small.depth)
        return small

    def watched(self, wrap: Callable[[Expand], Expand], wrap_search: object = None) -> DEL:
        """Returns a copy whose forward passes go through `wrap`; it has no native search to wrap."""
        seen = copy(self)
        seen._wrap = wrap
        return seen

    def bind(self, target: Target) -> None:
        """Shares the target's layers. Raises CompositionError for a target without such layers, or without an exit."""
        if not isinstance(target, LayeredTarget):
            raise CompositionError("drafter del takes layers from a target that is a transformers model, such as `hf`")
        layers: int = target.config.num_hidden_layers
        exits = self.exits or list(range(1, layers))
        if not exits or exits[-1] >= layers:
            raise CompositionError(
                f"del: the target has {layers} layers, and exits lie after at least 1 and before the last, not {exits}"
            )
        for exit in {exits[0], exits[-1]}:
            target.check_layers(LayerChoice.first(exit, layers))
        self._target = target
        self._exits, self._layers = exits, layers
        self.taps = frozenset(_tap(exit) for exit in exits)
        target.request(self.taps)

    def open(self, slots: int, room: int) -> None:
        """Begins a session in which every row's statistics start with its first token."""
        self._shadow = None

    @property
    def shadow(self) -> ShadowTokens:
        """The statistics of this session's rows."""
        if self._target is None:
            raise CompositionError("drafter del was used before bind(target)")
        if self._shadow is None:
            self._shadow = ShadowTokens(self._exits, self._layers, self.decay, self._guess)
        return self._shadow

    @torch.no_grad()
    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns the chain below root [B], as deep as the longest row, with invalid nodes in shorter rows."""
        exit, depth = self.shadow.choose(self.depth)
        self.choices[exit, depth] += 1
        least = self.shadow.thresholds(exit).to(root.device)[:, None]  # [B, 1]
        growth = Growth(root)
        node = torch.zeros_like(root)[:, None]  # [B, 1]
        going = torch.ones_like(node, dtype=torch.bool)
        expand = self._wrap(partial(self._expand, exit))
        while growth.levels < depth:
            logits = expand(Frontier(growth.tree, node)).logits[:, :, 0]  # [B, 1, V]
            if self.stopping:
                going = going & (_confidence(logits) >= least)
                if not going.any():
                    break
            self._add(growth, logits, node, going, context)
            node = node + 1
        return growth.tree

    @torch.no_grad()
    def commit(self, committed: Committed) -> None:
        """Compares the tokens that every exit would have drafted with the committed ones.

        A prompt's last states are compared with the first token after it.
        """
        shadow, target = self.shadow, self._target
        assert target is not None
        states = [committed.features[_tap(exit)] for exit in self._exits]  # [B, M, D] each
        tokens, count = committed.tokens, committed.count
        if committed.prompt is not None:
            rows = torch.arange(len(count), device=count.device)
            states = [state[rows, count - 1][:, None] for state in states]
            tokens, count = tokens[rows, count - 1][:, None], torch.ones_like(count)
        logits = target.head(target.norm(torch.stack(states, 2)))  # [B, M, E, V]
        matched = logits.argmax(-1) == tokens[..., None]
        take_in = shadow.observe if committed.prompt is None else shadow.join
        take_in(matched, _confidence(logits), count)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.shadow.keep(rows)

    def _expand(self, exit: int, frontier: Frontier) -> Proposal:
        """Returns the exit's logits after frontier nodes [B, F]: [B, F, 1, V]."""
        assert self._target is not None
        chosen = LayerChoice.first(exit, self._layers)
        last = self._target.run_layers(chosen, frontier.tree, frontier.nodes)["last"]
        return Proposal(self._target.head(last)[:, :, None])

    def _add(self, growth: Growth, logits: Tensor, node: Tensor, going: Tensor, context: Context) -> None:
        """Appends a token below `node` in the rows that are `going`, all [B, 1]."""
        if self.draw is Draw.TOP:
            growth.add(logits.argmax(-1), node, valid=going)
            return
        law = context.sampling.law(logits, growth.tree, node)  # [B, 1, V]
        row = growth.record(law)
        sure = torch.zeros_like(law)
        sure[..., 0] = 1.0  # rows without a draft draw nothing
        tokens = context.random.categorical(torch.where(going[..., None], law, sure))
        growth.add(tokens, node, self.draw, valid=going, q_rows=torch.full_like(node, row))


def _tap(exit: int) -> str:
    """Returns the tap of the state after this number of layers."""
    return f"layer.{exit - 1}"


def _confidence(logits: Tensor) -> Tensor:
    """Returns the probability of the most likely token at temperature 1: [..., V] -> [...]."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return (wide.amax(-1) - wide.logsumexp(-1)).exp()
