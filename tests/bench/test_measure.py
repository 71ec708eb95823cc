"""The figures of `specframe run`: a contest of three over the recipe's prompts."""

import pytest
import torch

import specframe
from specframe.bench import measure as measuring
from specframe.bench.measure import Spread, measure, race, ratio
from specframe.kernel.contestant import Outcome


@pytest.fixture
def pipeline(recipe):
    return specframe.load(recipe, overrides=["run.batch=2"])


PROMPTS = ["hello there", "good morning", "a b a b a b"]


class Recorder:
    lossless = True

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def decode(self, rows, seed):
        self.calls.append((self.name, seed))
        return Outcome([[1]] * len(rows), [[0.0]] * len(rows))


def test_each_contestant_takes_a_turn_and_the_warm_up_does_not_count():
    calls = []
    found = race([Recorder(name, calls) for name in "abc"], [[1], [2]], 2, 7, torch.device("cpu"))
    assert {name: len(timed) for name, timed in found.items()} == {"a": 2, "b": 2, "c": 2}
    assert {seed for _, seed in calls} == {7}
    turns = [[name for name, _ in calls[start : start + 3]] for start in (0, 3, 6)]
    assert all(sorted(turn) == ["a", "b", "c"] for turn in turns)
    assert {turn[0] for turn in turns} == {"a", "b", "c"}, "who starts rotates"


def test_a_ratio_is_taken_turn_by_turn():
    assert ratio({"a": [4.0, 9.0, 8.0], "b": [2.0, 3.0, 1.0]}, "a", "b") == Spread(3.0, 2.0, 8.0)


def test_figures_are_those_of_the_composition(pipeline):
    found = measure(pipeline, PROMPTS, 2)
    alone = pipeline.generate(PROMPTS)
    assert (found.acceptance.cycles, found.acceptance.reached) == (alone.acceptance.cycles, alone.acceptance.reached)
    assert found.clock.calls["target"] == 2 * alone.clock.calls["target"], "two turns, the warm-up left out"
    assert found.identical and not found.divergences
    assert found.speedup_hf is not None and found.plain_vs_hf is not None


def test_all_rows_are_compared_with_generate(pipeline, monkeypatch):
    seen = []

    def find(model, rows, ours, theirs, settings, grammar):
        assert settings == pipeline.sampling and grammar is None
        seen.append((rows, [list(row) for row in ours], [list(row) for row in theirs]))
        return []

    monkeypatch.setattr(measuring, "find_divergences", find)
    measure(pipeline, PROMPTS, 1)
    (rows, ours, theirs) = seen[0]
    assert rows == [pipeline.encode(prompt) for prompt in PROMPTS]
    assert ours == theirs == pipeline.generate(PROMPTS).tokens, "batches of two come back in order"


def test_sampled_text_is_compared_with_nothing(recipe):
    found = measure(specframe.load(recipe, overrides=["sampling.temperature=1"]), PROMPTS[:1], 1)
    assert found.identical is None and found.speedup.median > 0
