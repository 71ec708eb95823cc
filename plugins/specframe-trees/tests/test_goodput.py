"""One depth for all rows: the one that pays by what cycles of so many rows cost, and no text depends on it."""

import json
from dataclasses import replace
from itertools import accumulate
from operator import mul
from typing import ClassVar

import pytest
import torch
from row_cycles import admission

from specframe import Request, Sampling, Session
from specframe.certify.compositions.batch import BATCHES, Accompanied
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.none import NoDrafter
from specframe.components.targets.table import TableTarget
from specframe.components.verifiers.match import Match
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding.session import Parts
from specframe.kernel.errors import InputError
from specframe.kernel.types import Draw, TokenTree, Verdict
from specframe.plugin import Context, SeededRandom
from specframe.testing import GivenDrafter, check_tree, tiny_target
from specframe.testing.policies import cycle_of
from specframe_trees.goodput import Goodput

DEPTH = 4


def seconds(rows, nodes):
    """Time of a forward pass: weights are read once, and arithmetic counts where there is much of it."""
    return 10.0 + max(0, rows * nodes - 12)


def write(folder, rows, acceptance=(0.8, 0.7, 0.6, 0.5), **changes):
    """A file as `specframe profile` writes it for so many rows."""
    path = folder / f"costs-{rows}-{changes.get('context', 0)}.json"
    cycle = {nodes: seconds(rows, nodes) for nodes in (1, 2, 3, 5)}
    found = {"rows": rows, "draft_seconds": 0.5, "block": 1, "cycle_seconds": cycle}
    path.write_text(json.dumps(found | {"acceptance": [[share] for share in acceptance]} | changes))
    return path


@pytest.fixture
def costs(tmp_path):
    return [write(tmp_path, rows) for rows in (16, 1, 4)]


def test_it_keeps_its_contract_and_its_draws_stand_an_audit(costs):
    check_tree(lambda: Goodput(costs=costs, depth=2))
    check_tree(lambda: Goodput(costs=costs, depth=2, widths=(2, 1), draw=Draw.WITHOUT_REPLACEMENT))


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32])
def test_the_depth_is_that_of_the_most_tokens_per_second(costs, rows):
    policy = Goodput(costs=costs, depth=DEPTH)
    root = torch.zeros(rows, dtype=torch.int64)
    survival = list(accumulate((0.8, 0.7, 0.6, 0.5), mul))
    expected = [1 + sum(survival[:depth]) for depth in range(DEPTH + 1)]
    spent = policy.seconds(rows).tolist()
    every = [rows * tokens / time for tokens, time in zip(expected, spent, strict=True)]
    assert policy.goodput(root).tolist() == pytest.approx(every)
    if rows in (1, 4, 16):
        assert spent == pytest.approx([seconds(rows, depth + 1) + 0.5 * depth for depth in range(DEPTH + 1)], abs=1.0)


def test_it_does_not_promise_that_a_row_is_its_own(costs):
    policy = Goodput(costs=costs, depth=DEPTH)
    assert not policy.promise.row_independent and not policy.smaller().promise.row_independent


def test_a_few_rows_speculate_and_many_do_not(costs):
    policy = Goodput(costs=costs, depth=DEPTH)
    depths = [int(policy.goodput(torch.zeros(rows, dtype=torch.int64)).argmax()) for rows in (1, 4, 8, 16, 64)]
    assert depths[0] == 4 and depths[-1] == 0 and depths == sorted(depths, reverse=True)


def test_a_long_context_makes_drafts_cheaper_in_proportion(tmp_path):
    dear = {nodes: 10.0 * nodes for nodes in (1, 2, 3, 5)}
    files = [write(tmp_path, rows, context=100, cycle_seconds=dear) for rows in (1, 4)]
    files += [write(tmp_path, 4, context=1100, cycle_seconds={nodes: 200 + time for nodes, time in dear.items()})]
    policy = Goodput(costs=files, depth=2)
    short, long = policy.seconds(4, 100), policy.seconds(4, 1100)
    assert torch.equal(policy.seconds(4), short)
    assert torch.allclose(policy.seconds(4, 600), (short + long) / 2)
    assert torch.allclose(policy.seconds(4, 2100), 2 * long - short)
    assert torch.allclose(policy.seconds(2, 1100), short + (long - short) / 3), "one row was not timed at length"
    drafted = {}
    for length in (20, 1500):
        root = torch.zeros(4, dtype=torch.int64)
        tokens = torch.ones(4, length, dtype=torch.int64)
        policy.open(4, 2000)
        policy.observe(admission(tokens))
        drafted[length] = int(policy.goodput(root).argmax())
    assert drafted == {20: 0, 1500: 2}


