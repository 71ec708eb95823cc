"""The summary's figures are those of the Metrics page, recomputed here the slow way."""

import json
from statistics import median

import pytest

from specframe.kernel.errors import InputError
from specframe_report.format import format_output
from specframe_report.page import write_report
from specframe_report.summary import _notes, summarise
from specframe_report.tables import print_table
from tests.bench.synthetic import World, contestant, results, run


@pytest.fixture(scope="module")
def bench():
    return World(6).bench(3, hiccups=0)


def figures(summary, name, part="overall"):
    return next(entry for entry in summary["contestants"] if entry["name"] == name)[part]


def printed(summary, capsys):
    print_table(summary)
    return capsys.readouterr().out


def test_acceptance_is_pooled_over_cycles(bench):
    mine = [r for r in bench["runs"] if r["contestant"] == "falcon"]
    cycles, accepted = (sum(r[key] for r in mine) for key in ("cycles", "accepted"))
    found = figures(summarise(bench), "falcon")
    assert found["tau"]["value"] == pytest.approx(1 + accepted / cycles)
    assert found["accepted_per_cycle"] == pytest.approx(accepted / cycles)
    assert sum(found["alpha"]) == pytest.approx(accepted / cycles)
    assert found["alpha"][1] == pytest.approx(found["alpha_conditional"][0] * found["alpha_conditional"][1])
    assert found["draft_efficiency"] == pytest.approx(accepted / sum(r["drafted"] for r in mine))


def test_the_speedup_is_total_time_over_total_time_with_medians_over_repeats(bench):
    ours, plain = (
        {(r["prompt"], r["repeat"]): r["seconds"] / r["tokens"] for r in bench["runs"] if r["contestant"] == name}
        for name in ("falcon", "plain")
    )
    before = after = 0.0
    for prompt in {prompt for prompt, _ in plain}:
        base = median(plain[prompt, k] for k in range(3))
        before += base
        after += base / median(plain[prompt, k] / ours[prompt, k] for k in range(3))
    found = figures(summarise(bench), "falcon")["speedup"]
    assert found["value"] == pytest.approx(before / after)
    assert found["low"] < found["value"] < found["high"]


def test_without_noise_the_speedup_is_the_truth_whatever_the_lengths():
    runs = []
    for k, (prompt, tokens) in enumerate((("a/0", 10), ("a/1", 90))):
        for repeat in range(3):
            runs.append(run("plain", prompt, repeat, 0.01 * tokens, tokens, tau=1))
            # sampled: other lengths; 2 and 4 times faster a token
            runs.append(run("falcon", prompt, repeat, 0.01 * 30 / (2 + 2 * k), 30, identical=None))
    summary = summarise(results(runs, [("a/0", "x"), ("a/1", "y")], 3, temperature=1.0))
    found = figures(summary, "falcon")
    assert found["speedup"]["value"] == pytest.approx(1.0 / (0.1 / 2 + 0.9 / 4))
    assert figures(summary, "falcon", "tasks")["x"]["speedup"]["value"] == pytest.approx(2)
    assert found["identity"] is None
    assert "speedup_hf" not in found  # it did not run
    assert any("Sampled" in note for note in summary["notes"])


def test_a_hiccup_of_the_machine_moves_nothing(bench):
    worse = json.loads(json.dumps(bench))
    one = next(r for r in worse["runs"] if r["contestant"] == "falcon" and r["repeat"] == 1)
    one["seconds"] *= 50
    before, after = (figures(summarise(b), "falcon")["speedup"]["value"] for b in (bench, worse))
    assert after == pytest.approx(before, rel=0.03)


def test_phases_overhead_and_predictions(bench):
    found = figures(summarise(bench), "falcon")
    assert sum(found["phases"].values()) == pytest.approx(1)
    assert found["overhead"] == pytest.approx(0.98 / 0.9 - 1)  # the phases less the prefill, over the forwards
    mine, plain = ([r for r in bench["runs"] if r["contestant"] == name] for name in ("falcon", "plain"))
    step = sum(r["target_seconds"] for r in plain) / sum(r["target_calls"] for r in plain)
    cycle = sum(r["target_seconds"] + r["drafter_seconds"] for r in mine) / sum(r["target_calls"] for r in mine)
    assert found["predicted"]["coral_1"] == pytest.approx(found["tau"]["value"] * step / cycle)
    assert found["predicted"]["coral_6"] is None
    bench["contestants"][2]["weights"] = {"target": 1000, "drafter": 100}
    assert figures(summarise(bench), "falcon")["predicted"]["coral_6"] == pytest.approx(found["tau"]["value"] / 1.2)


