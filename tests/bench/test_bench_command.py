import json

import pytest

import specframe
from specframe.bench.contest.runner import Runner
from specframe.bench.recipes import OPPONENTS
from specframe.cli.main import main
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registration

QUICK = ["--data", "talks.jsonl", "--limit", "2", "--repeats", "2", "--max-new-tokens", "6"]


@pytest.fixture(autouse=True)
def without_pictures(monkeypatch):
    """Pictures have tests of their own, and take seconds."""
    monkeypatch.setattr("specframe_report.page._draw", lambda summary, folder: [])


def read(path):
    return json.loads(path.read_text())


def test_bench_writes_results_and_shows_a_table(here, capsys):
    assert main(["bench", "falcon.yaml", "hf:generate", *QUICK, "lookup.yaml", "sampling.temperature=0.0"]) == 0
    out = capsys.readouterr().out
    for name in ("falcon", "lookup", "hf:generate", "written to runs/bench/falcon-lookup"):
        assert name in out
    results = read(here / "runs" / "bench" / "falcon-lookup" / "results.json")
    assert [entry["name"] for entry in results["contestants"]] == ["falcon", "hf:generate", "lookup"]
    assert results["settings"]["max_new_tokens"] == 6 and results["settings"]["limit"] == 2
    assert {run["tokens"] for run in results["runs"]} <= set(range(1, 7))
    assert (here / "runs" / "bench" / "falcon-lookup" / "report.md").exists()