def test_lengths_are_those_of_the_rows_that_stay(costs):
    policy = Goodput(costs=costs, depth=2)
    policy.observe(admission(torch.ones(3, 5, dtype=torch.int64)))
    policy.observe(admission(torch.ones(1, 9, dtype=torch.int64)))
    policy.keep(torch.tensor([3, 1]))
    assert [text.length for text in policy._texts.rows] == [10, 6]


def test_long_prompts_of_short_answers_are_not_drafted_after(tmp_path):
    """A token of a prompt takes half a second, a cycle ten: reading a prompt of 100 is worth five cycles."""
    policy = Goodput(costs=[write(tmp_path, 2, read_seconds=0.5)], depth=DEPTH)
    free = Goodput(costs=[write(tmp_path, 2)], depth=DEPTH)
    root = torch.zeros(2, dtype=torch.int64)
    for one in (policy, free):
        one.observe(admission(torch.ones(2, 100, dtype=torch.int64)))
    depths = [int(policy.goodput(root, [left, left]).argmax()) for left in (1, 10, 400)]
    assert depths == [0, 0, DEPTH], "the whole answer pays for the reading"
    assert int(free.goodput(root, [1, 1]).argmax()) == DEPTH
    tokens = free.goodput(root) * free.seconds(2)
    spent = policy.seconds(2) + tokens * 0.5 * 200 / (2 * 41)
    found = policy.goodput(root, [40, 40])
    assert found[1:].tolist() == pytest.approx((tokens / spent)[1:].tolist())
    assert float(found[0]) == pytest.approx(float(free.goodput(root)[0])), "plain decoding needs no drafter"


def test_between_and_beyond_what_was_timed(tmp_path):
    policy = Goodput(costs=[write(tmp_path, 2), write(tmp_path, 8)], depth=2)
    two, eight = policy.seconds(2), policy.seconds(8)
    assert torch.equal(policy.seconds(1), two)
    assert torch.allclose(policy.seconds(5), (two + eight) / 2)
    assert torch.allclose(policy.seconds(14), 2 * eight - two)
    alone = Goodput(costs=[write(tmp_path, 4)], depth=2)
    assert torch.equal(alone.seconds(1), alone.seconds(100))


PROMPTS = [[1, 2, 3, 1, 2], [4], [5, 6] * 6, [7, 8, 9], [3, 3, 3], [2, 10, 2, 10, 2], [11, 1], [4, 5, 6]]


def decoded(make, slots):
    target = tiny_target(vocab=12, dtype=torch.float64)
    parts = make(target)
    parts.drafter.bind(target)
    depths = []
    session = Session(parts, slots, 64, watch=lambda cycle: depths.append(set(cycle.draft.depth.amax(1).tolist())))
    asked = [
        Request(tokens=prompt, sampling=Sampling(temperature=1.0), seed=row, max_new_tokens=12)
        for row, prompt in enumerate(PROMPTS)
    ]
    return [entry.tokens for entry in session.run(asked)], depths


def test_with_match_a_seed_gives_the_same_text_whatever_the_load(costs):
    small = tiny_target(vocab=12, size=8, dtype=torch.float64)
    plain, _ = decoded(lambda target: Parts(target, NoDrafter(), None, Match()), 1)

    def goodput(target):
        return Parts(target, ModelDrafter.from_model(small.model), Goodput(costs=costs, depth=3), Match())

    seen = []
    for slots in (1, 3, 8):
        texts, depths = decoded(goodput, slots)
        assert texts == plain
        assert all(len(of_rows) == 1 for of_rows in depths), "all rows are drafted equally deep"
        seen.append({depth for of_rows in depths for depth in of_rows})
    assert max(seen[0]) > min(seen[2]), "load changes what is drafted"


Q = torch.tensor([[0.6, 0.4], [0.3, 0.7]], dtype=torch.float64)


class Noted(Goodput):
    """Notes the depths that it chose, by the number of rows."""

    depths: ClassVar[set[tuple[int, int]]] = set()

    def grow(self, expand, root, context):
        tree = super().grow(expand, root, context)
        self.depths.add((len(root), tree.levels))
        return tree