def test_what_needs_the_targets_forward_passes_is_absent_where_none_were_seen(tmp_path):
    bench = World(6).bench(2)
    bench["contestants"][2]["weights"] = {"target": 1000, "drafter": 100}
    for one in bench["runs"]:
        if one["contestant"] == "falcon":
            one |= {"target_seconds": 0.0, "target_calls": 0}
    summary = summarise(bench)
    found = figures(summary, "falcon")
    assert found["predicted"] == {"coral_1": None, "coral_6": None}
    assert found["overhead"] is None and found["steps"] is None
    write_report(bench, summary, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    rows = [" ".join(line.split()) for line in text.splitlines() if line.startswith("| falcon ")]
    assert any(row.endswith("] | - | - |") for row in rows), rows
    assert "0.00x" not in text


def test_identity_counts_prompts_by_their_worst_run():
    kinds = [(True, None), (True, 1e-6), (False, 0.4), (False, None)]
    runs = [
        run("plain", f"a/{k}", repeat, 1.0, identical=same or not repeat, gap=gap if repeat else None)
        for k, (same, gap) in enumerate(kinds)
        for repeat in range(2)
    ]
    summary = summarise(results(runs, [(f"a/{k}", "t") for k in range(4)], 2))
    found = figures(summary, "plain")["identity"]
    assert found == {
        "plain": None,
        "identical": 1,
        "ties": 1,
        "differing": ["a/2", "a/3"],
        "largest_tie": {"gap": 1e-6, "noise": 1e-5},
        "largest_gap": {"gap": 0.4, "noise": 1e-5},
    }
    assert any("DIFFERS" in note and "a/2" in note and "4.0e-01 apart" in note for note in summary["notes"])
    assert any("run `specframe certify`" in note for note in summary["notes"])
    assert any("plain differs from the reference at near ties" in n and "by 1.0e-05" in n for n in summary["notes"])


def test_texts_are_compared_with_plain_decoding_first():
    """A near tie with `generate` that plain decoding has, too, is no difference of the recipe."""
    same = [("plain", True), ("falcon", True), ("eagle", False)]
    runs = [run(name, "a/0", 0, 1.0, gap=1e-6) | {"as_plain": each} for name, each in same]
    summary = summarise(results(runs, [("a/0", "t")], 1))
    shown = {
        name: format_output(entry) for name, _ in same for entry in summary["contestants"] if entry["name"] == name
    }
    assert shown["falcon"] == "as plain on 1 of 1, identical, near ties on 1 of 1"
    assert shown["eagle"] == "as plain on 0 of 1, identical, near ties on 1 of 1"


def test_contestants_that_part_at_the_same_near_ties_share_a_sentence():
    identity = {"differing": [], "ties": 1, "largest_tie": {"gap": 1e-6, "noise": None}}
    entries = [{"name": name, "lossless": True, "overall": {"prompts": 4, "identity": identity}} for name in "abc"]
    summary = {"contestants": entries, "prompts": 4, "repeats": 2, "workers": [], "settings": {}, "skipped": {}}
    assert [note for note in _notes(summary) if "near ties" in note] == [
        "a, b and c differ from the reference at near ties, which rounding decides, on 1 prompt: the two logits are "
        "at most 1.0e-06 apart."
    ]


def test_failed_and_lossy_contestants_are_reported(bench, capsys):
    bench = bench | {
        "contestants": [
            *bench["contestants"][:2],
            contestant("falcon", lossless=False),
            contestant("eagle", error="no weights"),
        ],
        "runs": [*bench["runs"], run("eagle", "set0/0", 0, 1.0)],  # it broke after one run
        "skipped": {"prompts": 2, "turns": 0},
        "unknown": {"to": "this version"},
    }
    summary = summarise(bench)
    assert figures(summary, "eagle") is None
    text = printed(summary, capsys)
    assert "LOSSY" in text
    assert "eagle was left out: no weights" in text
    assert "left out: 2" in text
    json.dumps(summary, allow_nan=False)


def test_what_one_repeat_cannot_show_is_left_out():
    summary = summarise(World(5).bench(1))
    found = figures(summary, "falcon")
    assert found["speedup"]["low"] is None and found["tokens_per_second"]["high"] is None
    assert found["tau"]["low"] < found["tau"]["high"]
    assert any("One repeat" in note for note in summary["notes"])


def test_missing_runs_leave_the_rest_comparable(bench):
    bench = bench | {"runs": [r for r in bench["runs"] if (r["contestant"], r["prompt"]) != ("falcon", "set0/0")]}
    summary = summarise(bench)
    assert figures(summary, "falcon")["prompts"] == 5
    assert figures(summary, "falcon")["speedup"]["value"] > 1
    assert any("5 of the 6 prompts" in note for note in summary["notes"])


def test_conversation_turns_are_cells_of_their_own():
    runs = [
        run(name, "a/0", repeat, seconds * (1 + turn), 64, turn=turn)
        for name, seconds in (("plain", 2.0), ("falcon", 1.0))
        for repeat in range(2)
        for turn in range(2)
    ]
    found = figures(summarise(results(runs, [("a/0", "t")], 2)), "falcon")
    assert found["speedup"]["value"] == pytest.approx(2)
    assert found["tokens"] == 4 * 64
    assert found["tokens_per_second"]["value"] == pytest.approx(2 * 64 / 3)


def test_runs_too_odd_to_be_timed_are_left_out(bench):
    odd = json.loads(json.dumps(bench))
    for entry in odd["runs"]:
        if entry["prompt"] == "set0/0" and entry["contestant"] == "falcon":
            entry |= {"seconds": 0.0, "first_token_seconds": None, "token_seconds": [None, None], "cycles": 0}
    found = figures(summarise(odd), "falcon")
    assert found["speedup"]["value"] > 1 and found["tau"]["value"] > 1


def test_no_recipes_and_another_target(bench, capsys):
    names = ("plain", "hf:generate")
    only = bench | {
        "runs": [r for r in bench["runs"] if r["contestant"] in names],
        "contestants": [contestant(names[0]), contestant(names[1], target="another")],
    }
    summary = summarise(only)
    assert "speedup" not in figures(summary, "hf:generate")  # plain ran on another target
    assert "hf:generate" in printed(summary, capsys)


def test_every_target_has_baselines_of_its_own():
    runs, contestants = [], []
    for factor, target in ((1.0, "small"), (4.0, "large")):
        for kind, faster in (("plain", 1), ("hf:generate", 0.5), ("recipe", 2)):
            name = f"{kind} of {target}"
            contestants.append(contestant(name, kind=kind, target=target))
            runs += [run(name, f"a/{k}", repeat, factor / faster) for k in range(2) for repeat in range(2)]
    bench = results(runs, [("a/0", "t"), ("a/1", "t")], 2) | {"contestants": contestants}
    summary = summarise(bench)
    for target in ("small", "large"):
        found = figures(summary, f"recipe of {target}")
        assert found["speedup"]["value"] == pytest.approx(2)
        assert found["speedup_hf"]["value"] == pytest.approx(4)
        assert figures(summary, f"plain of {target}")["speedup_hf"]["value"] == pytest.approx(2)


def test_where_rounds_ran_is_reported(bench):
    here = {"engine": "ray", "processor": "A processor", "cores": 2, "threads": 1, "accelerator": None, "rounds": 9}
    notes = [summarise(bench | {"workers": workers})["notes"] for workers in ([here], [here, here | {"cores": 4}])]
    assert any("in parallel" in note for note in notes[0])
    assert any("different machines" in note for note in notes[1])


def test_a_recipe_called_plain_is_no_baseline(bench):
    named = bench | {"contestants": [contestant("plain", kind="recipe"), *bench["contestants"][1:]]}
    assert "speedup" not in figures(summarise(named), "falcon")


def test_another_schema_is_refused(bench):
    with pytest.raises(InputError, match="schema 2"):
        summarise(bench | {"schema": 2})


def test_a_piped_table_is_not_cut(bench, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = printed(summarise(bench), capsys).splitlines()
    speeds, output = [line for line in lines if line.lstrip().startswith("contestant") and " (" not in line]
    assert all(name in speeds for name in ("tau", "tokens/s", "vs plain", "vs HF", "overhead"))
    assert all(name in output for name in ("output", "alpha by depth", "MiB"))
    monkeypatch.setenv("COLUMNS", "60")
    assert max(map(len, printed(summarise(bench), capsys).splitlines())) <= 60


def test_a_contestant_is_a_line_at_100_columns(bench, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    lines = printed(summarise(bench), capsys).splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("contestant"))
    names = [entry["name"] for entry in bench["contestants"]]
    assert [line.split()[0] for line in lines[start + 1 : start + 1 + len(names)]] == names
    assert all("[" in line for line in lines[start + 1 : start + 1 + len(names)])


def test_an_interval_of_tau_stays_within_what_is_possible():
    taus = {"a/0": 1, "a/1": 4, "a/2": 4}
    runs = [run(name, prompt, 0, 1.0, 40, tau=t) for name in ("plain", "falcon") for prompt, t in taus.items()]
    found = figures(summarise(results(runs, [(prompt, "code") for prompt in taus], 1)), "falcon")
    assert found["tau"]["low"] >= 1 and found["tau"]["high"] <= 1 + len(found["alpha"])


def test_time_that_other_processes_took_is_reported(bench):
    assert summarise(bench)["waited"] is None
    runs = [each | {"waited_seconds": 0.25 * each["seconds"]} for each in bench["runs"]]
    found = summarise(bench | {"runs": runs})
    assert found["waited"] == pytest.approx(0.25)
    assert (
        "Other processes used the processor in 25% of the time: speedups exclude it, tokens/s do not." in found["notes"]
    )
    before, after = (figures(each, "falcon") for each in (summarise(bench), found))
    assert after["speedup"] == pytest.approx(before["speedup"])
    assert after["tokens_per_second"] == before["tokens_per_second"]
