"""The conformance check of verifiers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.capabilities import Promise, untrained_form
from specframe.kernel.composition import attach, strict_form, taps_of
from specframe.kernel.interfaces import TreePolicy, Verifier
from specframe.kernel.sampling import RandomSource
from specframe.kernel.types import Context, Draw, Expand, Frontier, TokenTree, Verdict
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom
from specframe.testing.cycles import compare_cycle, objections
from specframe.testing.tables import GivenDrafter
from specframe.testing.tiny import tiny_target
from specframe.testing.trees import pad

EXACT = 1e-9
VOCAB, WIDTH = 11, 8
"""Vocabulary and width of the small target that a verifier is bound to."""


def check_verifier(make: Callable[[], Verifier]) -> None:
    """Raises AssertionError unless the verifier keeps its contract.

    It must handle a root-only tree and laws over a support, give well-formed verdicts, never emit a token that the
    target excludes, treat a row the same whatever its neighbours and padding, and, if it declares itself lossless, emit
    the target's law: enumerated over chains and trees of every draw it accepts, with laws that have zeros, one-hots,
    ties and p = q.
    """
    verifier = ready(make)
    assert isinstance(verifier.lossless, bool), "`lossless` must be True or False"
    assert verifier.needs.draws <= frozenset(Draw), "`needs.draws` must be draws"
    check_root_only(verifier)
    for draw in sorted(verifier.needs.draws):
        for tree in (tree for tree in trees_of(draw) if (tree.promise.draws or frozenset()) <= verifier.needs.draws):
            for p, q in law_pairs():
                check_rows(ready(make), draft(tree, q, rows=5), p)
                if verifier.lossless:
                    with objections():
                        comparison = compare_cycle(tree, make(), p, q)
                    assert comparison.tv < EXACT, (
                        f"not lossless for nodes drawn {draw.name.lower()}: total variation {comparison.tv:.4g}; "
                        f"{list(comparison.worst)} has probability {comparison.got:.6f} instead of "
                        f"{comparison.wanted:.6f}"
                    )
                check_support(ready(make), draft(tree, q, rows=5), p)


def ready(make: Callable[[], Verifier]) -> Verifier:
    """A verifier as a session has it: one that reads features is bound to a small target, in its lossless form."""
    verifier = make()
    if not taps_of(verifier):
        return verifier
    made = untrained_form(verifier, VOCAB)
    attach(made, tiny_target(vocab=VOCAB, size=WIDTH))
    return strict_form(made) or made


def _laws(verifier: Verifier, p: Tensor) -> AllLaws:
    """The laws p [B, N, V], with the features that the verifier reads: zeros."""
    return AllLaws(p, {tap: p.new_zeros(*p.shape[:2], WIDTH) for tap in taps_of(verifier)})


def check_root_only(verifier: Verifier) -> None:
    """A tree of the root alone: the bonus follows the target's law."""
    root = torch.zeros(4, dtype=torch.int64)
    sure = torch.zeros(4, 1, 3)
    sure[:, 0, 2] = 1.0
    verdict = verifier.verify(TokenTree.root_only(root), _laws(verifier, sure), SeededRandom(0, 4).verify)
    assert verdict.path.shape == (4, 0), f"a root-only tree's verdict has a path of shape {tuple(verdict.path.shape)}"
    assert verdict.bonus.tolist() == [2] * 4, "the bonus after a root alone must follow the target's distribution"
    assert verdict.length.tolist() == [0] * 4, "nothing can be accepted from a root alone"


def check_rows(verifier: Verifier, tree: TokenTree, p: Tensor) -> None:
    """Checks that verdicts are well-formed and independent of neighbours and padding, for laws p [V, V]."""
    laws = p[tree.tokens]
    for seed in range(6):
        together = verifier.verify(tree, _laws(verifier, laws), _stream(seed, len(laws)))
        check_verdict(tree, laws, together)
        padded = pad(tree, 2)
        wider = verifier.verify(padded, _laws(verifier, p[padded.tokens]), _stream(seed, len(laws)))
        for row in range(len(laws)):
            alone = verifier.verify(
                tree.take(torch.tensor([row])), _laws(verifier, laws[row, None]), _stream(seed, len(laws), row)
            )
            assert _same(together, row, alone, 0), f"row {row} is judged differently among neighbours than alone"
            assert _same(together, row, wider, row), f"row {row} is judged differently when the tree is padded"


def check_support(verifier: Verifier, tree: TokenTree, p: Tensor) -> None:
    """Checks that a tree is judged by its laws whatever the order in which a support has their columns, p [V, V]."""
    if tree.q is None:
        return
    laws, columns = p[tree.tokens], torch.arange(tree.q.shape[-1]).flip(0)
    narrow = replace(tree, q=tree.q[..., columns], support=columns)
    for seed in range(6):
        whole, other = (
            verifier.verify(each, _laws(verifier, laws), _stream(seed, len(laws))) for each in (tree, narrow)
        )
        assert all(_same(whole, row, other, row) for row in range(len(laws))), (
            "a tree is judged differently when its laws are recorded over a support: read them by `TokenTree.whole`"
        )