@pytest.mark.parametrize("verifier", [Recursive, Match])
def test_a_row_among_others_that_change_its_depth_is_lossless(tmp_path, verifier):
    files = [
        write(tmp_path, rows, acceptance=(), cycle_seconds={1: 1.0, 4: 1.0 + most}, draft_seconds=0.05)
        for rows, most in ((1, 0.4), (4, 1.3))
    ]

    def parts():
        policy = Noted(costs=files, depth=2, draw=Draw.IID, memory=3.0)
        return Parts(TableTarget(vocab=2, order=2, seed=3), GivenDrafter(Q), policy, verifier())

    for batch in (BATCHES[0], replace(BATCHES[0], number=1)):
        emission = Accompanied("", parts, Sampling(temperature=1.0), 3, (0, 1, 1, 0, 1), batch=batch)
        comparison = emission.compare(budget=20_000)
        assert comparison.enumeration.exhausted and comparison.tv < 1e-12
    assert len({depth for rows, depth in Noted.depths if rows > 1}) > 1, "the rows decided together"


def test_no_levels_cost_no_drafter(tmp_path):
    policy = Goodput(costs=[write(tmp_path, 1, acceptance=(0.0,), draft_seconds=50.0)], depth=2)

    def expand(frontier):
        raise AssertionError("the drafter is called")

    context = Context(Sampling(), SeededRandom(0, 2).draft)
    tree = policy.grow(expand, torch.zeros(2, dtype=torch.int64), context)
    assert tree.tokens.shape == (2, 1) and tree.levels == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda options, folder: options | {"costs": []}, "goodput needs costs"),
        (lambda options, folder: options | {"costs": options["costs"] * 2}, "the same run.batch"),
        (lambda options, folder: options | {"costs": [folder / "none.json"]}, "cannot read the costs"),
        (lambda options, folder: options | {"depth": 9}, "no cycle with more than 5 was timed"),
        (lambda options, folder: options | {"depth": 0}, "at least 1"),
        (lambda options, folder: options | {"widths": ()}, "at least 1"),
        (lambda options, folder: options | {"memory": 0.0}, "at least 1"),
    ],
)
def test_broken_options_are_refused(costs, tmp_path, change, words):
    with pytest.raises(InputError, match=words):
        Goodput(**change({"costs": costs, "depth": 2}, tmp_path))


def answered(policy, accepted):
    """Lets the policy observe a cycle in which a row accepted this many of four drafted levels."""
    tokens = torch.arange(DEPTH + 1)[None]
    draft = TokenTree(tokens, tokens - 1, tokens >= 0, torch.zeros_like(tokens), DEPTH)
    verdict = Verdict(tokens[:, 1:], torch.tensor([accepted]), torch.tensor([0]))
    policy.observe(cycle_of(draft, verdict, DEPTH + 1))


def test_a_new_row_begins_with_what_other_rows_accepted(costs):
    policy = Goodput(costs=costs, depth=DEPTH)
    root = torch.zeros(1, dtype=torch.int64)
    policy.observe(admission(torch.ones(1, 5, dtype=torch.int64)))
    hopeful = policy.goodput(root)
    assert int(hopeful.argmax()) == DEPTH
    for _ in range(400):
        answered(policy, 0)
    policy.keep(torch.zeros(0, dtype=torch.int64))  # the only row is done
    policy.observe(admission(torch.ones(1, 5, dtype=torch.int64)))
    assert int(policy.goodput(root).argmax()) == 0, "nothing was accepted in the row before"
    policy.open(1, 64)
    assert torch.equal(policy.goodput(root), hopeful), "another session knows nothing of it"


def test_what_rows_accepted_is_forgotten_slowly(costs):
    policy = Goodput(costs=costs, depth=DEPTH)
    root = torch.zeros(1, dtype=torch.int64)
    policy.observe(admission(torch.ones(1, 5, dtype=torch.int64)))
    for _ in range(40):
        answered(policy, 0)
    idle = cycle_of(TokenTree.root_only(root), Verdict(root[:, None][:, :0], root, root), 2)
    depths = []
    for _ in range(2000):
        policy.observe(idle)
        depths.append(int(policy.goodput(root).argmax()))
    assert depths[0] == 0 and depths[-1] == DEPTH and 100 < depths.index(DEPTH) < 1500


def test_a_session_whose_rows_have_all_left_goes_on_with_what_the_tree_knows(costs):
    opened = []

    class Counted(Goodput):
        def open(self, slots, room):
            opened.append(slots)
            super().open(slots, room)

    policy = Counted(costs=costs, depth=2)
    opened.clear()
    decoded(lambda target: Parts(target, ModelDrafter.from_model(target.model), policy, Match()), 1)
    assert opened == [1] and policy._pool is not None
