"""Sequoia's policy: the fixed tree of the best shape, and the file that its table comes from."""

from __future__ import annotations

import json

import pytest
import torch

from specframe.components.trees.fixed import Fixed
from specframe.components.trees.optimal import (
    optimal_shape,
)
from specframe.kernel.errors import InputError
from specframe.kernel.types import Context, Draw
from specframe.sampling.laws import Sampling
from specframe.testing import check_tree
from specframe_trees.sequoia import Sequoia
from tests.components.path_drafter import PathDrafter, Ranked

PAPER = [[0.6, 0.2, 0.1]]


def test_sequoia_is_the_fixed_tree_of_its_shape() -> None:
    policy = Sequoia(acceptance=PAPER, nodes=4, depth=3)
    paths = [".".join(map(str, p)) for p in policy.shape.paths]
    assert paths == ["0", "1", "0.0", "0.0.0"]
    assert policy.promise.draws == {Draw.WITHOUT_REPLACEMENT} and policy.promise.nodes == 5
    roots = torch.tensor([1, 0])
    mine = policy.grow(PathDrafter(6).expand, roots, Context(Sampling(temperature=1.0), Ranked()))
    fixed = Fixed(paths=paths, draw=Draw.WITHOUT_REPLACEMENT)
    theirs = fixed.grow(PathDrafter(6).expand, roots, Context(Sampling(temperature=1.0), Ranked()))
    assert torch.equal(mine.tokens, theirs.tokens) and torch.equal(mine.q, theirs.q)
    check_tree(lambda: Sequoia(acceptance=PAPER, nodes=3, depth=2))


def test_sequoia_reads_a_measured_table(tmp_path) -> None:
    file = tmp_path / "table.json"
    file.write_text(json.dumps({"acceptance": PAPER}))
    given = Sequoia(acceptance=PAPER, nodes=6)
    assert Sequoia(acceptance=file, nodes=6).shape.paths == given.shape.paths
    file.write_text(json.dumps({"acceptance": PAPER, "off_path": [[], [0.1]]}))
    assert Sequoia(acceptance=file, nodes=6).shape.paths == optimal_shape(PAPER, 6, 4, [[], [0.1]]).paths
    assert Sequoia(acceptance=file, nodes=6).shape.paths != given.shape.paths
    file.write_text("[]")
    with pytest.raises(InputError, match="holds no acceptance table"):
        Sequoia(acceptance=file)
    with pytest.raises(InputError, match="cannot read"):
        Sequoia(acceptance=tmp_path / "none.json")
