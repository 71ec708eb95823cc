"""Rows whose nodes compete for one budget: a row emits the target's law, whatever its neighbours get."""

from dataclasses import replace

import torch

from specframe import Sampling
from specframe.certify.compositions.batch import BATCHES, Accompanied
from specframe.components.targets.table import TableTarget
from specframe.components.trees.dynamic import Dynamic
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts
from specframe.decoding.verification import Verification
from specframe.kernel.costs import Costs
from specframe.testing import GivenDrafter

Q = torch.tensor([[0.9, 0.1], [0.45, 0.55]], dtype=torch.float64)
COSTS = Costs(((1, 1.0), (2, 1.43), (16, 7.45)), draft=0.02)


def test_a_row_that_competes_with_others_is_lossless(monkeypatch):
    monkeypatch.setattr(Verification, "skips_invalid", lambda self, sampling: True)
    numbers = set()

    class Noted(Dynamic):
        """Notes the numbers of nodes of the rows of a batch."""

        def grow(self, expand, root, context):
            tree = super().grow(expand, root, context)
            numbers.add(tuple(tree.valid.sum(1).tolist()))
            return tree

    def parts():
        policy = Noted(depth=2, width=2, nodes=4)
        return Parts(TableTarget(vocab=2, order=2, seed=3), GivenDrafter(Q), policy, Match(), costs=COSTS)

    for batch in (BATCHES[0], replace(BATCHES[0], number=1)):
        emission = Accompanied("", parts, Sampling(temperature=1.0), 3, (0, 1, 1, 0, 1), batch=batch)
        comparison = emission.compare(budget=20_000)
        assert comparison.enumeration.exhausted and comparison.tv < 1e-12
    assert any(len(set(rows)) > 1 for rows in numbers), "rows differ in their nodes"
