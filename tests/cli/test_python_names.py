"""The commands as functions: each gives what its command prints, as data that notebooks show as tables."""

from __future__ import annotations

import json
from importlib import import_module

import pytest

import specframe
from specframe.cli.main import main
from specframe.files.text import render_table

SHORT = ["sampling.max_new_tokens=8"]


def test_certify_gives_the_command_s_certificate(capsys):
    found = specframe.certify("small/lookup", exact_only=True)
    assert found.lossless and "total variation" in found._repr_html_()
    assert main(["certify", "small/lookup", "--exact-only", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert [case["name"] for case in printed["cases"]] == [case.name for case in found.cases]
    assert printed["branches"] == found.as_dict()["branches"]


def test_bench_gives_the_command_s_summary_and_resumes(tmp_path, capsys):
    options = {"overrides": SHORT, "limit": 1, "repeats": 1, "out": tmp_path / "bench"}
    found = specframe.bench("small/lookup", **options)
    assert [entry["name"] for entry in found.summary["contestants"]] == ["lookup", "plain", "hf:generate"]
    assert (found.folder / "report.md").exists() and not found.errors and "lookup" in found._repr_html_()
    again = specframe.bench(["small/lookup"], **options)
    assert again.results["runs"] == found.results["runs"]
    assert "resuming after 1 of 1 rounds" in capsys.readouterr().err


def test_train_gives_a_report_whose_weights_load(tmp_path):
    data = tmp_path / "data.jsonl"
    data.write_text(json.dumps({"text": "the quick brown fox jumps over the lazy dog"}) + "\n")
    overrides = [f"train.data=[{data}]", f"train.out={tmp_path / 'out'}", "train.steps=1", "train.validation=0"]
    overrides += ["train.batch=1", "train.length=16", "train.fit=0", "train.cache=null", "run.prompts=[]"]
    report = specframe.train("small/falcon", overrides=overrides)
    assert report.steps == 1 and "1 steps in" in report._repr_html_()
    specframe.load("small/falcon", overrides=[f"drafter.weights={report.folder}"])


def test_export_gives_the_folder(tmp_path):
    folder = specframe.export("small/eagle", "eagle", out=tmp_path / "exported")
    assert (folder / "config.json").exists()


def test_profile_takes_a_recipe_by_name():
    found = specframe.profile("small/falcon", ["Do you like music?"], depth=1, width=2)
    assert found.draft_seconds > 0 and found.ranks.top.visits
    with pytest.raises(specframe.RecipeError, match="no-such-recipe"):
        specframe.profile("no-such-recipe", ["Do you like music?"])


@pytest.mark.parametrize("name", ["bench", "certify"])
def test_a_package_of_a_command_s_name_is_its_function(name):
    import_module(f"specframe.{name}")  # which binds the package to the name
    with pytest.raises(specframe.RecipeError, match="no-such-recipe"):
        getattr(specframe, name)("no-such-recipe")


def test_texts_in_tables_are_no_markup():
    table = render_table(("a<b",), [("<script>\x1b[2J\n",)], caption="<i>")
    assert "<script>" not in table and "<i>" not in table and "\x1b" not in table
    assert "&lt;script&gt;\\x1b[2J<br>" in table
