"""Hypothesis strategies for laws, trees, contexts and samplings; needs `pip install specframe[testing]`."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.interfaces import TreePolicy
from specframe.kernel.types import ALL_DRAWS, Draw, TokenTree
from specframe.sampling.laws import Sampling

NEAR = 1e-9
"""Distance between nearly tied weights."""


@st.composite
def laws(draw: DrawFn, vocab: int = 3) -> Tensor:
    """A law [V] in float64: distinct weights, zeros, one-hot, ties, near-ties, or almost one-hot."""
    kind = draw(st.sampled_from(["distinct", "zeros", "one_hot", "ties", "near_ties", "almost_one_hot"]))
    if kind == "one_hot":
        return torch.eye(vocab, dtype=torch.float64)[draw(st.integers(0, vocab - 1))]
    weights = draw(st.lists(st.integers(1, 20), min_size=vocab, max_size=vocab))
    law = torch.tensor(weights, dtype=torch.float64)
    if kind == "zeros":
        law[draw(st.integers(0, vocab - 1))] = 0.0
    elif kind == "ties":
        law[:] = draw(st.integers(1, 3))
        law[0] = draw(st.integers(1, 3))
    elif kind == "near_ties":
        law = 1.0 + NEAR * law
    elif kind == "almost_one_hot":
        law[draw(st.integers(0, vocab - 1))] = 1e8
    return law / law.sum()


@st.composite
def law_tables(draw: DrawFn, vocab: int = 3) -> Tensor:
    """Laws after each token, [V, V]."""
    return torch.stack([draw(laws(vocab)) for _ in range(vocab)])


@st.composite
def law_pairs(draw: DrawFn, vocab: int = 3) -> tuple[Tensor, Tensor]:
    """A target's and a drafter's laws [V, V], equal in some contexts."""
    p, q = draw(law_tables(vocab)), draw(law_tables(vocab)).clone()
    for context in range(vocab):
        if draw(st.integers(0, 3)) == 0:
            q[context] = p[context]
    return p, q


def draws() -> SearchStrategy[Draw]:
    """One of the ways to draw a node."""
    return st.sampled_from(sorted(ALL_DRAWS))


@st.composite
def policies(draw: DrawFn, kinds: frozenset[Draw] = ALL_DRAWS) -> TreePolicy:
    """A small tree policy of one of these draws: a chain, or two levels with siblings."""
    kind = draw(st.sampled_from(sorted(kinds)))
    widths = draw(st.sampled_from([None, [2], [3], [2, 1], [1, 2], [4]]))
    return Chain(depth=draw(st.integers(1, 2)), draw=kind) if widths is None else Fixed(widths=widths, draw=kind)


@st.composite
def trees(draw: DrawFn, vocab: int = 3, rows: int = 2, most: int = 6) -> TokenTree:
    """Draws any well-formed tree of mixed draws, padding included; its laws need not be those of its tokens."""
    count = draw(st.integers(1, most))
    parent = torch.full((rows, count), -1)
    tokens = torch.tensor([[draw(st.integers(0, vocab - 1)) for _ in range(count)] for _ in range(rows)])
    valid = torch.ones(rows, count, dtype=torch.bool)
    kinds = torch.zeros(rows, count, dtype=torch.int64)
    for row in range(rows):
        for node in range(1, count):
            parent[row, node] = above = draw(st.integers(0, node - 1))
            valid[row, node] = bool(valid[row, above]) and draw(st.integers(0, 5)) > 0
            kinds[row, node] = int(draw(draws()))
    q = torch.stack([torch.stack([draw(laws(vocab)) for _ in range(count)]) for _ in range(rows)])
    depth = [0] * count
    levels = 0
    for row in range(rows):
        for node in range(1, count):
            depth[node] = depth[int(parent[row, node])] + 1
            levels = max(levels, depth[node])
    q_row = parent.clamp(min=0)  # one law per parent: siblings come from the same one
    return TokenTree(tokens=tokens, parent=parent, valid=valid, draw=kinds, levels=levels, q=q, q_row=q_row)


@st.composite
def contexts(draw: DrawFn, vocab: int = 3, longest: int = 6) -> list[int]:
    """A prompt of at least one token."""
    return draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=longest))


@st.composite
def samplings(draw: DrawFn, vocab: int = 3) -> Sampling:
    """Sampling settings, greedy and truncating ones among them."""
    return Sampling(
        temperature=draw(st.sampled_from([0.0, 0.5, 1.0, 1.7])),
        top_k=draw(st.integers(0, vocab)),
        top_p=draw(st.sampled_from([1.0, 0.9, 0.6])),
        min_p=draw(st.sampled_from([0.0, 0.2])),
    )
