"""Acceptance by level and rank is counted right, and forecasts what the best tree then does."""

import json
from collections import Counter
from dataclasses import replace

import pytest
import torch
import yaml

from specframe.cli.main import main
from specframe.components.trees.dynamic import Dynamic
from specframe.components.trees.fixed import Chain
from specframe.components.trees.optimal import expected_tau
from specframe.components.trees.shape import Shape
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.clock import Clock
from specframe.decoding.pipeline import Pipeline
from specframe.decoding.session import Parts
from specframe.decoding.settings import RunSettings, SamplingSettings
from specframe.inspect.drafting import DraftTimes, paired_medians
from specframe.inspect.forecast import Measured, measure_tau
from specframe.inspect.profile import Ranks, Shares, comb_paths, lengthen, profile, take_turns
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw, TokenTree, Verdict
from specframe.testing import GivenDrafter, GivenTarget
from specframe.testing.policies import cycle_of
from specframe_trees.sequoia import Sequoia

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
    # root -> 1, 2, 3 (2 is padding); 1 -> 4, 5; 3 -> 6; 6 -> 7. Row 0 goes 3, 6; row 1 goes 1, 5; row 2 stays.
    tree = TokenTree(
        tokens=torch.zeros(3, 8, dtype=torch.int64),
        parent=torch.tensor([-1, 0, 0, 0, 1, 1, 3, 6]).expand(3, -1),
        valid=torch.tensor([True, True, False, True, True, True, True, True]).expand(3, -1),
        draw=torch.zeros(3, 8, dtype=torch.int64),
        levels=3,
    )
    path = torch.tensor([[3, 6, -1], [1, 5, -1], [-1, -1, -1]])
    ranks = Ranks()
    verdict = Verdict(path, torch.tensor([2, 2, 0]), torch.zeros(3, dtype=torch.int64))
    ranks.add(cycle_of(tree, verdict, 2))
    assert ranks.reached == [3, 1]
    assert ranks.table == [[1 / 3, 1 / 3], [0.0, 1.0]]
    assert ranks.off_path.table == [[], [1.0], [0.0]], "after the root's second choice, counted apart"


def test_a_share_is_of_the_visits_to_nodes_that_had_such_a_child():
    shares = Shares()
    for siblings, place in ((2, 1), (1, 0), (2, -1), (1, 0)):
        shares.count(0, siblings, place)
    assert shares.visits == [[4, 2]] and shares.accepted == [[2, 1]] and shares.table == [[0.5, 0.5]]


def test_the_comb_has_fewer_choices_where_paths_left_the_first_choices():
    paths = comb_paths(3, 8)
    assert len(paths) == len(set(paths)) and Shape(paths).gap is None
    children = Counter(path[:-1] for path in paths)
    assert [children[path] for path in [(), (0,), (0, 0)]] == [8, 8, 8]
    assert [children[path] for path in [(1,), (2,), (0, 3), (4,), (1, 0), (1, 1)]] == [2, 1, 1, 0, 2, 1]
    assert comb_paths(2, 1) == [(0,), (0, 0)]


def test_what_reading_a_prompt_adds_is_apart_from_a_pass():
    clock, drafting = Clock(), DraftTimes()
    drafting.begin(50)
    for spent, calls in ((4.0, 3), (7.0, 6), (10.0, 9)):
        clock.seconds["drafter"], clock.calls["drafter"] = spent, calls
        drafting.count(clock)
    drafting.begin(10)
    drafting.count(clock)
    assert drafting.passes == pytest.approx([1.0, 10 / 9]) and drafting.read == pytest.approx([0.02, 0.0])


def test_the_table_is_the_targets_law_by_the_drafters_ranking():
    found = profile(pipeline(Chain(), Match()), PROMPTS, depth=2, width=3)
    assert found.ranks.reached[0] > 1000
    for row, visits in zip(found.ranks.table, found.ranks.reached, strict=True):
        assert row == pytest.approx([0.3, 0.2, 0.5], abs=2.5 / visits**0.5)


def test_the_best_tree_does_what_its_table_forecasts(tmp_path):
    found = profile(
        pipeline(Chain(), Recursive()), PROMPTS, depth=2, width=2, draw=Draw.WITHOUT_REPLACEMENT, sizes=(1, 2, 3)
    )
    assert set(found.cycle_seconds) == {1, 2, 3, 5} and min(found.cycle_seconds.values()) > 0 < found.draft_seconds
    found.write(tmp_path / "table.json")
    tree = Sequoia(acceptance=tmp_path / "table.json", nodes=5, depth=3)
    tau = pipeline(tree, Recursive()).generate(PROMPTS).acceptance.tau
    assert tau == pytest.approx(expected_tau(tree.shape, found.ranks.table), abs=0.15)
    best = found.fastest(depth=2)
    assert best.shape.nodes in found.cycle_seconds and best.rate == best.tau / best.seconds and found.block == 1
    overlap = float(torch.minimum(P, Q).sum())
    assert found.ranks.table[0][0] == pytest.approx(overlap, abs=0.05), "the first draw's chance is 1 - TV(p, q)"


def test_trees_take_turns_and_each_begins_once():
    turns = list(take_turns([1, 4, 8], list("abcde"), 2))
    assert [size for size, *_ in turns] == [1, 4, 8, 4, 8, 1, 8, 1, 4]
    assert [(chunk, start) for _, chunk, start in turns[::3]] == [(["a", "b"], 0), (["c", "d"], 2), (["e"], 4)]


