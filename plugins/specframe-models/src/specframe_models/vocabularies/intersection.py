"""Token-level intersection: a drafter of another vocabulary, restricted to the tokens that the target also has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from specframe import CompositionError
from specframe.plugin import (
    Committed,
    Context,
    Drafter,
    Expand,
    Frontier,
    Promise,
    Proposal,
    Target,
    Teacher,
    TokenTree,
    TreePolicy,
    text_of,
)
from specframe_models.vocabularies.translator import Pair, Translator, require_tree
from specframe_models.vocabularies.untrained import translated
from specframe_models.vocabularies.vocabulary import shared


class Intersection:
    """Proposes the tokens of a drafter of another vocabulary that both vocabularies have (TLI).

    The drafter's probabilities are restricted to these tokens and renormalised before anything is drawn, so every tree
    policy and every verifier remains lossless. The drafter reads the text in its own tokenisation.

    Source: Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms for
    Heterogeneous Vocabularies" (arXiv 2502.05202), algorithm 5.

    Options:
        drafter: a drafter that reads tokens alone, such as `model`
        replace: replacements in the prompt's text, so that the drafter reads its own chat format
    """

    taps: frozenset[str] = frozenset()

    def __init__(self, *, drafter: Drafter, replace: dict[str, str] | None = None) -> None:
        self._translator = Translator(drafter, replace, None)
        self.promise = Promise(depth=drafter.promise.depth, block=drafter.promise.block)

    @classmethod
    def given(cls, drafter: Drafter, pair: Pair) -> Intersection:
        """Creates this drafter around one with given vocabularies of drafter and target."""
        made = cls(drafter=drafter)
        made._translator.given = pair
        return made

    def untrained(self, vocab: int) -> Intersection:
        """Returns a copy around an untrained drafter, over two small vocabularies."""
        return Intersection.given(*translated(self._translator.drafter, vocab))

    @property
    def drafter(self) -> Any:
        """The drafter of another vocabulary."""
        return self._translator.drafter

    def bind(self, target: Target) -> None:
        """Finds the tokens that both have; raises CompositionError if there are none."""
        own, other = self._translator.bind(target)
        device = text_of(target).device
        mine, theirs = (each.to(device) for each in shared(own, other))
        if not len(mine):
            raise CompositionError("the drafter's vocabulary and the target's have no token in common; try `slem`")
        self.support = theirs
        """The target's ids of the tokens that both have, [v]."""
        self.vocab = target.vocab_size
        self._mine = mine
        self._to_drafter = torch.zeros(self.vocab, dtype=torch.int64, device=device).scatter(0, theirs, mine)

    def open(self, slots: int, room: int) -> None:
        """Starts a session without rows."""
        self._translator.open(slots, room)

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """Returns a draft below root [B], grown by the tree policy."""
        return self._translator.propose(root, require_tree(tree, "tli"), context, self._translate)

    def commit(self, committed: Committed) -> None:
        """Reads the committed tokens."""
        self._translator.commit(committed)

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._translator.keep(rows)

    def translate(self, teacher: Teacher, answers: Tensor) -> Teacher:
        """Translates the target's answers into the drafter's tokens that both have."""
        return self._translator.translate(teacher, answers, {})

    def _translate(self, expand: Expand) -> Expand:
        def translated(frontier: Frontier) -> Proposal:
            tokens = self._to_drafter[frontier.tree.tokens]
            tokens[:, 0] = self._translator.roots
            found = expand(Frontier(replace(frontier.tree, tokens=tokens), frontier.nodes)).whole
            logits = found.logits[..., self._mine]
            return Proposal(logits, found.confidence, self.support, self.vocab)

        return translated