def check_verdict(tree: TokenTree, p: Tensor, verdict: Verdict) -> None:
    """The verdict of a tree under laws p [B, N, V] is a path of valid nodes, and all it emits is possible."""
    batch, count, vocab = p.shape
    assert verdict.path.shape == (batch, tree.levels), f"path of shape {tuple(verdict.path.shape)}"
    for row, length in enumerate(verdict.length.tolist()):
        path = verdict.path[row].tolist()
        assert all(node > 0 for node in path[:length]), f"row {row}: {length} accepted, but the path is {path}"
        assert path[length:] == [-1] * (tree.levels - length), f"row {row}: the path {path} is not padded with -1"
        parent = 0
        for node in path[:length]:
            assert node < count and bool(tree.valid[row, node]), f"row {row}: node {node} is not valid"
            assert int(tree.parent[row, node]) == parent, f"row {row}: {path} is not a path"
            assert float(p[row, parent, tree.tokens[row, node]]) > 0, f"row {row}: an impossible token was accepted"
            parent = node
        bonus = int(verdict.bonus[row])
        assert 0 <= bonus < vocab and float(p[row, parent, bonus]) > 0, f"row {row}: an impossible bonus"


def trees_of(draw: Draw) -> list[TreePolicy]:
    """Small trees of one draw, a chain and two levels with siblings; and one that it shares with `top`."""
    return [Chain(depth=3, draw=draw), Fixed(widths=[2, 1], draw=draw), MixedTree(draw)]


class MixedTree:
    """A tree of one level whose first node is the likeliest token and whose second comes by another draw."""

    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.promise = Promise(frozenset({draw, Draw.TOP}), nodes=3, depth=1)

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """The likeliest token, then a draw from q; an equal draw stays, to be refused for sure."""
        start = TokenTree.root_only(root)
        logits = expand(Frontier(start, torch.zeros_like(start.tokens))).whole.logits[:, :, 0]  # [B, 1, V]
        q = context.sampling.law(logits, start)
        drawn = logits[:, 0].argmin(-1) if self.draw is Draw.TOP else context.random.categorical(q[:, 0])
        tokens = torch.stack([root, logits[:, 0].argmax(-1), drawn], 1)  # [B, 3]
        zeros = torch.zeros_like(tokens)
        return TokenTree(
            tokens=tokens,
            parent=torch.tensor([-1, 0, 0]).expand_as(tokens),
            valid=torch.ones_like(tokens, dtype=torch.bool),
            draw=torch.tensor([0, int(Draw.TOP), int(self.draw)]).expand_as(tokens),
            levels=1,
            q=q,
            q_row=zeros,
        )


def law_pairs() -> Iterator[tuple[Tensor, Tensor]]:
    """Pairs of laws p, q [V, V] over three tokens: distinct, with zeros, one-hot, disjoint, tied, and equal."""
    base = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7], [0.25, 0.6, 0.15]], dtype=torch.float64)
    other = torch.tensor([[0.35, 0.05, 0.6], [0.02, 0.08, 0.9], [0.1, 0.15, 0.75]], dtype=torch.float64)
    holes = torch.tensor([[0.0, 0.4, 0.6], [1.0, 0.0, 0.0], [0.5, 0.5, 0.0]], dtype=torch.float64)
    yield base, other  # residuals of two tokens
    yield other, base  # and of one
    yield base, holes
    yield holes, base
    yield holes, holes.flip(1)
    yield base, base
    mixed = base.clone()
    mixed[0] = other[0]
    yield base, mixed
    sure = torch.nn.functional.one_hot(base.argmax(-1), 3).double()  # greedy decoding
    yield sure, base
    yield sure, other


def draft(tree: TreePolicy, q: Tensor, rows: int) -> TokenTree:
    """A draft of the tree from laws q [V, V], in rows with different roots."""
    root = torch.arange(rows) % q.shape[-1]
    return tree.grow(GivenDrafter(q).expand, root, Context(Sampling(temperature=1.0), SeededRandom(3, rows).draft))


def _stream(seed: int, rows: int, only: int | None = None) -> RandomSource:
    random = SeededRandom(seed, rows)
    if only is not None:
        random.keep(torch.tensor([only]))
    return random.verify


def _same(a: Verdict, row: int, b: Verdict, other: int) -> bool:
    mine, theirs = ([node for node in v.path[r].tolist() if node >= 0] for v, r in ((a, row), (b, other)))
    return mine == theirs and int(a.bonus[row]) == int(b.bonus[other])
