"""Hypothesis strategies: laws, trees, contexts, samplings and whole recipes; needs `pip install specframe[testing]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from torch import Tensor

from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.errors import SpecframeError
from specframe.kernel.interfaces import TreePolicy
from specframe.kernel.types import ALL_DRAWS, Draw, TokenTree
from specframe.recipes.discovery import discover
from specframe.recipes.options import Option
from specframe.recipes.registry import Registry
from specframe.sampling.laws import Sampling
from specframe.testing.coverage import recipe_of
from specframe.testing.sections import INNER, Section, Sections

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
            parent[row, node] = parent_node = draw(st.integers(0, node - 1))
            valid[row, node] = bool(valid[row, parent_node]) and draw(st.integers(0, 5)) > 0
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


MOST = 3
"""The most options of a section that are drawn."""
NESTING = 2
"""The most components that stand inside of each other."""

BOLD = 12
"""Number of values drawn for each one that is taken although the component refuses it."""
TEMPERATURES = (1.0, 0.7, 1.7, 0.0)
NONE: SearchStrategy[list[Option]] = st.just([])


def recipes(
    registry: Registry | None = None,
    *,
    containing: Mapping[str, str | None] = MappingProxyType({}),
    given: Mapping[str, Sequence[Any]] = MappingProxyType({}),
) -> SearchStrategy[dict[str, Any]]:
    """Recipes as data: drafter, tree, verifier and sampling, with what stands inside of them, and their options.

    Options are drawn by the types of the constructors' parameters, from few small values. Some recipes are refused:
    `check_recipe` is for both. A failing recipe shrinks to few options.

    Args:
        registry: the installed components, by default all.
        containing: the component of some kinds, such as `{"drafter": "falcon", "head": "router", "tree": None}`.
        given: values of options whose types leave them open, such as files, by the option's name or
            `component.option`.

    Raises PluginError for a component that is not installed.
    """
    sections = Sections(registry or discover(), given)
    for kind, name in containing.items():
        if name is not None:
            sections.options(kind, name)
    return _recipes(sections, containing)


@st.composite
def _recipes(draw: DrawFn, sections: Sections, containing: Mapping[str, str | None]) -> dict[str, Any]:
    def section(kind: str) -> Section:
        name = containing.get(kind) or draw(st.sampled_from(sections.names(kind)))
        return draw(_sections(sections, kind, name, containing, NESTING))

    drafter = section("drafter")
    wanted = containing["tree"] is not None if "tree" in containing else draw(_grows(sections, drafter))
    tree = section("tree") if wanted else None
    sampling = draw(_sections(sections, "section", "sampling", {}, 0)) | {
        "temperature": draw(st.sampled_from(TEMPERATURES))
    }
    del sampling["use"]
    return recipe_of(drafter, tree, section("verifier"), sampling)


def _grows(sections: Sections, drafter: Section) -> SearchStrategy[bool]:
    """Returns whether a recipe has a tree: mostly as its drafter needs it."""
    try:
        needed = not sections.build("drafter", drafter).promise.complete
    except SpecframeError:
        needed = True
    return st.sampled_from([needed, needed, needed, not needed])


@st.composite
def _sections(
    draw: DrawFn, sections: Sections, kind: str, name: str, containing: Mapping[str, str | None], nesting: int
) -> Section:
    """The smallest section of a component, with other values of some options: mostly those that it can be built with.

    What `containing` names stands inside, if the component has a place for it.
    """
    options = list(sections.options(kind, name).values())
    wanted = [(each.name, within) for each in options if each.kind in INNER and (within := containing.get(each.kind))]
    found = sections.smallest(kind, name, inner=wanted[0] if wanted else None) or {"use": name}
    free = [option for option in options if option.name not in dict(wanted)]
    chosen = draw(
        st.lists(st.sampled_from(free), max_size=MOST, unique_by=lambda option: option.name) if free else NONE
    )
    for option in chosen:
        values = sections.values(name, option)
        if option.kind is None and values:
            value = draw(st.sampled_from(values))
        elif option.kind is not None and (nesting or option.required):
            value = draw(_inner(sections, option, containing, nesting))
        else:
            continue
        changed = found | {option.name: value}
        if draw(st.integers(1, BOLD)) == BOLD or sections.fits(kind, changed):
            found = changed
    return found


def _inner(
    sections: Sections, option: Option, containing: Mapping[str, str | None], nesting: int
) -> SearchStrategy[Section]:
    """Sections of the components that can stand in an option; without further ones inside, where nesting ends."""
    kind = option.kind or ""
    inside = {each: containing[each] for each in INNER if each in containing and kind not in INNER}
    return st.sampled_from(_names(sections, kind, nesting)).flatmap(
        lambda name: _sections(sections, kind, name, inside, nesting - 1)
    )


def _names(sections: Sections, kind: str, nesting: int) -> list[str]:
    names = sections.simple_first(kind)
    if nesting > 0:
        return names
    return [name for name in names if not any(o.kind and o.required for o in sections.options(kind, name).values())]
