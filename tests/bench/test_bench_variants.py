"""Recipes that take part in many variants, and the best acceptance next to the measured one."""

import pytest
import torch

from specframe.bench.contest.optimum import best_at_root
from specframe.bench.contest.own import RecipeContestant
from specframe.bench.contest.settings import Variant, make_variants
from specframe.kernel.errors import InputError, RecipeError
from specframe.kernel.types import Draw, TokenTree
from specframe_report.summary import summarise
from tests.bench.test_bench_contest import hold, plan, runs_of
from tests.components.verifiers.test_bound import cut, siblings_law

TOP, IID, WOR = Draw.TOP, Draw.IID, Draw.WITHOUT_REPLACEMENT


def test_variations_multiply_in_their_order():
    made = make_variants(
        Variant("a.yaml"), ["verifier.use=recursive,block", "tree={use: chain, depth: 2},{use: greedy}"]
    )
    assert [variant.label for variant in made] == [
        "verifier=recursive tree=chain depth=2",
        "verifier=recursive tree=greedy",
        "verifier=block tree=chain depth=2",
        "verifier=block tree=greedy",
    ]
    assert made[0].changes == ("verifier.use=recursive", "tree={use: chain, depth: 2}")
    assert make_variants(Variant("a.yaml"), []) == [Variant("a.yaml")]


@pytest.mark.parametrize("variation", ["tree.depth=3", "tree.depth", "=1,2", "tree.depth=1,,2", "tree.widths=[1,2]"])
def test_a_variation_of_nothing_is_refused(variation):
    with pytest.raises(InputError, match="give it as KEY=A,B"):
        make_variants(Variant("a.yaml"), [variation])


def test_every_variant_is_a_contestant_with_the_same_tokens(here):
    results, _ = hold(here, "falcon.yaml", "plain", "hf:generate", variations=["tree.depth=1,2"])
    assert [entry["name"] for entry in results["contestants"]] == [
        "falcon depth=1",
        "falcon depth=2",
        "plain",
        "hf:generate",
    ]
    assert all(run["identical"] is True for run in results["runs"])
    depths = [entry["resolved"]["tree"]["depth"] for entry in results["contestants"][:2]]
    assert depths == [1, 2]
    assert max(len(run["possible"]) for run in runs_of(results, "falcon depth=1")) == 1


def test_a_variant_in_which_a_change_is_lost_is_left_out_with_a_reason(here):
    """The chain that takes the place of the dynamic tree has no nodes: three rows would be one and the same."""
    chain_or_two = "tree={use: chain, depth: 2},{use: dynamic, depth: 2, width: 2, nodes: 2}"
    with pytest.raises(RecipeError, match=r"another of its values takes the place of tree\.nodes=3"):
        plan("falcon.yaml", "plain", variations=["tree.nodes=3,4", chain_or_two])
    planned = plan("falcon.yaml", "plain", variations=["tree.nodes=2,4", chain_or_two])
    assert [entrant.name for entrant in planned.entrants] == [
        "falcon nodes=2 tree=dynamic depth=2 width=2 nodes=2",
        "plain",
    ]
    assert len(planned.misfits) == 3


def test_variants_whose_parts_do_not_fit_are_left_out_with_a_reason(here):
    sampled = ["sampling.temperature=1", "tree={use: beam, width: 2, depth: 2}"]
    planned = plan("falcon.yaml", "plain", overrides=sampled, variations=["verifier.use=kseq,recursive"])
    assert [entrant.name for entrant in planned.entrants] == ["falcon verifier=recursive", "plain"]
    assert "'kseq' is not lossless for nodes drawn" in planned.misfits["falcon verifier=kseq"]
    with pytest.raises(RecipeError, match="is not lossless"):
        plan("falcon.yaml", overrides=[*sampled, "verifier.use=kseq"])
    with pytest.raises(RecipeError, match="is not lossless"):  # none is left that fits
        plan("falcon.yaml", overrides=sampled, variations=["verifier.use=kseq,transport"])


def test_a_typo_in_a_variation_is_no_misfit(here):
    with pytest.raises(RecipeError, match="did you mean 'recursive'"):
        plan("falcon.yaml", variations=["verifier.use=match,recursiv"])


def tree_of(children, draws, q=None):
    """One root with children [k] of these draws."""
    count = 1 + len(children)
    return TokenTree(
        tokens=torch.tensor([[0, *children]]),
        parent=torch.tensor([[-1] + [0] * len(children)]),
        valid=torch.ones(1, count, dtype=torch.bool),
        draw=torch.tensor([[0, *map(int, draws)]]),
        levels=1,
        q=None if q is None else q[None, None],
        q_row=torch.zeros(1, count, dtype=torch.long),
    )


@pytest.mark.parametrize("kinds", [(IID, IID), (WOR, WOR), (IID,), (TOP, TOP), (IID, TOP), (IID, IID, TOP)])
def test_the_best_at_the_root_is_the_flow_of_all_drafts(kinds):
    """Against min-cut over all sets of tokens, with all siblings that the draws can give."""
    torch.manual_seed(3)
    p, q = torch.rand(2, 5, dtype=torch.float64).pow(2)
    p, q = p / p.sum(), q / q.sum()
    drawn = [kind for kind in kinds if kind is not TOP]
    fixed = q.topk(len(kinds) - len(drawn)).indices.tolist()
    q = q.index_fill(0, torch.tensor(fixed, dtype=torch.long), 0)
    q = q / q.sum()
    drafts = siblings_law(q, drawn[0], len(drawn)) if drawn else {(): 1.0}
    law = {tokens + tuple(fixed): chance for tokens, chance in drafts.items()}
    wanted = cut(p, law)
    tree = tree_of(next(iter(law)), [*drawn, *[TOP] * len(fixed)], q)
    found = best_at_root(tree, p.expand(1, tree.tokens.shape[1], 5))
    assert found.tolist() == pytest.approx([wanted], abs=1e-9)


def test_the_bound_stands_next_to_the_acceptance_and_changes_nothing(here):
    sampled = ["sampling.temperature=1", "tree={use: greedy, widths: [2,1]}", "verifier.use=recursive"]
    free, _ = hold(here, "falcon.yaml", "plain", overrides=sampled, repeats=2)
    bound, _ = hold(here, "falcon.yaml", "plain", overrides=sampled, repeats=2, bound=True, out="bound")
    assert [run["reached"] for run in runs_of(bound, "falcon")] == [run["reached"] for run in runs_of(free, "falcon")]
    first = [run for run in runs_of(bound, "falcon") if run["repeat"] == 0]
    assert all(run["optimum_cycles"] == run["cycles"] for run in first)
    assert not any("optimum" in run for run in runs_of(bound, "falcon") if run["repeat"] == 1)
    figures = summarise(bound)["contestants"][0]["overall"]
    assert 0 < figures["optimal_alpha"] <= 1
    assert summarise(free)["contestants"][0]["overall"]["optimal_alpha"] is None


def test_a_bound_that_fails_costs_that_contestant_alone(here, monkeypatch):
    def fail(self, rows, seed):
        raise ValueError("no distribution was recorded")

    monkeypatch.setattr(RecipeContestant, "find_optimum", fail)
    results, _ = hold(here, "falcon.yaml", "plain", bound=True)
    falcon, plain = results["contestants"]
    assert "no distribution was recorded" in falcon["error"] and plain["error"] is None
    assert len(runs_of(results, "plain")) == 4
