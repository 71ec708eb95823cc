"""The measurements of a server under load run, small, and their figures are put together as they should be."""

import argparse

import pytest

from tests.repo.repository import ROOT

pytestmark = pytest.mark.slow

SMALL = ["target.model=zoo://talk-7m", "target.dtype=float32", "target.fallback=null"]


@pytest.mark.allow_hosts(["127.0.0.1"])
def test_texts_under_load_are_those_of_lone_runs(analysis, monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    options = argparse.Namespace(
        recipe=ROOT / "recipes" / "suffix-recycling.yaml", overrides=SMALL, requests=6, tokens=6, temperature=0.8
    )
    found = analysis("traffic").texts(options)
    assert found["requests"] == 6 and found["failed"] == 0 and found["different"] == 0
    assert found["memory_mb"] > 0 and found["tokens_per_cpu_second"] > 0


def test_prompts_have_many_lengths(analysis, tmp_path):
    sizes = [len(prompt) for prompt in analysis("load").read_prompts(analysis("traffic").mixed(tmp_path, 60))]
    assert len(sizes) == 60 and len(set(sizes)) > 20 and max(sizes) == sizes[25] > 10 * sizes[0]


def test_of_rounds_the_median_counts(analysis):
    rounds = analysis("traffic").Rounds(["a", "b"])
    for name, values in (("a", (1.0, 9.0, 2.0)), ("b", (4.0, 3.0, 5.0))):
        for value in values:
            figures = {"tokens_per_second": value, "tokens_per_cpu_second": 2 * value, "load_average": value}
            rounds.add(name, figures)
    found = rounds.summary()
    assert found["load"] == [1.0, 9.0]
    assert found["tokens_per_second"] == {"a": 2.0, "b": 4.0, "rounds": {"a": [1.0, 9.0, 2.0], "b": [4.0, 3.0, 5.0]}}
    assert found["tokens_per_cpu_second"]["b"] == 8.0


def test_a_table_has_the_figures_of_every_load(analysis):
    figures = {"tokens_per_second": 5, "load_average": 0.5, "tokens": 9}
    times = {"median": 1.0, "p95": 2.0}
    found = analysis("served").summary_of(figures | {"first_token_ms": times, "per_token_ms": times})
    assert found["tokens_per_second"] == 5.0 and found["first_token_ms_p95"] == 2.0 == 2 * found["per_token_ms_median"]


def test_requests_grow_with_the_clients(analysis):
    options = argparse.Namespace(requests=10, each=2)
    assert [analysis("traffic").asked(clients, options) for clients in (1, 8)] == [10, 16]


def test_pipelines_are_compared_by_their_sessions_in_one_process(analysis, tmp_path):
    options = argparse.Namespace(
        recipe=ROOT / "recipes" / "small" / "eagle.yaml", overrides=[], requests=2, each=1, tokens=6, temperature=0.0
    )
    options.concurrency, options.rounds, options.depth, options.costs = [1, 2], 2, 2, tmp_path
    found = analysis("traffic").competing(options)
    for rows in ("1", "2"):
        speeds = found[rows]["tokens_per_second"]
        assert speeds.keys() == {"none", "goodput", "competing", "rounds"}
        assert all(len(each) == 2 and min(each) > 0 for each in speeds["rounds"].values())
