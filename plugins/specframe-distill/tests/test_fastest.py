"""The way that `distill-data` answers where the recipe leaves it open."""

from __future__ import annotations

import pytest

import specframe
from specframe.cli.main import main
from specframe_distill.decoding import decoding_rate, fastest

PROMPTS = [[1, 2, 3]] * 40


def compose(**parts):
    return specframe.compose(**({"target": {"use": "table"}, "drafter": "lookup"} | parts))


@pytest.fixture
def pipeline():
    return compose()


def rates(by_way):
    """A rate by (rows, whether anything is drafted), which also notes what was tried."""
    tried = []

    def rate(pipeline, prompts):
        way = (pipeline.run.batch, pipeline.parts.nodes > 1)
        assert len(prompts) == min(pipeline.run.batch, len(PROMPTS))
        tried.append(way)
        return by_way[way]

    return rate, tried


def test_more_conversations_are_tried_until_they_pay_no_more(pipeline):
    rate, tried = rates({(8, False): 10, (16, False): 20, (32, False): 20.5, (16, True): 15})
    best = fastest(pipeline, PROMPTS, rate)[0]
    assert tried == [(8, False), (16, False), (32, False), (16, True)]
    assert (best.pipeline.run.batch, best.pipeline.parts.nodes, best.rate) == (16, 1, 20)
    assert "16 conversations side by side, without drafts" in str(best)


def test_drafts_stay_where_they_are_faster(pipeline):
    rate, _ = rates({(8, False): 10, (16, False): 9, (8, True): 15})
    best = fastest(pipeline, PROMPTS, rate)[0]
    assert best.pipeline.run.batch == 8 and best.pipeline.parts.nodes > 1


def test_drafts_stay_where_the_text_depends_on_them():
    pipeline = compose(verifier="recursive")
    rate, tried = rates({(8, True): 10, (16, True): 20, (32, True): 30})
    assert fastest(pipeline, PROMPTS, rate)[0].pipeline.run.batch == 32
    assert all(drafts for _, drafts in tried)


def test_what_learns_is_not_run_for_a_trial():
    pipeline = compose(drafter="recycling")
    rate, tried = rates({(8, False): 10, (16, False): 9})
    assert len(fastest(pipeline, PROMPTS, rate)) == 1 and tried == [(8, False), (16, False)]


def test_a_rate_is_that_of_the_tokens_after_the_first(pipeline):
    assert decoding_rate(pipeline, PROMPTS[:3]) > 0


def test_answers_are_the_same_whatever_is_fastest(here, answers, monkeypatch, capsys):
    """The command's own choice and one conversation at a time write the same answers."""
    monkeypatch.setattr("specframe_distill.command.MANY", 2)
    command = ["distill-data", "recipe.yaml", "--prompts", "prompts.jsonl", "sampling.temperature=1.0"]
    assert main([*command, "--out", "chosen"]) == 0
    assert "conversations side by side" in capsys.readouterr().err
    assert main([*command, "--out", "one", "run.batch=1"]) == 0
    assert "side by side" not in capsys.readouterr().err
    chosen, one = (
        {line: answer["messages"] for line, answer in answers(folder).items()} for folder in ("chosen", "one")
    )
    assert chosen == one
