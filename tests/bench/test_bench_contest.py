import json
import time
from functools import cache

import pytest
import torch

from specframe.bench.contest import generation, outcome, own, timing
from specframe.bench.contest.contest import Contest, InProcess
from specframe.bench.contest.contestants import Selection, plan_contestants
from specframe.bench.contest.datasets import read_sets
from specframe.bench.contest.settings import ContestSettings
from specframe.bench.journal import Journal
from specframe.bench.results import collect, describe_bench
from specframe.decoding import clock
from specframe.decoding.baseline import generate_with_transformers
from specframe.decoding.requests import as_prompts
from specframe.kernel.errors import CompositionError, InputError, RecipeError
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registration
from specframe.testing import admitted
from specframe_report.summary import summarise
from tests.bench.conftest import make_folder, write_recipe


def registry(*names):
    known = discover()
    for name in names:
        known.add(
            Registration("contestant", name, f"tests.bench.contenders:{name.title()}", "a contender", "contenders")
        )
    return known


def plan(*words, overrides=(), assistant=None, variations=()):
    known = registry("honest", "deviant", "faller", "outsider", "sulker", "hoarder")
    return plan_contestants(Selection(words, tuple(overrides), assistant, variations=tuple(variations)), known)


def hold(folder, *words, overrides=(), assistant=None, variations=(), out="out", listener=lambda _: None, **settings):
    """The results and the contest of a bench with these contestants."""
    planned = plan(*words, overrides=overrides, assistant=assistant, variations=variations)
    chosen, amount = read_sets(["talks.jsonl"]), ContestSettings(**{"repeats": 1} | settings)
    (folder / out).mkdir(exist_ok=True)
    journal = Journal.open(folder / out, describe_bench(planned, amount, ["talks.jsonl"], chosen))
    planned.load(amount.batch)
    contest = Contest(planned, amount)
    contest.choose(chosen)
    contest.run(journal, InProcess(contest.runner).run, listener)
    return collect(contest, journal, ["talks.jsonl"]), contest


def runs_of(results, name):
    return [run for run in results["runs"] if run["contestant"] == name]


