"""The report and its plots."""

import csv
import importlib.util
import json
import re
from importlib import resources

import pytest

from specframe.files.prompts import read_records
from specframe_report.format import format_figure
from specframe_report.page import write_report
from specframe_report.plots import can_export
from specframe_report.summary import summarise
from tests.bench.synthetic import World, contestant

PLOTS = ("speedup_by_task", "tau_by_task", "alpha_by_depth", "phases", "speedup_against_tau")
KINDS = ("png", "svg", "tex") if can_export() else ("png", "svg")
TEXTS = ["report.md", "table.md", "table.tex", "figures.csv"]


@pytest.fixture(scope="module")
def bench():
    found = World(6).bench(2)
    found["contestants"] += [contestant("eagle", error="no weights | at all")]
    return found


def test_the_report_has_tables_plots_and_the_setting(bench, tmp_path):
    import matplotlib as mpl

    style = dict(mpl.rcParams)
    files = write_report(bench, summarise(bench), tmp_path / "new")
    assert {path.name for path in files} == {
        *TEXTS,
        *(f"{name}.{kind}" for name in PLOTS for kind in KINDS),
    }
    for path in files:
        assert path.stat().st_size > (400 if path.name.startswith("table") else 1000)
    assert dict(mpl.rcParams) == style
    text = (tmp_path / "new" / "report.md").read_text(encoding="utf-8")
    for expected in ("| falcon ", "code (2 prompts)", "A processor", "specframe bench recipes/falcon.yaml", "Eq. (1)"):
        assert expected in text
    assert "eagle was left out: no weights" in text
    assert all(f"({name}.png)" in text for name in PLOTS)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in rows)


def test_without_matplotlib_the_report_names_what_to_install(bench, tmp_path, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name))
    assert [path.name for path in write_report(bench, summarise(bench), tmp_path)] == TEXTS
    assert "pip install specframe[bench]" in (tmp_path / "report.md").read_text(encoding="utf-8")


def test_the_tables_hold_the_report_s_figures(bench, tmp_path):
    summary = summarise(bench)
    write_report(bench, summary, tmp_path)
    falcon = next(entry for entry in summary["contestants"] if entry["name"] == "falcon")
    with (tmp_path / "figures.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    (tau,) = [
        line for line in lines if (line["contestant"], line["prompts"], line["figure"]) == ("falcon", "all", "tau")
    ]
    assert {name: float(tau[name]) for name in ("value", "low", "high")} == falcon["overall"]["tau"]
    assert {line["prompts"] for line in lines} >= {"all", "tasks: code", *(f"sets: {name}" for name in summary["sets"])}
    markdown, latex = ((tmp_path / name).read_text() for name in ("table.md", "table.tex"))
    shown = format_figure(falcon["overall"]["speedup"], unit="x")
    assert shown in markdown and shown in latex
    assert f"{shown}*" in markdown and "| 1.00x [1.00, 1.00] " in markdown and "does not contain 1." in markdown
    assert latex.startswith("\\begin{tabular}") and "\\bottomrule" in latex and "eagle" not in latex


def test_plots_are_pgfplots_too(bench, tmp_path):
    pytest.importorskip("matplot2tikz")
    odd = json.loads(json.dumps(bench).replace('"falcon"', '"50 % of_all"'))
    write_report(odd, summarise(odd), tmp_path)
    for name in PLOTS:
        text = (tmp_path / f"{name}.tex").read_text(encoding="utf-8")
        assert "\\begin{axis}" in text or "\\begin{groupplot}" in text
        assert "at={(0,-0.3)}" in text, "the legend covers the plot"
        entries = re.findall(r"\\addlegendentry\{(.*)\}", text)
        assert len(entries) == len(set(entries)) > 0
        assert name == "phases" or "50 - of-all" in entries


def test_plain_alone_has_a_report_the_same_each_time(bench, tmp_path):
    alone = bench | {
        "runs": [run for run in bench["runs"] if run["contestant"] == "plain"],
        "contestants": [contestant("plain")],
        "provenance": {},
    }
    first, second = (write_report(alone, summarise(alone), tmp_path / name) for name in ("a", "b"))
    assert {path.name for path in first} == {*TEXTS, *(f"phases.{kind}" for kind in KINDS)}
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_the_shipped_prompts_are_read_and_short():
    file = resources.files("specframe.bench.contest") / "specframe.jsonl"
    with resources.as_file(file) as path:
        records = read_records(path)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [line["id"] for line in lines] == list(range(len(records)))
    assert {record.task for record in records} == {"dialogue", "math", "code", "writing", "summarization", "qa"}
    assert sum(len(record.turns) > 1 for record in records) >= 3
    assert max(len(turn.split()) for record in records for turn in record.turns) < 100
