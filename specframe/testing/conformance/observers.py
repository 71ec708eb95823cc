"""What a tree policy that follows its session must keep to."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specframe.components.verifiers.match import Match
from specframe.kernel.interfaces import Observer, SamplingRule, TreePolicy
from specframe.kernel.types import Committed, Context, Cycle, Prompts, Scores, TokenTree, Verdict
from specframe.sampling.random import SeededRandom
from specframe.testing.tables import GivenDrafter
from specframe.testing.trees import same_draft

BATCH = 4
CYCLES = 12
LEAVING = 6
"""The cycle after which the first row of a batch has finished."""


def check_observer(make: Callable[[], TreePolicy], drafter: GivenDrafter, sampling: SamplingRule) -> None:
    """Raises AssertionError unless rows remember for themselves, and a session starts as if it were the first.

    A policy that is no observer passes; rows of one that does not promise `alone` may look at each other.
    """
    policy = make()
    if not isinstance(policy, Observer):
        return
    rows = torch.arange(BATCH)
    first, again = (follow(policy, drafter, sampling, rows) for _ in range(2))
    for row in range(BATCH):
        alone = follow(make(), drafter, sampling, rows[row, None])
        for cycle, draft in enumerate(alone if row else alone[:LEAVING]):
            place = row if cycle < LEAVING else row - 1
            assert same_draft(first[cycle], place, again[cycle], place), "`open` does not forget the last session"
            if policy.promise.alone:
                assert same_draft(first[cycle], place, draft, 0), f"row {row} remembers what its neighbours did"


def follow(policy: TreePolicy, drafter: GivenDrafter, sampling: SamplingRule, rows: Tensor) -> list[TokenTree]:
    """The drafts of a session of these rows of a batch; of several rows, the first leaves after a while."""
    assert isinstance(policy, Observer)
    law = torch.full((drafter.vocab,), 1 / drafter.vocab, dtype=torch.float64)
    random = SeededRandom(3, BATCH)
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
        verdict = Match().verify(drafts[-1], law.expand(*drafts[-1].tokens.shape, -1), random.verify)
        random.advance(verdict.count, drafts[-1].levels + 1)
        policy.observe(cycle_of(drafts[-1], verdict, drafter.vocab))
        root = verdict.bonus
    return drafts


def cycle_of(draft: TokenTree, verdict: Verdict, vocab: int, prompt: Prompts | None = None) -> Cycle:
    """The cycle of a draft and a verdict, its scores all alike."""
    logits = torch.zeros(*draft.tokens.shape, vocab, dtype=torch.float64)
    committed = Committed(verdict.emitted(draft), verdict.count, {}, verdict.bonus, prompt)
    return Cycle(draft, Scores(logits, {}), verdict, committed)
