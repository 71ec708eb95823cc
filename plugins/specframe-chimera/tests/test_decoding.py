"""Decoding, batched and cached, gives what the paper's forward over the whole text gives."""

from __future__ import annotations

import chimera_fakes as fakes
import chimera_reference as reference
import pytest
import torch

from specframe.components.heads import FullHead
from specframe.testing import GivenSession, GrowingTree, check_proposals

CLOSE = {"rtol": 1e-6, "atol": 1e-6}  # norms and rotary angles are float32 in transformers
OPTIONS = [
    {},
    {"residual": False, "ngram": 1},
    {"ngram": 5, "head": FullHead()},
    {"ngram": 2, "cache": 3},
]


@pytest.mark.sampled
@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(options) or "plain")
def test_proposals_are_the_papers_forward(options):
    drafter = fakes.bound(heads=4, **options)

    def wanted(session: GivenSession, row: int, path: torch.Tensor) -> torch.Tensor:
        tokens = session.tokens[row].tolist() + path.tolist()
        return reference.logits(drafter, session.features[row], tokens, len(path) + 1)[None]

    check_proposals(drafter, fakes.session, wanted, expansions=3, close=CLOSE["atol"])


@torch.no_grad()
def test_the_cache_of_keys_and_values_grows():
    drafter, session = fakes.bound(heads=1), fakes.session(2)
    drafter.open(8, 64)
    drafter.commit(session.admit([2, 3]))
    drafter._session.spare = 0
    for count in (1, 4, 2, 7, 1):
        drafter.commit(session.advance([count, 1]))
        found = drafter.expand(GrowingTree(session.root, fakes.VOCAB).frontier([0])).logits
        for row in range(2):
            wanted = reference.logits(drafter, session.features[row], session.tokens[row].tolist(), 1)
            torch.testing.assert_close(found[row, 0, 0], wanted, **CLOSE)
