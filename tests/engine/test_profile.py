"""Acceptance by level and rank is counted right, and forecasts what the best tree then does."""

import json

import pytest
import torch

from specframe.cli.main import main
from specframe.components.trees.chain import Chain
from specframe.components.trees.optimal import expected_tau
from specframe.components.trees.sequoia import Sequoia
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.engine.loop import Cycle, Parts
from specframe.engine.pipeline import Pipeline
from specframe.engine.profile import Ranks, profile
from specframe.engine.settings import RunSettings, SamplingSettings
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw, TokenTree, Verdict
from specframe.testing import GivenDrafter, GivenTarget

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
Q = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
PROMPTS = [[0, 1, 2]] * 40


def pipeline(tree, verifier):
    return Pipeline(
        parts=Parts(GivenTarget(P), GivenDrafter(Q), tree, verifier),
        sampling=SamplingSettings(temperature=1.0, max_new_tokens=100),
        run=RunSettings(seed=3, batch=40),
        tokenizer=None,
        ends=frozenset(),
        lossless=True,
    )


def test_ranks_count_visits_and_choices():
    # root -> 1, 2, 3 (2 is padding); 1 -> 4, 5. Row 0 goes 3; row 1 goes 1, 5; row 2 stays at the root.
    tree = TokenTree(
        tokens=torch.zeros(3, 6, dtype=torch.int64),
        parent=torch.tensor([-1, 0, 0, 0, 1, 1]).expand(3, -1),
        valid=torch.tensor([True, True, False, True, True, True]).expand(3, -1),
        draw=torch.zeros(3, 6, dtype=torch.int64),
        levels=2,
    )
    path = torch.tensor([[3, -1], [1, 5], [-1, -1]])
    ranks = Ranks()
    ranks.add(Cycle(tree, Verdict(path, torch.tensor([1, 2, 0]), torch.zeros(3, dtype=torch.int64))))
    assert ranks.reached == [3, 1]
    assert ranks.accepted == [[1, 1], [0, 1]]
    assert ranks.table == [[1 / 3, 1 / 3], [0.0, 1.0]]


def test_the_table_is_the_targets_law_by_the_drafters_ranking():
    found = profile(pipeline(Chain(), Match()), PROMPTS, depth=2, width=3)
    assert found.ranks.reached[0] > 1000
    for row, visits in zip(found.ranks.table, found.ranks.reached, strict=True):
        assert row == pytest.approx([0.3, 0.2, 0.5], abs=2.5 / visits**0.5)


def test_the_best_tree_does_what_its_table_forecasts(tmp_path):
    found = profile(
        pipeline(Chain(), Recursive()), PROMPTS, depth=2, width=2, draw=Draw.WITHOUT_REPLACEMENT, sizes=(1, 2, 3)
    )
    assert set(found.target_seconds) == {1, 2, 3, 5} and min(found.target_seconds.values()) > 0 < found.draft_seconds
    found.write(tmp_path / "table.json")
    tree = Sequoia(acceptance=tmp_path / "table.json", nodes=5, depth=3)
    tau = pipeline(tree, Recursive()).generate(PROMPTS).acceptance.tau
    assert tau == pytest.approx(expected_tau(tree.shape, found.ranks.table), abs=0.15)
    best = found.fastest(depth=2)
    assert best.shape.nodes in found.target_seconds and best.rate == best.tau / best.seconds and found.block == 1
    overlap = float(torch.minimum(P, Q).sum())
    assert found.ranks.table[0][0] == pytest.approx(overlap, abs=0.05), "the first draw's chance is 1 - TV(p, q)"


def test_what_cannot_be_profiled_is_refused():
    with pytest.raises(InputError, match="makes its own trees"):
        profile(pipeline(None, Match()), PROMPTS)


def test_the_command_prints_the_table_and_writes_it(recipe, tmp_path, capsys):
    out = tmp_path / "table.json"
    assert main(["profile", str(recipe), "--depth", "2", "--width", "3", "--sizes", "1", "4", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "level 1" in said and "<- fastest" in said and f"acceptance: {out}" in said
    table = json.loads(out.read_text())["acceptance"]
    assert len(table[0]) == 3 and 0 <= sum(table[0]) <= 1
    assert main(["profile", str(recipe), "run.prompts=[]"]) == 2
    assert main(["profile", str(recipe), "--width", "0"]) == 2
    assert main(["profile", str(recipe), "--draw", "iid", "verifier.use=typical"]) == 2
