"""The conformance check of tree policies, those that follow their session included."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.kernel.interfaces import Observer, TreePolicy
from specframe.kernel.sampling import RandomSource, SamplingRule
from specframe.kernel.types import (
    Committed,
    Context,
    Cycle,
    Expand,
    Frontier,
    Prompts,
    Proposal,
    Scores,
    TokenTree,
    Verdict,
)
from specframe.sampling.laws import Sampling
from specframe.sampling.lazy import AllLaws
from specframe.sampling.random import SeededRandom
from specframe.testing.cycles import audit, objections
from specframe.testing.tables import GivenDrafter
from specframe.testing.trees import check_shape, same_draft

SAMPLINGS = (Sampling(temperature=1.0), Sampling(temperature=0.0), Sampling(temperature=0.7, top_k=2))
BATCH = 5


def check_tree(make: Callable[[], TreePolicy], *, audited: bool = True) -> None:
    """Raises AssertionError unless the tree policy keeps its contract.

    For drafters of one, two and three levels a forward and several samplings: well-formed trees within the
    declared draws, size and depth, frontiers that the K-levels rule allows, node indices that stay, rows that do
    not depend on their neighbours, nor what an `Observer` remembers of them on the session before; and if it declares
    `exact`, every recorded law is the law of its token.
    `audited=False` leaves the last part out, for a tree too large to enumerate.
    """
    policy = make()
    assert policy.promise.complete, "a policy promises `draws` and `nodes`"
    assert (policy.promise.nodes or 0) >= 1, "`nodes` counts the root and is at least 1"
    for block in (1, 2, 3):
        drafter = GivenDrafter(block_laws(block))
        for sampling in SAMPLINGS:
            check_growth(make(), drafter, sampling)
            check_observer(make, drafter, sampling)
            if policy.promise.exact and audited:
                with objections():
                    found = audit(lambda d=drafter: d, make(), sampling=sampling)  # type: ignore[misc]
                assert found.passed, f"a recorded distribution is wrong: {found.findings[0]}"


def check_growth(policy: TreePolicy, drafter: GivenDrafter, sampling: Sampling) -> None:
    """One policy over one drafter: shape, frontiers, and rows."""
    vocab = drafter.vocab
    root = torch.arange(BATCH) % vocab
    for seed in range(4):
        together = policy.grow(Watched(drafter.expand), root, Context(sampling, SeededRandom(seed, BATCH).draft))
        check_shape(together, vocab=vocab, nodes=policy.promise.nodes, draws=policy.promise.draws)
        depth = policy.promise.depth
        assert depth is None or together.levels <= depth, "a tree is deeper than `depth`"
        if together.q is not None and sampling.greedy:
            assert bool((together.q.amax(-1) == 1).all()), "q is not the distribution that Sampling makes"
        for row in range(BATCH if policy.promise.row_independent else 0):
            alone = policy.grow(drafter.expand, root[row, None], Context(sampling, _alone(seed, row)))
            assert same_draft(together, row, alone, 0), f"row {row} grows differently among neighbours than alone"


class Watched:
    """An expand that checks its frontiers: the K-levels rule, and node indices that do not change."""

    def __init__(self, expand: Expand) -> None:
        self._expand = expand
        self._last: TokenTree | None = None
        self._expanded = torch.zeros(0)  # [B, E] nodes expanded so far
        self._block = 0

    def __call__(self, frontier: Frontier) -> Proposal:
        """The drafter's answer."""
        tree, nodes = frontier.tree, frontier.nodes
        if self._last is None:
            assert nodes.shape[1] == 1 and bool((nodes == 0).all()), "the first frontier is the root alone"
            self._expanded = nodes
        else:
            count = self._last.tokens.shape[1]
            unchanged = tree.tokens[:, :count] == self._last.tokens
            assert bool((unchanged | ~self._last.valid).all()), "a node's index changed while the tree grew"
            assert self._is_reached(tree, nodes), (
                f"a frontier node does not lie {self._block} levels below a node expanded earlier"
            )
            self._expanded = torch.cat([self._expanded, nodes], 1)
        self._last = tree
        proposal = self._expand(frontier)
        self._block = proposal.logits.shape[2]
        return proposal

    def _is_reached(self, tree: TokenTree, nodes: Tensor) -> bool:
        ancestors = nodes
        for _ in range(self._block):
            ancestors = tree.parent.gather(1, ancestors.clamp(min=0))
        known = (ancestors[:, :, None] == self._expanded[:, None]).any(-1)
        return bool((known | ~tree.valid.gather(1, nodes)).all())