def test_recipes_alone_meet_the_baselines(here, capsys):
    assert main(["bench", "lookup.yaml", *QUICK, "--json", "--out", "out"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [entry["name"] for entry in summary["contestants"]] == ["lookup", *OPPONENTS]
    assert summary["contestants"][0]["overall"]["speedup"]
    assert 0 <= summary["bench_overhead"] < 0.02


def test_repeats_are_spread_in_time_by_a_pause(here, capsys, monkeypatch):
    slept = []
    monkeypatch.setattr("specframe.bench.contest.contest.sleep", slept.append)
    assert main(["bench", "lookup.yaml", "plain", *QUICK, "--limit", "3", "--repeats", "3", "--pause", "90"]) == 0
    assert slept == [90, 90]
    began = [run["began"] for run in read(here / "runs" / "bench" / "lookup" / "results.json")["runs"]]
    assert began[0] > 1.7e9 and began == sorted(began)
    assert "its load varied within" in " ".join(capsys.readouterr().out.split())


def test_without_matplotlib_the_terminal_names_what_to_install(here, capsys, monkeypatch):
    monkeypatch.setattr("specframe_report.page.can_draw", lambda: False)
    assert main(["bench", "lookup.yaml", "plain", *QUICK, "--repeats", "1", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "pip install specframe[bench]" in err
    json.loads(out.splitlines()[-1])


def test_an_interrupted_bench_prints_how_to_go_on(here, capsys, monkeypatch):
    decode, calls = Runner._decode, []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 6:  # two warm up, so this is the end of the second round
            raise KeyboardInterrupt
        return decode(*arguments)

    monkeypatch.setattr(Runner, "_decode", interrupted)
    command = ["bench", "lookup.yaml", "hf:generate", *QUICK, "--out", "out"]
    assert main(command) == 130
    assert "out keeps 1 of 4 rounds, and the same command resumes" in capsys.readouterr().err
    assert not (here / "out" / "results.json").exists()
    monkeypatch.setattr(Runner, "_decode", decode)
    assert main(command) == 0
    assert "resuming after 1 of 4 rounds" in capsys.readouterr().err
    assert len(read(here / "out" / "results.json")["runs"]) == 8
    with monkeypatch.context() as patch:
        patch.setattr("specframe.bench.contest.contestants.Contestants.load", None)  # it is refused before
        assert main([*command, "--seed", "3"]) == 2
    assert "--fresh" in capsys.readouterr().err
    assert main([*command, "--seed", "3", "--fresh"]) == 0


def test_a_contestant_that_fails_is_named_and_the_status_is_1(here, capsys, monkeypatch):
    registry = discover()
    registry.add(Registration("contestant", "faller", "tests.bench.contenders:Faller", "falls", "contenders"))
    for place in ("specframe.recipes.discovery.discover", "specframe.bench.recipes.discover"):
        monkeypatch.setattr(place, lambda: registry)
    assert main(["bench", "lookup.yaml", "contenders/faller", "plain", *QUICK, "--out", "out"]) == 1
    assert "faller failed: ValueError: the logits are NaN at layer 2" in capsys.readouterr().err
    entry = read(here / "out" / "results.json")["contestants"][1]
    assert entry["kind"] == "contenders/faller" and "NaN" in entry["error"]


def test_another_bench_has_a_folder_of_its_own(here, capsys):
    command = ["bench", "lookup.yaml", "plain", *QUICK]
    for extra, folder in ([], "lookup"), (["--seed", "3"], "lookup-2"), (["--seed", "4"], "lookup-3"):
        assert main([*command, *extra]) == 0
        assert capsys.readouterr().out.endswith(f"written to runs/bench/{folder}\n")
    assert main([*command, "--seed", "3"]) == 0
    out, err = capsys.readouterr()
    assert out.endswith("written to runs/bench/lookup-2\n") and "resuming after 4 of 4 rounds" in err


def test_recipes_take_part_under_names(here, capsys):
    assert main(["bench", "mine=lookup.yaml", "v1.2=falcon.yaml", "sampling.temperature=0.0", *QUICK, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out.splitlines()[-1])["contestants"]
    assert [entry["name"] for entry in entries] == ["mine", "v1.2", *OPPONENTS]
    assert (here / "runs" / "bench" / "mine-v1.2" / "table.tex").exists()


def test_tables_have_the_columns_that_were_asked_for(here, capsys, monkeypatch):
    out = here / "out"
    assert main(["bench", "lookup.yaml", "plain", *QUICK, "--out", "out", "--columns", "tau,alpha"]) == 0
    assert [cell.strip() for cell in (out / "table.md").read_text().splitlines()[0].split("|")[1:-1]] == [
        *("contestant", "tau", "alpha by depth")
    ]
    monkeypatch.setattr("specframe.bench.contest.contestants.Contestants.load", None)  # nothing is decoded
    assert main(["bench", "--report", "out", "--columns", "speedup"]) == 0
    assert "vs plain" in (out / "table.tex").read_text() and "tau" not in (out / "table.tex").read_text()
    assert main(["bench", "lookup.yaml", *QUICK, "--columns", "tau,speed"]) == 2
    assert "there is no column 'speed' (columns: output, quality, tau, rate" in capsys.readouterr().err
    (out / "results.json").write_text("{}")
    assert main(["bench", "--report", "out"]) == 2 and "schema" in capsys.readouterr().err


def test_figures_are_a_table_of_pandas(here):
    pandas = pytest.importorskip("pandas")
    report = specframe.bench(
        "lookup.yaml", data="talks.jsonl", limit=2, repeats=2, overrides=["sampling.max_new_tokens=6"]
    )
    table = report.to_pandas()
    assert isinstance(table, pandas.DataFrame)
    assert list(table.columns) == ["contestant", "prompts", "figure", "value", "low", "high"]
    tau = table[(table.contestant == "lookup") & (table.prompts == "all") & (table.figure == "tau")]
    assert tau.value.item() == pytest.approx(report.summary["contestants"][0]["overall"]["tau"]["value"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lookup.yaml", "--data", "talk.jsonl"], "no prompt set named 'talk.jsonl'"),
        (["lookup.yaml", "--data", "talks.jsonl", "--limit", "0"], "limit 0 measures nothing"),
        (["lookup.yaml", "--data", "talks.jsonl", "--repeats", "0"], "repeats 0 measures nothing"),
        (["lookup.yaml", "--data", "talks.jsonl", "--pause", "-1"], "a pause of -1 seconds is out of range"),
        (["lookup.yaml", "--data", "talks.jsonl", "--pause", "1", "--engine", "ray"], "leave it out with --engine ray"),
        (["lookup.yaml", "--data", "talks.jsonl", "--out", "talks.jsonl"], "give another --out"),
        (["lookup.yaml", "--data", "talks.jsonl", "run.chat=false", "--turns", "2"], "use --turns 1"),
        (["lookup.yaml", "--data", "talks.jsonl", "--assistant", "model"], "--assistant is for"),
        (["--data", "talks.jsonl"], "give at least one recipe"),
        (["nonsense"], "neither a recipe file nor a contestant"),
        (["--compare", "a.json", "b.json"], "a.json cannot be read"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_status_2(here, arguments, words, capsys):
    assert main(["bench", *arguments]) == 2
    output = capsys.readouterr().err.strip()
    assert words in output and len(output.splitlines()) == 1


def test_two_benches_are_compared(here, capsys):
    for out in ("a", "b"):
        assert main(["bench", "lookup.yaml", "plain", *QUICK, "--out", out]) == 0
    capsys.readouterr()
    assert main(["bench", "--compare", "a/results.json", "b/results.json"]) == 0
    assert "lookup" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text",
    [
        "[" * 50_000,
        "[]",
        "{}",
        '{"schema": 1}',
        '{"schema": 1, "settings": {}, "runs": 3}',
        '{"schema": 1, "settings": 3}',
    ],
    ids=lambda text: text[:30],
)
def test_results_that_no_bench_wrote_are_one_line(tmp_path, text, capsys):
    (tmp_path / "a.json").write_text(text)
    assert main(["bench", "--compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 2
    output = capsys.readouterr().err
    assert "a.json" in output or "schema" in output
    assert len(output.splitlines()) == 1