@pytest.fixture(scope="module")
def all_contestants(model_folder, tmp_path_factory):
    words = ["falcon.yaml", "lookup.yaml", "plain", "hf:generate", "hf:prompt-lookup", "hf:assisted", "honest"]
    folder = make_folder(tmp_path_factory.mktemp("all"), model_folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for module in (time, timing, own, generation, clock):  # what else the machine does is not in what adds up
            patch.setattr(module, "perf_counter", time.process_time)
        patch.setattr(timing.Accounts, "read", lambda: None)
        patch.setattr(own, "span_seconds", cache(timing.span_seconds.__wrapped__))
        patch.setattr(outcome, "arrival_seconds", cache(timing.arrival_seconds.__wrapped__))
        return hold(folder, *words, repeats=2, assistant=str(model_folder))


def test_every_contestant_gives_the_tokens_of_generate(all_contestants):
    results, contest = all_contestants
    names = [entry["name"] for entry in results["contestants"]]
    assert names == ["falcon", "lookup", "plain", "hf:generate", "hf:prompt-lookup", "hf:assisted", "honest"]
    assert len(results["runs"]) == 7 * 4 * 2
    assert all(run["identical"] is True for run in results["runs"])
    assert not any(entry["error"] for entry in results["contestants"])
    model = contest.contestants.entrants[0].contestant._pipeline.parts.target.model
    question = contest.questions[1]
    row = contest.runner.encode(contest.contestants.entrants[0].target, question, [])
    theirs = generate_with_transformers(model, [row], contest.contestants.sampling, frozenset({1}))[0]
    assert {run["tokens"] for run in results["runs"] if run["prompt"] == question.id} == {len(theirs)}


def test_what_is_measured_adds_up(all_contestants):
    results, _ = all_contestants
    for run in results["runs"]:
        assert 0 < run["first_token_seconds"] <= run["seconds"]
        assert run["token_seconds"][0] is None or 0 < run["token_seconds"][0] <= run["token_seconds"][1]
        assert run["peak_memory_bytes"] is None or run["peak_memory_bytes"] > 2**20
    for run in runs_of(results, "falcon") + runs_of(results, "plain"):
        assert sum(run["phases"].values()) == pytest.approx(run["seconds"], rel=0.5)
        assert sum(run["phases"].values()) <= run["seconds"]
        assert run["target_calls"] == run["cycles"]
        assert run["target_seconds"] <= run["phases"]["score"]
        assert run["tokens"] <= 1 + run["cycles"] + run["accepted"]
    assert all(run["accepted"] == run["drafted"] == 0 for run in runs_of(results, "plain"))
    assert 0 < results["bench_overhead"] < 0.02


def test_orders_are_fair_within_every_round(all_contestants):
    results, _ = all_contestants
    rounds = {}
    for run in results["runs"]:
        rounds.setdefault((run["repeat"], run["prompt"]), []).append(run["order"])
    assert all(sorted(orders) == list(range(7)) for orders in rounds.values())
    assert len({tuple(orders) for orders in rounds.values()}) == 1  # runs are listed in their order
    firsts = {run["contestant"] for run in results["runs"] if run["order"] == 0}
    assert len(firsts) == 7


def test_results_record_how_they_were_made(all_contestants):
    results, _ = all_contestants
    assert results["schema"] == 1
    assert results["settings"]["max_new_tokens"] == 8 and results["settings"]["sets"] == ["talks.jsonl"]
    assert {"torch", "transformers", "specframe-falcon"} <= results["provenance"]["versions"].keys()
    assert results["provenance"]["hardware"]["cores"]
    falcon, _, _, generate = results["contestants"][:4]
    assert falcon["kind"] == "recipe" and falcon["recipe"] == "falcon.yaml" and falcon["lossless"] is True
    assert falcon["resolved"]["drafter"]["use"] == "falcon"
    assert generate["kind"] == "hf:generate" and generate["recipe"] is generate["resolved"] is None
    assert falcon["target"] == generate["target"]
    first = results["prompts"][0]
    assert (first["id"], first["set"], first["task"], len(first["tokens"])) == ("talks/0", "talks", "talk", 1)


def test_one_target_serves_all_and_keeps_their_features_apart(here):
    planned = plan("falcon.yaml", "lookup.yaml", "plain", "hf:generate")
    planned.load(1)
    falcon, lookup, plain, generate = (entrant.contestant for entrant in planned.entrants)
    targets = [each._pipeline.parts.target for each in (falcon, lookup, plain)]
    assert len({id(target) for target in targets}) == 3
    assert {id(target.model) for target in targets} == {id(generate._model)}
    prompts = as_prompts([[5, 6, 7]])
    assert [set(admitted(target, prompts)[1].features) for target in targets] == [{"last"}, set(), set()]


def test_second_turns_follow_each_contestants_own_answer(here):
    results, contest = hold(here, "lookup.yaml", "deviant", turns=2)
    assert {run["turn"] for run in results["runs"] if run["prompt"] == "talks/0"} == {0, 1}
    assert {run["turn"] for run in results["runs"] if run["prompt"] == "talks/1"} == {0}  # it has but one
    assert all(run["identical"] for run in runs_of(results, "lookup"))
    key = contest.contestants.entrants[0].target
    question = contest.questions[0]
    row = contest.runner.encode(key, question, [])
    answer = contest.runner.coders[key].generate([row]).texts[0]
    text = f"{question.turns[0]}{answer}{question.turns[1]}"  # the template joins them
    whole = contest.runner.coders[key].encode(text)
    second = next(run for run in runs_of(results, "lookup") if run["prompt"] == "talks/0" and run["turn"] == 1)
    assert contest.runner.encode(key, question, [answer]) == whole
    assert second["prompt_tokens"] == len(whole)
    assert [len(prompt["tokens"]) for prompt in results["prompts"]] == [2, 1, 2, 1]


def test_other_tokens_than_the_reference_s_are_marked(here):
    results, _ = hold(here, "lookup.yaml", "plain", "deviant")
    assert [{run["as_plain"] for run in runs_of(results, name)} for name in ("lookup", "deviant")] == [{True}, {False}]
    assert all(run["identical"] is False and run["gap"] > 1e-4 for run in runs_of(results, "deviant"))
    assert all(run["identical"] is True and run["gap"] is None for run in runs_of(results, "lookup"))


@pytest.mark.parametrize(
    ("name", "error", "count"),
    [
        ("faller", "ValueError: the logits are NaN at layer 2", 1),
        ("outsider", "vocabulary", 0),
        ("sulker", "ZeroDivisionError", 0),
        ("hoarder", "not JSON serializable", 0),
    ],
)
def test_who_fails_is_left_out(here, name, error, count):
    steps = []
    results, _ = hold(here, "lookup.yaml", name, listener=steps.append)
    entry = next(entry for entry in results["contestants"] if entry["name"] == name)
    assert error in entry["error"]
    assert len(runs_of(results, name)) == count
    assert len(runs_of(results, "lookup")) == 4
    again, _ = hold(here, "lookup.yaml", name)
    assert again["runs"] == results["runs"]
    assert [e["error"] for e in again["contestants"]] == [e["error"] for e in results["contestants"]]


def test_when_all_fail_the_bench_ends(here):
    code = "from specframe.components.drafters.lookup import Lookup\nclass Bad(Lookup):\n"
    (here / "bad.py").write_text(f"{code}    def propose(self, *given):\n        raise ValueError('no idea')\n")
    (here / "bad.yaml").write_text("extends: lookup.yaml\ndrafter: {use: './bad.py:Bad'}\n")
    results, contest = hold(here, "bad.yaml")
    assert results["runs"] == [] and contest.alive == []
    assert results["contestants"][0]["error"] == "ValueError: no idea"
    assert summarise(results)["contestants"][0]["error"] == "ValueError: no idea"


def test_without_a_reference_the_bench_goes_on(here, monkeypatch, caplog):
    def failing(*arguments, grammar):
        raise NotImplementedError("no cache")

    monkeypatch.setattr("specframe.bench.contest.outcome.generate_with_transformers", failing)
    results, _ = hold(here, "lookup.yaml")
    assert {run["identical"] for run in results["runs"]} == {None}
    assert len(results["runs"]) == 4 and caplog.text.count("NotImplementedError: no cache") == 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_batches_decode_together_and_are_counted_by_row(here, temperature):
    overrides = [f"sampling.temperature={temperature}"]
    alone, _ = hold(here, "falcon.yaml", "lookup.yaml", "hf:generate", overrides=overrides)
    together, _ = hold(here, "falcon.yaml", "lookup.yaml", "hf:generate", overrides=overrides, batch=3, out="batch")
    assert len(together["runs"]) == len(alone["runs"]) == 12
    if temperature:
        assert {run["identical"] for run in together["runs"]} == {None}
        return
    assert all(run["identical"] for run in together["runs"])
    for name in ("falcon", "lookup"):
        counts = ("tokens", "cycles", "accepted", "drafted", "reached", "possible")
        figures = [{run["prompt"]: [run[key] for key in counts] for run in runs_of(r, name)} for r in (alone, together)]
        assert figures[0] == figures[1]
    rows = [run for run in runs_of(together, "falcon") if run["prompt"] != "talks/3"]
    assert len({round(run["seconds"] / run["tokens"], 12) for run in rows}) == 1


def test_an_interrupted_bench_resumes(here):
    whole, _ = hold(here, "lookup.yaml", "plain", repeats=2, out="whole")
    steps = []

    def interrupt(step):
        steps.append(step)
        if len(steps) == 7:  # in the middle of the fourth round
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hold(here, "lookup.yaml", "plain", repeats=2, listener=interrupt)
    later = []
    resumed, _ = hold(here, "lookup.yaml", "plain", repeats=2, listener=later.append)
    assert len(later) == 16 - 6

    def shape(results):
        return [(run["contestant"], run["prompt"], run["repeat"], run["order"]) for run in results["runs"]]

    assert shape(resumed) == shape(whole)


def test_another_bench_does_not_resume_it(here):
    hold(here, "lookup.yaml")
    for change in ({"repeats": 2}, {"overrides": ["sampling.max_new_tokens=7"]}, {"seed": 5}):
        with pytest.raises(InputError, match="--fresh"):
            hold(here, "lookup.yaml", **change)
    with pytest.raises(InputError, match="--fresh"):
        hold(here, "lookup.yaml", "plain")


def test_prompts_that_are_too_long_are_left_out_and_counted(here):
    # 12, 12, 13 and 12 tokens, the template's one included, in a context of 128.
    _, contest = hold(here, "lookup.yaml", overrides=["sampling.max_new_tokens=116"])
    assert [question.id for question in contest.questions] == ["talks/0", "talks/1", "talks/3"]
    assert contest.skipped == 1
    with pytest.raises(InputError, match="none of the 4 prompts"):
        hold(here, "lookup.yaml", overrides=["sampling.max_new_tokens=117"], out="none")


def test_second_turns_that_are_too_long_are_left_out_and_counted(here):
    results, _ = hold(here, "lookup.yaml", overrides=["sampling.max_new_tokens=60"], turns=2)
    assert {run["turn"] for run in results["runs"]} == {0}
    assert results["skipped"] == {"prompts": 0, "turns": 2}


def test_a_sample_is_spread_over_tasks_and_keeps_its_order(here):
    planned = plan("lookup.yaml")
    planned.load(1)
    contest = Contest(planned, ContestSettings(limit=2, seed=4))
    contest.choose(read_sets(["talks.jsonl"]))
    assert {question.task for question in contest.questions} == {"talk", "code"}
    assert [q.id for q in contest.questions] == sorted(q.id for q in contest.questions)


def test_a_count_is_of_prompts_that_fit(here):
    (here / "long.jsonl").write_text('{"prompt": "a"}\n' + json.dumps({"prompt": "a b " * 80}) + '\n{"prompt": "b"}\n')
    planned = plan("lookup.yaml")
    planned.load(1)
    contest = Contest(planned, ContestSettings())
    contest.choose(read_sets(["talks.jsonl=1", "long.jsonl=2"]))
    assert [question.id for question in contest.questions][1:] == ["long/0", "long/2"] and len(contest.questions) == 3


def test_lossy_verifiers_are_labelled(here, model_folder):
    code = "from specframe.plugin import Verdict\nfrom specframe.components.verifiers.match import Match\n"
    (here / "judge.py").write_text(f"{code}class Judge(Match):\n    lossless = False\n")
    write_recipe(here / "lossy.yaml", model_folder, "drafter: {use: lookup}", verifier="./judge.py:Judge")
    results, _ = hold(here, "lossy.yaml")
    assert results["contestants"][0]["lossless"] is False


def test_everything_wrong_is_reported_before_anything_loads(here, monkeypatch):
    monkeypatch.setattr("specframe.components.targets.loading.load", lambda *a, **k: pytest.fail("a model was loaded"))
    (here / "bad.yaml").write_text("extends: falcon.yaml\ntree: null\nverifier: {use: mtach}\n")
    with pytest.raises(RecipeError) as caught:
        plan("falcon.yaml", "bad.yaml", "gone.yaml", "hf:genrate", overrides=["drafter.blok=2"])
    message = str(caught.value)
    for words in ("did you mean 'match'", "gone.yaml: no such recipe", "did you mean 'hf:generate'", "'block'"):
        assert words in message


def test_a_contestants_kind_does_not_depend_on_which_name_was_given(here):
    planned = plan("lookup.yaml", "specframe/plain", "specframe/generate", "contenders/honest")
    assert [entrant.kind for entrant in planned.entrants] == ["recipe", "plain", "hf:generate", "contenders/honest"]


@pytest.mark.parametrize(
    ("words", "overrides", "message"),
    [
        (["hf:generate"], [], "at least one recipe"),
        (["lookup.yaml", "hf:assisted"], [], "--assistant MODEL"),
        (["lookup.yaml", "other.yaml"], [], "sampling.temperature=0.0"),
        (["lookup.yaml"], ["sampling.stop=[x]"], "stop"),
    ],
)
def test_what_cannot_be_compared_is_refused(here, words, overrides, message):
    (here / "other.yaml").write_text("extends: lookup.yaml\nsampling: {temperature: 0.5}\n")
    with pytest.raises((InputError, RecipeError), match=message):
        plan(*words, overrides=overrides)


def test_assisted_generation_decodes_alone(here, model_folder):
    with pytest.raises(InputError, match="--batch 1"):
        plan("lookup.yaml", "hf:prompt-lookup").load(2)


def test_targets_outside_transformers_have_no_generate(here):
    (here / "table.yaml").write_text("target: {use: table}\ndrafter: {use: lookup}\nverifier: {use: match}\n")
    with pytest.raises(CompositionError, match="transformers model"):
        plan("table.yaml", "hf:generate").load(1)


def test_several_targets_each_have_their_own_baseline(here, model_folder):
    write_recipe(here / "other.yaml", model_folder, "drafter: {use: lookup}")
    text = (here / "other.yaml").read_text()
    (here / "other.yaml").write_text(text.replace("dtype: float64", "dtype: float32"))
    results, contest = hold(here, "lookup.yaml", "other.yaml", "hf:generate")
    kinds = [(entry["kind"], entry["name"]) for entry in results["contestants"]]
    assert [kind for kind, _ in kinds] == ["recipe", "recipe", "hf:generate", "hf:generate"]
    assert len({name for _, name in kinds}) == 4
    dtypes = {contest.contestants.targets[e.target].dtype for e in contest.contestants.entrants}
    assert dtypes == {torch.float32, torch.float64}
    assert all(entry["overall"]["pairs"].keys() == {"speedup_hf"} for entry in summarise(results)["contestants"])