def block_laws(block: int, vocab: int = 3) -> Tensor:
    """Laws [K, V, V] without symmetries for a drafter of `block` levels, one of them with a zero."""
    entries = torch.arange(1, block * vocab * vocab + 1, dtype=torch.float64).reshape(block, vocab, vocab)
    laws = (entries * 2.399963).sin().abs() + 0.05
    laws[0, 1, 2] = 0.0
    return laws / laws.sum(-1, keepdim=True)


def _alone(seed: int, row: int) -> RandomSource:
    random = SeededRandom(seed, BATCH)
    random.keep(torch.tensor([row]))
    return random.draft


ROWS = 4
CYCLES = 12
LEAVING = 6
"""The cycle after which the first row of a batch has finished."""


def check_observer(make: Callable[[], TreePolicy], drafter: GivenDrafter, sampling: SamplingRule) -> None:
    """Raises AssertionError unless rows remember for themselves, and a session starts as if it were the first.

    A policy that is no observer passes; rows of one that does not promise `row_independent` may look at each other.
    """
    policy = make()
    if not isinstance(policy, Observer):
        return
    rows = torch.arange(ROWS)
    first, again = (follow(policy, drafter, sampling, rows) for _ in range(2))
    for row in range(ROWS):
        alone = follow(make(), drafter, sampling, rows[row, None])
        for cycle, draft in enumerate(alone if row else alone[:LEAVING]):
            place = row if cycle < LEAVING else row - 1
            assert same_draft(first[cycle], place, again[cycle], place), "`open` does not forget the last session"
            if policy.promise.row_independent:
                assert same_draft(first[cycle], place, draft, 0), f"row {row} remembers what its neighbours did"


def follow(policy: TreePolicy, drafter: GivenDrafter, sampling: SamplingRule, rows: Tensor) -> list[TokenTree]:
    """The drafts of a session of these rows of a batch; with several rows, the first leaves after a while."""
    assert isinstance(policy, Observer)
    law = torch.full((drafter.vocab,), 1 / drafter.vocab, dtype=torch.float64)
    random = SeededRandom(3, ROWS)
    random.keep(rows)
    root = rows % drafter.vocab
    policy.open(len(root), CYCLES)
    first = TokenTree.root_only(root)
    nothing = torch.zeros_like(root)
    prompts = Prompts(root[:, None], torch.ones_like(root))
    policy.observe(cycle_of(first, Verdict(first.tokens[:, :0], nothing, root), drafter.vocab, prompts))
    drafts = []
    for cycle in range(CYCLES):
        if cycle == LEAVING and len(root) > 1:
            left = torch.arange(1, len(root))
            policy.keep(left)
            random.keep(left)
            root = root[left]
        drafts.append(policy.grow(drafter.expand, root, Context(sampling, random.draft)))
        verdict = Match().verify(drafts[-1], AllLaws(law.expand(*drafts[-1].tokens.shape, -1)), random.verify)
        random.advance(verdict.count, drafts[-1].levels + 1)
        policy.observe(cycle_of(drafts[-1], verdict, drafter.vocab))
        root = verdict.bonus
    return drafts


def cycle_of(draft: TokenTree, verdict: Verdict, vocab: int, prompt: Prompts | None = None) -> Cycle:
    """The cycle of a draft and a verdict, its scores all alike."""
    logits = torch.zeros(*draft.tokens.shape, vocab, dtype=torch.float64)
    committed = Committed(verdict.emitted(draft), verdict.count, {}, verdict.bonus, prompt)
    return Cycle(draft, Scores(logits, {}), verdict, committed)
