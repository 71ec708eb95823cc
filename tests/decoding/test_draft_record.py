"""Rows of a session that choose together: drafts that brought less than they cost are drafted no more."""

import torch

from specframe import Request, Sampling, Session
from specframe.components.targets.table import TableTarget
from specframe.components.trees.dynamic import Dynamic
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts
from specframe.kernel.costs import Costs
from specframe.testing import GivenDrafter

COSTS = Costs(((1, 1.0), (64, 4.0)), draft=0.2)


def levels(follows, tokens=120):
    """The levels of each cycle's draft for two rows, of a drafter that is sure of the target's argmax or of another."""
    target = TableTarget(vocab=2, order=1, seed=3)
    requests = [Request(tokens=[token], sampling=Sampling(temperature=0.0), max_new_tokens=tokens) for token in (0, 1)]

    def run(q):
        parts = Parts(target, GivenDrafter(q), Dynamic(depth=1, width=1, nodes=1), Match(), costs=COSTS)
        session, found = Session(parts, 2, tokens + 8), list[int]()
        entries = session.run(requests, watch=lambda cycle: found.append(cycle.draft.levels))
        return entries, found[:-1]

    entries, _ = run(torch.full((2, 2), 0.5, dtype=torch.float64))
    likeliest = {before: after for entry in entries for before, after in zip(entry.text, entry.text[1:], strict=False)}
    q = torch.full((2, 2), 0.01, dtype=torch.float64)
    for before, after in likeliest.items():
        q[before, after if follows else 1 - after] = 0.99
    return run(q)[1]


def test_drafts_that_are_never_accepted_end_after_some():
    found = levels(follows=False)
    drafted = sum(found)
    assert found == [1] * drafted + [0] * (len(found) - drafted)
    assert 10 < drafted < 60


def test_drafts_that_are_accepted_go_on():
    assert set(levels(follows=True)) == {1}
