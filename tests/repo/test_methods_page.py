"""The methods page and the tables of measured figures: all methods, the newest figures, costs and certificates."""

import json

import pytest

from specframe.recipes.discovery import discover
from tests.bench.synthetic import results, run
from tests.repo.repository import METHODS, packages

TIMES = {"plain": 1.0, "hf:generate": 1.2}
FALCON = ("falcon", "zoo://smollm2-135m")


def test_the_page_has_every_recipe_and_component(generators):
    table = generators("catalogue").read_table()
    methods = [method for group in table["groups"] for method in group["methods"]]
    stems = {recipe.stem for recipe in METHODS if recipe.parent.name != "papers"}
    missing = stems - {method.get("recipe") for method in methods}
    assert not missing, f"no method of docs/methods.yaml has the recipe {missing}"
    named = {part for method in methods for part in (*method.get("parts", ()), *method.get("also", ()))}
    named |= set(table["own"])
    kinds = ("drafter", "tree", "verifier", "head", "loss", "rollout")
    ours = {f"{e.kind}/{e.name}" for e in discover().entries if e.kind in kinds and e.package in packages()}
    assert not ours - named, f"no method of docs/methods.yaml has {ours - named}"
    assert all(method.keys() & {"parts", "absent"} for method in methods), "a method is here, or it is not"


def test_every_method_that_is_built_has_a_recipe(generators):
    catalogue = generators("catalogue")
    methods = [method for group in catalogue.read_table()["groups"] for method in group["methods"] if "parts" in method]
    without = {m["name"] for m in methods if not catalogue.find_recipe(m.get("recipe", ""))}
    assert without == {m["name"] for m in methods if m.get("absent") == "trained weights"}


def components(section):
    """The names of all components that a part of a recipe uses, at any depth."""
    inner = section.values() if isinstance(section, dict) else section if isinstance(section, list) else ()
    own = {section["use"]} if isinstance(section, dict) and "use" in section else set()
    return own.union(*map(components, inner))


def test_a_rows_parts_are_those_of_its_recipe(generators):
    catalogue = generators("catalogue")
    for method in (each for group in catalogue.read_table()["groups"] for each in group["methods"]):
        recipe = catalogue.find_recipe(method.get("recipe", ""))
        if recipe is None:
            continue
        used = components(catalogue.planned(recipe).recipe.data)
        here, other = ({part.partition("/")[2] for part in method.get(key, ())} for key in ("parts", "also"))
        assert here <= used, f"{method['name']}: {recipe} is without {here - used}, which its row lists"
        assert not other & used, f"{method['name']}: {recipe} has {other & used}, which its row denies it"


def test_methods_that_are_a_setting_have_it_set(generators):
    planned = generators("catalogue").planned
    assert planned("compositions/cs-drafting.yaml").parts["drafter"].value("tail") > 0
    assert planned("compositions/rasd-pruned.yaml").parts["drafter"].value("plausible") > 0


def write_bench(folder, name, made, seconds):
    """Results of Falcon on SmolLM2, as a bench of the name would have written them."""
    runs = [run(each, "set/0", repeat, seconds[each]) for each in seconds for repeat in range(2)]
    found = results(runs, [("set/0", "code")], 2)
    found["provenance"]["made"] = made
    (folder / name).mkdir(parents=True, exist_ok=True)
    written = json.dumps(found).replace("zoo://talk-7m", FALCON[1])  # the recipe's target
    (folder / name / "results.json").write_text(written, encoding="utf-8")


def test_the_page_takes_its_figures_from_the_bench(generators, tmp_path):
    render = generators("method_table").render_methods
    before = render(tmp_path)
    assert "not measured yet" in before and "has not been run yet" in before
    write_bench(tmp_path, "smollm2", "2026-01-01T00:00:00+00:00", TIMES | {"falcon": 0.6})
    after = render(tmp_path)
    assert "```bash\nspecframe bench suites/smollm2-short --out docs/benchmark/smollm2\n" in after
    rows = [line for line in after.splitlines() if "[Falcon](falcon.md)" in line]
    assert (
        rows[1].endswith("| `falcon.yaml` | lossless | tau 2.00, 2.00x on SmolLM2 |") and "| 2.00 | 2.00 |" in rows[0]
    )
    assert "### On SmolLM2\n" in after and "### On the embedded model\n" in after, "a table per target"
    assert "not measured yet" in after, "other recipes took no part"


