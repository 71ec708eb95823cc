"""Merged laws against brute force, OmniDraft's example, and the published law as a control that must fail."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor

from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.plugin import Committed, Context, Draw, Frontier, Promise, Proposal, Target, TokenTree, TreePolicy
from specframe.sampling.laws import Sampling
from specframe.testing import Emission, GivenTarget
from specframe_models.vocabularies.law import Follow, MergedLaw
from specframe_models.vocabularies.lexicon import NgramLexicon, Spellings, StringLexicon
from specframe_models.vocabularies.vocabulary import Vocabulary

EVERYTHING = Follow(width=100, least=0.0)
P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
"""The target's law of a, b and ab."""
FIRST = torch.tensor([0.6, 0.4], dtype=torch.float64)
AFTER = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
"""The drafter's laws: of its first token, and of the second by the first."""


def law_of_text(seed: int, size: int) -> Callable[[tuple[int, ...]], Tensor]:
    """A random law for every text of the drafter's tokens."""

    def law(path: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, path)) % 2**31)
        return torch.rand(size, generator=generator, dtype=torch.float64).add(0.05).softmax(-1)

    return law


def expand_by(law: Callable[[tuple[int, ...]], Tensor]) -> Callable[[Frontier], Proposal]:
    """An expand that looks up the law of every frontier node's path, and counts nothing as read before."""

    def expand(frontier: Frontier) -> Proposal:
        tree = frontier.tree
        rows = []
        for row, nodes in enumerate(frontier.nodes.tolist()):
            laws = []
            for node in nodes:
                path: list[int] = []
                while node:
                    path.insert(0, int(tree.tokens[row, node]))
                    node = int(tree.parent[row, node])
                laws.append(law(tuple(path)).log())
            rows.append(torch.stack(laws))
        return Proposal(torch.stack(rows)[:, :, None])

    return expand


def merged(lexicon, law, follow: Follow = EVERYTHING) -> Tensor:
    """The law of the first token, [V]."""
    root = torch.tensor([0])
    found = MergedLaw([lexicon], follow, expand_by(law), root)
    proposal = found.expand(Frontier(TokenTree.root_only(root), torch.tensor([[0]])))
    return proposal.logits[0, 0, 0].exp()


def example() -> tuple[Vocabulary, Vocabulary]:
    return Vocabulary.of_pieces(["a", "b"]), Vocabulary.of_pieces(["a", "b", "ab"])


def omnidraft_law(path: tuple[int, ...]) -> Tensor:
    return FIRST if not path else AFTER[path[-1]]


def test_omnidrafts_example_with_the_mass_counted_once() -> None:
    lexicon = NgramLexicon(Spellings(*example()), reach=2)
    lexicon.add(range(3))
    assert merged(lexicon, omnidraft_law).tolist() == pytest.approx([0.3, 0.4, 0.3])
    assert merged(lexicon, omnidraft_law, Follow(4, 0.7)).tolist() == pytest.approx([0.6, 0.4, 0])  # none is followed


@pytest.mark.parametrize("seed", range(3))
def test_strings_against_every_way_to_write(seed: int) -> None:
    """All sequences of as many tokens as may matter, each ending where its first token of the target is certain."""
    drafter = Vocabulary.of_pieces(["b", "a", "ba", "aab", "c"])
    target = Vocabulary.of_pieces(["a", "b", "ab", "aaba", "bab"])
    law, reach = law_of_text(seed, 5), 4
    lexicon = StringLexicon(Spellings(drafter, target), drafter, target, reach)
    wanted = torch.zeros(5, dtype=torch.float64)
    pieces = [piece or b"" for piece in target.pieces]
    for path in product(range(5), repeat=reach):
        weight = torch.stack([law(path[:end])[path[end]] for end in range(reach)]).prod()
        text = b""
        for token in path:
            text += drafter.pieces[token] or b""
            if not any(piece.startswith(text) and piece != text for piece in pieces):
                break
        holds = [number for number, piece in enumerate(pieces) if text.startswith(piece)]
        if holds:
            wanted[max(holds, key=lambda number: len(pieces[number]))] += weight
    assert merged(lexicon, law).tolist() == pytest.approx(wanted.tolist(), abs=1e-12)