def test_turns_change_nothing_of_what_is_counted():
    alone, among = (profile(pipeline(Chain(), Match()), PROMPTS, depth=2, width=3, sizes=s) for s in ((), (1, 2, 6)))
    assert alone.ranks == among.ranks and alone.calibration == among.calibration
    small = replace(pipeline(Chain(), Match()), run=RunSettings(seed=3, batch=7))
    assert profile(small, PROMPTS, depth=2, width=3).ranks == alone.ranks, "a row's numbers are its prompt's"


def test_the_context_is_that_of_the_longest_row():
    found = profile(pipeline(Chain(), Match()), [[0, 1, 2], [0] * 50], depth=1, width=1)
    assert 50 < found.context < 150, "after its prompt, and 100 new tokens at most"
    assert found.context > profile(pipeline(Chain(), Match()), [[0, 1, 2]] * 2, depth=1, width=1).context + 40


def test_prompts_are_made_longer_by_the_others():
    ids = pipeline(Chain(), Match())
    assert lengthen(ids, [[0], [1, 1], [2, 2, 2]], 5) == [[1, 1, 2, 2, 2, 0], [2, 2, 2, 1, 1], [0, 1, 1, 2, 2, 2]]
    with pytest.raises(InputError, match="fewer than 7 tokens"):
        lengthen(ids, [[0], [1, 1], [2, 2, 2]], 7)


def test_answers_of_one_token_are_refused():
    short = replace(pipeline(Chain(), Match()), sampling=SamplingSettings(temperature=1.0, max_new_tokens=1))
    with pytest.raises(InputError, match="ended with its first token"):
        profile(short, PROMPTS)


def test_what_is_measured_is_shown_with_its_error():
    found = Measured(
        cycles=torch.tensor([2.0, 2.0, 4.0]),
        reached=torch.tensor([[2.0, 1.0], [1.0, 1.0], [4.0, 3.0]]),
        expected_counts=torch.tensor([[1.0, 0.5], [1.0, 0.5], [2.0, 1.0]]),
    )
    assert found.alpha == [7 / 8, 5 / 8] and found.tau == 2.5 and found.expected == [0.5, 0.25]
    off = [3 - 3.0, 2 - 3.0, 7 - 6.0]
    assert found.error == pytest.approx((3 / 2 * sum(x * x for x in off)) ** 0.5 / 8)
    single = Measured(torch.ones(1), torch.ones(1, 1), None)
    assert single.error == float("inf") and single.expected is None and single.tau == 2


def test_cycles_are_booked_on_their_prompts():
    uneven = replace(pipeline(Chain(depth=1), Match()), run=RunSettings(seed=3, batch=2), ends=frozenset({2}))
    found = measure_tau(uneven, PROMPTS[:5])
    tokens = uneven.generate(PROMPTS[:5]).acceptance
    assert found.tau == pytest.approx(tokens.tau) and float(found.cycles.sum()) == tokens.cycles
    assert len(set(found.cycles.tolist())) > 1, "each ended where it ended"


def test_what_cannot_be_profiled_is_refused():
    with pytest.raises(InputError, match="makes its own trees"):
        profile(pipeline(None, Match()), PROMPTS)


def test_the_command_prints_the_table_and_writes_it(recipe, tmp_path, capsys):
    out = tmp_path / "table.json"
    assert (
        main(["profile", str(recipe), "--depth", "2", "--width", "3", "--sizes", "1,4", "--out", str(out), "--check"])
        == 0
    )
    output = capsys.readouterr().out
    assert "level 1" in output and "<- fastest" in output and f"acceptance: {out}" in output
    assert "measured" in output and "the recipe's tree" in output
    assert "by the drafter's calibrated probabilities" in output
    line = yaml.safe_load(output.splitlines()[-1])["tree"]
    assert Sequoia(acceptance=out, nodes=line["nodes"], depth=line["depth"]).promise.nodes == line["nodes"] + 1
    table = json.loads(out.read_text())["acceptance"]
    assert len(table[0]) == 3 and 0 <= sum(table[0]) <= 1
    assert Dynamic(calibration=out).calibration is not None and f"calibration: {out}" in output
    assert main(["profile", str(recipe), "run.prompts=[]"]) == 2
    assert main(["profile", str(recipe), "--width", "0"]) == 2
    assert main(["profile", str(recipe), "--draw", "iid", "verifier.use=typical"]) == 2


def test_a_machine_that_is_slow_for_some_turns_changes_no_ratio():
    true, slow = {0: 1.0, 1: 2.0, 4: 3.0}, [1.0, 5.0, 1.0, 1.2, 7.0, 1.1]
    turns = [{size: seconds * factor for size, seconds in true.items()} for factor in slow]
    turns[2][4] *= 1.4  # a disturbance within a turn
    found = paired_medians([*turns, {1: 100.0}])  # of an answer that ended with its first token
    assert list(found) == [0, 1, 4]
    assert [found[size] / found[0] for size in (1, 4)] == pytest.approx([2.0, 3.0])
    assert 1.0 <= found[0] <= 1.3
    assert paired_medians([{1: 2.0}, {4: 5.0}, {1: 4.0}]) == {1: 3.0, 4: 5.0}