def test_the_newest_bench_counts(generators, tmp_path):
    benches, measured = generators("benches"), generators("overview")._measured

    def shown():
        return measured(benches.newest(benches.read_benches(tmp_path))[FALCON])

    write_bench(tmp_path, "smollm2", "2026-01-01T00:00:00+00:00", TIMES | {"falcon": 0.6})
    write_bench(tmp_path, "smollm2-avx512", "2026-02-01T00:00:00+00:00", TIMES | {"falcon": 0.4})
    assert shown() == ("2.00", "3.00")
    write_bench(tmp_path, "smollm2-avx512", "2026-02-01T00:00:00+00:00", TIMES)
    assert shown() == ("2.00 †", "2.00 †"), "it took no part in the newest bench of its target"


def test_rows_of_no_other_bench_have_tau_alone(generators, tmp_path):
    """And a bench counts for more, whenever it was made."""
    benches, render = generators("benches"), generators("method_table").render_methods
    runs = [
        run(name, f"set/{prompt}", 0, seconds)
        for name, seconds in (("plain", 1.0), ("falcon", 0.6))
        for prompt in (0, 1)
    ]
    found = results(runs, [("set/0", "code"), ("set/1", "code")], 1)
    found["settings"]["temperature"], found["provenance"]["made"] = 1, "2026-01-01T00:00:00+00:00"
    for contestant in found["contestants"]:
        contestant["recipe"] = "recipes/falcon.yaml" if contestant["name"] == "falcon" else None
    benches.write_rows([found], tmp_path)
    (row,) = benches.read_rows(tmp_path)
    assert (row["recipe"], row["target"], row["overall"]["prompts"]) == ("falcon.yaml", FALCON[1], 2)
    write_bench(tmp_path, "smollm2", "2020-01-01T00:00:00+00:00", TIMES | {"eagle": 0.5})
    page = render(tmp_path)
    assert any(line.endswith("| tau 2.00 on SmolLM2 at temperature 1 |") for line in page.splitlines())
    assert "from `specframe bench suites/everything --repeats 1` on 20" in page
    write_bench(tmp_path, "smollm2", "2020-01-01T00:00:00+00:00", TIMES | {"falcon": 0.6})
    assert "at temperature 1 |" not in render(tmp_path)


def test_the_overview_has_what_training_cost(generators):
    overview, planned = generators("overview"), generators("catalogue").planned
    names = ("eagle", "hass", "eagle-suffix", "eagle3", "suffix", "vocabularies/tli")
    cost = {name: overview.training(planned(f"{name}.yaml")) for name in names}
    assert cost["eagle"] == "15.2"
    assert cost["hass"] == cost["eagle-suffix"] == "18.3", "three levels each, and a drafter within another counts"
    assert cost["eagle3"] == "5.1", "three levels each, of its last stage"
    assert cost["suffix"] == "none" and cost["vocabularies/tli"] == "a model"


def test_every_recipe_is_certified(generators):
    found = generators("overview").read_certificates()
    assert not generators("certificates").stale(found), "run: python docs/certificates.py && python docs/generate.py"
    assert not [recipe for recipe, one in found.items() if one["promised"] and not one["lossless"]]


def test_papers_stand_below_what_was_measured(generators):
    rows = generators("measured").paper_rows
    figures = {name: {"value": 2.0, "low": 1.5, "high": 2.5} for name in ("tau", "speedup_hf", "speedup")}
    shown = rows({"": {"mine": {"overall": figures}}}, "", {"mine": "a large model: 3 times"})
    assert shown[1].startswith("| `mine.yaml`, the embedded model of 7M parameters, two cores | 2.00 [1.50, 2.50] |")
    assert shown[2] == "| the paper: a large model |  | | 3 times |"
    paper = {"here": "not measured | | |", "where": "a model", "tau": 4, "gain": "2 times"}
    shown = rows({"": {}}, "", {"other": paper})
    assert shown[1:] == ["| not measured | | | |", "| the paper: a model | 4 | | 2 times |"]


@pytest.mark.parametrize(
    ("identity", "shown"),
    [
        (None, ""),
        ({"identical": 2, "ties": 10, "differing": []}, "2 of 12"),
        ({"identical": 9, "ties": 1, "differing": ["a", "b"]}, "9 of 12; **2 differ**"),
    ],
)
def test_tables_count_the_prompts_with_the_text_of_generate(generators, identity, shown):
    assert generators("measured").format_identical(identity) == shown
