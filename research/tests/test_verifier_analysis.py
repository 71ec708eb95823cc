"""The analysis of the verifiers: its exact figures against enumeration, its measurement at small, and its page."""

import json

import pytest
import torch

from specframe import Sampling
from specframe.certify.compositions.enumeration import enumerate_outcomes
from specframe.plugin import AllLaws, Context, SeededRandom
from specframe.testing.tables import GivenDrafter
from specframe_trees.spectr.transport import Transport

pytestmark = pytest.mark.slow

TREES = ["chain", "iid", "without_replacement", "greedy", "top"]
VOCAB = 5


@pytest.fixture
def verifiers(analysis):
    return analysis("verifiers")


@pytest.fixture
def expectation(analysis):
    return analysis("expectation")


def laws(seed):
    """Peaked laws p and q after each token, [V, V] each."""
    chance = torch.Generator().manual_seed(seed)
    return torch.randn(2, VOCAB, VOCAB, generator=chance, dtype=torch.float64).mul(1.5).softmax(-1)


def grown(tree, q, rows):
    root = torch.zeros(rows, dtype=torch.int64)
    return tree.grow(GivenDrafter(q).expand, root, Context(Sampling(temperature=1.0), SeededRandom(0, rows).draft))


def average(program):
    """The average of a program's number over all of its coins."""
    enumeration = enumerate_outcomes(program, budget=200_000)
    assert enumeration.exhausted
    return sum(mass * outcome[0] for outcome, mass in enumeration.law.items())


@pytest.mark.parametrize("name", TREES)
def test_what_a_rule_emits_on_average_is_what_it_emits_over_all_coins(verifiers, expectation, name):
    p, q = laws(len(name))
    draft = grown(verifiers.TREES[name], q, 3).take(torch.tensor([2]))
    exact = expectation.Draft.of(draft, p[draft.tokens[0]])
    assert {"recursive", "traversal", "match"} < expectation.EXPECTED.keys()
    for rule, expect in expectation.EXPECTED.items():

        def program(random, rows, verifier=verifiers.VERIFIERS[rule]):
            copies = draft.take(torch.zeros(rows, dtype=torch.int64))
            return verifier.verify(copies, AllLaws(p[copies.tokens]), random).count[:, None]

        assert 1 + expect(exact) == pytest.approx(average(program), abs=1e-9), rule


@pytest.mark.parametrize("siblings", [2, 3])
@pytest.mark.parametrize("draw", ["iid", "without_replacement", "greedy", "top"])
def test_what_is_accepted_on_average_is_what_is_accepted_over_all_coins(verifiers, draw, siblings):
    p, q = laws(siblings)
    policy = verifiers.policy_of(draw, siblings)
    found = verifiers.accept(policy, p[0], q[0])
    rules = found.keys() - {"cycles", "optimum"}
    assert rules | {*verifiers.redrawn(policy)} >= {"recursive"} | (
        {"transport"} if draw in ("iid", "without_replacement") else set()
    )
    assert not rules & {*verifiers.redrawn(policy)}
    for rule in rules:

        def program(random, rows, verifier=verifiers.VERIFIERS[rule]):
            root = torch.zeros(rows, dtype=torch.int64)
            draft = policy.grow(GivenDrafter(q).expand, root, Context(Sampling(temperature=1.0), random))
            return verifier.verify(draft, AllLaws(p[draft.tokens]), random).length[:, None]

        assert found[rule] == pytest.approx(average(program), abs=1e-7), rule
        assert found[rule] <= found["optimum"] + 1e-12
    if draw in ("greedy", "top"):
        assert found["recursive"] == pytest.approx(found["optimum"], abs=1e-12)


@pytest.mark.parametrize("name", ["iid", "without_replacement", "greedy"])
@pytest.mark.parametrize("alike", [True, False])
def test_a_thrifty_transport_judges_as_transport_does(verifiers, name, alike):
    p, q = laws(7)
    drafts = grown(verifiers.TREES[name], q, 40)
    if alike:
        drafts = drafts.take(torch.zeros(40, dtype=torch.int64))
    mine, theirs = (
        rule.verify(drafts, AllLaws(p[drafts.tokens]), SeededRandom(1, 40).verify)
        for rule in (verifiers.VERIFIERS["transport"], Transport())
    )
    assert torch.equal(mine.path, theirs.path)
    assert torch.equal(mine.bonus, theirs.bonus)


def test_a_ratio_is_of_totals(verifiers):
    rows = [
        {"cycles": 2.0, "recursive": 4.0, "block": 5.0, "exact recursive": 4.0, "exact block": 5.0, "kseq": 4.0},
        {"cycles": 3.0, "recursive": 6.0, "block": 7.5, "exact recursive": 6.0, "exact block": 7.5, "kseq": 6.0},
    ]
    found = verifiers.compare(rows, "block")
    assert found["tau"] == found["exact_tau"] == [2.5] * 3
    assert found["ratio"] == found["exact_ratio"] == [1.25] * 3
    assert verifiers.compare(rows, "kseq")["exact_ratio"] is None
    assert verifiers.add_up(rows)["block"] == 12.5


def test_it_measures(verifiers, monkeypatch):
    monkeypatch.setattr(verifiers, "TEMPERATURES", (1.0,))
    drafts = verifiers.measure_drafts(limit=1, tokens=2, copies=2)["temperatures"]["1.0"]
    assert list(drafts) == TREES
    assert list(drafts["without_replacement"]["verifiers"]) == ["recursive", "traversal", "transport", "match"]
    for tree in drafts.values():
        assert tree["cycles"] > 0
        assert all(1 <= found["tau"][0] <= 5 for found in tree["verifiers"].values())
    alike = drafts["chain"]["verifiers"]
    assert alike["block"]["exact_tau"] == alike["traversal"]["exact_tau"]
    assert alike["transport"]["tau"] == alike["recursive"]["tau"], "one sibling is judged as recursive does"
    assert all(found["ratio"] == [1, 1, 1] for found in drafts["top"]["verifiers"].values()), "all of them are match"

    bound = verifiers.measure_bound(limit=1, tokens=3, redraws=16, contexts=1)["temperatures"]["1.0"]
    assert list(bound) == list(verifiers.DRAWS)
    assert bound["greedy"]["3"]["furthest"] < 1e-12
    assert bound["iid"]["2"]["contexts"] == 1
    assert bound["iid"]["2"]["ratios"]["transport"][0] > 0.98
    assert bound["without_replacement"]["2"]["redrawn"] == ["recursive"]


def test_the_page_shows_the_numbers_that_were_measured(verifiers):
    import verifiers_page

    numbers = json.loads(verifiers.NUMBERS.read_text(encoding="utf-8"))
    text = verifiers_page.PAGE.read_text(encoding="utf-8")
    tables = dict(verifiers_page.write_tables(numbers))
    assert tables.keys() == {"drafts 0.6", "drafts 1.0", "bound 0.6", "bound 1.0"}
    for name, shown in tables.items():
        assert verifiers_page.fill(text, name, shown) == text, (
            f"the table {name}: run python research/analysis/verifiers.py"
        )


def test_an_unknown_analysis_is_refused(verifiers, capsys):
    with pytest.raises(SystemExit):
        verifiers.main(["bounds"])
    assert "there is no analysis bounds" in capsys.readouterr().err
