"""The shipped suites: every table of the docs that has one is its suite's, and the methods' rows all take part."""

import pytest

from specframe.bench.contest.contestants import is_recipe, plan_contestants
from specframe.bench.suite import find_suite, read_suite
from specframe.recipes.discovery import discover
from specframe.recipes.folders import find_recipe
from tests.repo.repository import RECIPES, ROOT, SUITES, name


def read(suite):
    return read_suite(find_suite(f"suites/{suite}"), {})


def recipes(bench):
    """The recipes of a bench, as files below the repository."""
    words = [word if isinstance(word, str) else word.recipe for word in bench.contestants]
    return [name(find_recipe(word)) for word in words if is_recipe(word, discover())]


@pytest.mark.parametrize("path", SUITES, ids=name)
def test_a_suite_states_what_it_is_and_how_to_run_it(path):
    opening = path.read_text(encoding="utf-8").splitlines()
    assert opening[0].startswith("# ") and f"#   specframe bench suites/{path.stem}" in opening
    assert find_suite(f"suites/{path.stem}") == path


@pytest.mark.sampled
@pytest.mark.parametrize("path", SUITES, ids=name)
def test_the_contestants_of_a_suites_bench_are_valid_and_share_a_target(path):
    for bench in read_suite(path, {}).values():
        entrants = plan_contestants(bench.selection(local_code=True, environment=False), discover()).entrants
        assert len({entrant.target for entrant in entrants}) == 1
        assert "plain" in {entrant.name for entrant in entrants}


def test_the_committed_results_are_those_of_their_suites(generators):
    benches = generators("benches")
    for bench in benches.read_benches():
        [suite] = read(benches.SUITES[bench.name]).values()
        entries = bench.results["contestants"]
        assert recipes(suite) == [entry["recipe"] for entry in entries if entry["recipe"]]
        assert [word for word in suite.contestants if word in ("plain", "hf:generate")] == ["plain", "hf:generate"]
        known = bench.results["settings"]
        for setting in ("repeats", "batch", "seed", "limit", "turns"):
            assert getattr(suite, setting) == known[setting], (bench.name, setting)
        assert list(suite.data) == known["sets"]
        assert (suite.max_new_tokens or 96) == known["max_new_tokens"]


def test_papers_has_every_recipe_to_the_letter_at_both_temperatures():
    benches = read("papers")
    papers = {name(path) for path in RECIPES if path.parent == ROOT / "recipes" / "papers"}
    for temperature in (0, 1):
        assert {*recipes(benches[f"temperature-{temperature}"])} == papers
        assert benches[f"temperature-{temperature}"].temperature == temperature


def test_everything_has_a_contestant_for_each_row_of_the_methods_table(generators):
    shown = {f"recipes/{recipe}" for recipe in generators("catalogue").recipes_shown()}
    assert {recipe for bench in read("everything").values() for recipe in recipes(bench)} == shown
