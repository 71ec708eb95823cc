"""Suites: files that name the contestants, prompt sets and settings of benches."""

import json
from dataclasses import fields

import pytest

from specframe.bench.contest.contestants import plan_contestants
from specframe.bench.suite import SuiteBench, find_suite, read_suite, require_sound
from specframe.cli.bench import bench
from specframe.cli.main import main
from specframe.recipes.discovery import discover
from tests.bench.conftest import write_recipe

SUITE = """
contestants:
  - lookup.yaml
  - {recipe: lookup.yaml, label: short, overrides: [drafter.length=2], sampled: [verifier.use=recursive]}
  - plain
data: [talks.jsonl=2]
repeats: 1
max_new_tokens: 4
benches:
  greedy: {temperature: 0}
  sampled: {temperature: 1, repeats: 2, seed: 3}
"""


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Pictures have tests of their own, and take seconds."""
    monkeypatch.setattr("specframe_report.page._draw", lambda summary, folder: [])


def suite(folder, text=SUITE, name="mine.yaml"):
    (folder / name).write_text(text)
    return folder / name


def planned(bench):
    return plan_contestants(bench.selection(local_code=True, environment=False), discover())


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_a_suite_runs_every_bench_into_its_own_folder(here, capsys):
    suite(here)
    assert main(["bench", "mine.yaml"]) == 0
    greedy, sampled = (results(here / "runs" / "mine" / name) for name in ("greedy", "sampled"))
    for found in (greedy, sampled):
        assert [entry["name"] for entry in found["contestants"]] == ["lookup", "short", "plain"]
        assert len(found["prompts"]) == 2 and found["settings"]["max_new_tokens"] == 4
    assert greedy["settings"]["temperature"] == 0 and greedy["settings"]["repeats"] == 1
    assert sampled["settings"] == greedy["settings"] | {"temperature": 1.0, "repeats": 2, "seed": 3}
    assert capsys.readouterr().out.count("written to") == 2


def test_values_of_one_contestant_leave_the_others_alone(here):
    benches = read_suite(suite(here), {})
    for name, verifier in (("greedy", "match"), ("sampled", "recursive")):
        lookup, short = (entrant.plan.recipe.data for entrant in planned(benches[name]).entrants[:2])
        assert "length" not in lookup["drafter"] and short["drafter"]["length"] == 2
        assert (lookup["verifier"]["use"], short["verifier"]["use"]) == ("match", verifier)


def test_options_of_the_command_line_replace_those_of_the_suite(here):
    assert main(["bench", str(suite(here)), "--repeats", "1", "--out", "out", "sampling.max_new_tokens=3"]) == 0
    settings = results(here / "out" / "sampled")["settings"]
    assert settings["repeats"] == 1 and settings["seed"] == 3
    benches = read_suite(here / "mine.yaml", {"data": ("talks.jsonl",), "limit": 1}, ["drafter.length=5"])
    assert {bench.data for bench in benches.values()} == {("talks.jsonl",)}
    assert [entrant.plan.recipe.data["drafter"]["length"] for entrant in planned(benches["greedy"]).entrants[:1]] == [5]


def test_a_suite_without_benches_is_one_and_may_extend_another(here):
    suite(here, "contestants: [lookup.yaml, plain]\ndata: [talks.jsonl]\n", "parent.yaml")
    [(name, bench)] = read_suite(suite(here, "extends: parent.yaml\nrepeats: 2\n"), {}).items()
    assert (name, bench.contestants, bench.data, bench.repeats) == ("", ("lookup.yaml", "plain"), ("talks.jsonl",), 2)


def test_a_suite_is_no_recipe(here, monkeypatch):
    assert find_suite(str(suite(here))) == here / "mine.yaml"
    assert find_suite("lookup.yaml") is None and find_suite("plain") is None and find_suite("nothere.yaml") is None
    home = here / "recipes"
    (home / "suites").mkdir(parents=True)
    suite(home / "suites")
    monkeypatch.setattr("specframe.bench.suite.recipes_folder", lambda: home)
    assert find_suite("suites/mine") == home / "suites" / "mine.yaml" and find_suite("suites/other") is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("contestants: [nothere.yaml, plain]", "mine.yaml:1: nothere.yaml: no such recipe"),
        ("contestants:\n  - plain\n  - {recipe: lokup}", "mine.yaml:3: lokup: no such recipe"),
        ("contestants: [lookup.yaml, noone]", "'noone' is neither a recipe file nor a contestant"),
        ("contestants: [lookup.yaml, plain, plain]", "mine.yaml:1: plain takes part twice"),
        ("contestants: [lookup.yaml, {recipe: lookup.yaml, label: x}]", "lookup.yaml takes part twice"),
        (
            "contestants:\n- {recipe: lookup.yaml, label: x}\n- {recipe: falcon.yaml, label: x}",
            "mine.yaml:3: the label x takes part twice",
        ),
        ("contestants: [lookup.yaml]\ndata: [nothere]", "no prompt set named 'nothere'"),
        ("contestants: [lookup.yaml]\ndata: [talks.jsonl=0]", "talks.jsonl=0 decodes nothing"),
        ("contestants: [{recipe: falcon.yaml, overrides: [drafter.weights=runs/me/x]}]", "runs/me/x: no such weights"),
        ("contestants: [lookup.yaml, other.yaml]", "the contestants of a suite's bench share a target"),
        ("contestants: [lookup.yaml]\nrepeat: 3", "mine.yaml:2: there is no 'repeat'; did you mean 'repeats'?"),
        ("contestants: [lookup.yaml]\nrepeats: many", "expected integer, not 'many'"),
        ("contestants: [lookup.yaml]\nrepeats: 0", "repeats 0 measures nothing"),
        ("contestants: [{recipe: lookup.yaml, labl: x}]", "there is no 'labl'; did you mean 'label'?"),
        ("contestants: [{label: x}]", "a contestant is a word, or a mapping with a recipe"),
        ("contestants: []", "contestants are a list of recipes and other contestants"),
        ("benches: {a: {contestants: [lookup.yaml], tempature: 1}}", "did you mean 'temperature'?"),
        ("contestants: [lookup.yaml]\nbenches: {../a: {}}", "a bench has the name of a folder"),
        ("contestants: [lookup.yaml]\nbenches: []", "benches are a mapping of names to a bench each"),
    ],
)
def test_a_wrong_suite_is_one_line_before_a_model_loads(here, capsys, monkeypatch, text, problem):
    write_recipe(here / "other.yaml", "another", "drafter: {use: lookup}")
    monkeypatch.setattr("specframe.bench.contest.contestants.Contestants.load", lambda *_: pytest.fail("it loaded"))
    suite(here, text + "\n")
    assert main(["bench", "mine.yaml"]) == 2
    out, err = capsys.readouterr()
    assert not out and problem in err and err.count("\n") == 1


def test_a_suite_stands_alone(here, capsys):
    assert main(["bench", str(suite(here)), "lookup.yaml"]) == 2
    assert "is a suite, which names its contestants; give it alone" in capsys.readouterr().err


def test_every_bench_is_checked_before_the_first_runs(here):
    benches = read_suite(suite(here, SUITE + "  last: {data: [nothere]}\n"), {})
    selections = {name: bench.selection(local_code=True, environment=False) for name, bench in benches.items()}
    with pytest.raises(Exception, match="no prompt set named 'nothere'"):
        require_sound(benches, selections)


def test_the_command_and_a_suite_have_one_default_for_each_option():
    parsed = bench.make_context("bench", ["falcon"]).params
    defaults = {
        each.name: each.default for each in fields(SuiteBench) if each.name in parsed and each.name != "contestants"
    }
    assert {"data", "limit", "repeats", "seed", "bound"} <= defaults.keys()
    lists = {name for name, default in defaults.items() if isinstance(default, tuple)}
    assert {name: parsed[name] for name in defaults.keys() - lists} == {
        name: defaults[name] for name in defaults.keys() - lists
    }
    assert not any(parsed[name] for name in lists), "a list that is not given is the suite's own"