def test_longer_ngrams_within_longer_ones() -> None:
    """a, aa and aaa are tokens: the mass of a and of aa is what does not go on."""
    drafter, target = Vocabulary.of_pieces(["a", "b"]), Vocabulary.of_pieces(["a", "b", "aa", "aaa"])
    lexicon = NgramLexicon(Spellings(drafter, target), reach=3)
    lexicon.add(range(4))
    law = merged(lexicon, lambda path: torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert law.tolist() == pytest.approx([0.25, 0.5, 0.125, 0.125])
    gap = NgramLexicon(Spellings(drafter, target), reach=3)
    gap.add([3])
    law = merged(gap, lambda path: torch.tensor([0.5, 0.5], dtype=torch.float64))
    assert law.tolist() == pytest.approx([0.375, 0.5, 0, 0.125])  # what ends after aa is an a


class Drafted:
    """Draws by the process of OmniDraft's example, and records a law: one node a draft."""

    taps: frozenset[str] = frozenset()

    def __init__(self, recorded: list[float]) -> None:
        self.recorded = torch.tensor(recorded, dtype=torch.float64)
        self.promise = Promise(frozenset({Draw.IID}), 2, 1, fixed_sibling_count=True)

    def bind(self, target: Target) -> None:
        pass

    def open(self, slots: int, room: int) -> None:
        pass

    def commit(self, committed: Committed) -> None:
        pass

    def keep(self, rows: Tensor) -> None:
        pass

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        first = context.random.categorical(FIRST.expand(len(root), -1))
        second = context.random.categorical(AFTER[first])
        token = torch.where((first == 0) & (second == 1), 2, first)
        tokens = torch.stack([root, token], 1)
        return TokenTree(
            tokens=tokens,
            parent=torch.tensor([-1, 0]).expand_as(tokens),
            valid=torch.ones_like(tokens).bool(),
            draw=torch.full_like(tokens, Draw.IID),
            levels=1,
            q=self.recorded.expand(len(root), 1, 3),
            q_row=torch.zeros_like(tokens),
        )


@pytest.mark.parametrize(("recorded", "lossless"), [([0.6, 0.4, 0.3], False), ([0.3, 0.4, 0.3], True)])
def test_the_published_law_is_not_lossless(recorded: list[float], lossless: bool) -> None:
    """`q'(t) = q(d)` for a token that begins an n-gram counts its mass twice."""
    parts = Parts(GivenTarget(P), Drafted(recorded), None, Recursive())
    comparison = Emission("", lambda: parts, Sampling(temperature=1.0), 2, (0,)).compare(budget=10_000)
    assert comparison.tv < 1e-12 if lossless else comparison.tv > 0.1


class Merging:
    """The merged law of the example, drawn by the tree policy."""

    taps: frozenset[str] = frozenset()
    promise = Promise()
    bind = open = commit = keep = lambda self, *given: None

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        assert tree is not None
        lexicon = NgramLexicon(Spellings(*example()), reach=2)
        lexicon.add(range(3))
        law = MergedLaw([lexicon] * len(root), EVERYTHING, expand_by(omnidraft_law), root.clamp(max=1))
        return tree.grow(law.expand, root, context)


def test_the_same_target_with_the_merged_law() -> None:
    parts = Parts(GivenTarget(P), Merging(), Chain(depth=2, draw=Draw.IID), Recursive())
    comparison = Emission("", lambda: parts, Sampling(temperature=1.0), 3, (0,)).compare(budget=10_000)
    assert comparison.enumeration.exhausted and comparison.tv < 1e-12
