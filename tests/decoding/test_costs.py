"""Costs of forward passes on this machine: timed once, kept, or read from a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import specframe
from specframe.components.drafters.fused import Fused
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.drafters.suffix import Suffix
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.components.trees.dynamic import Dynamic
from specframe.components.verifiers.recursive import Recursive
from specframe.decoding import costs as timing
from specframe.decoding.compose import compose
from specframe.decoding.costs import measured_costs, read_costs
from specframe.kernel.costs import Costs
from specframe.kernel.errors import InputError, RecipeError
from specframe.kernel.types import Cycle, Verdict

STEEP = {"cycle_seconds": {"1": 1.0, "2": 2.0, "9": 9.0}, "draft_seconds": 0.1}
FLAT = {"cycle_seconds": {"1": 1.0, "9": 1.0}, "draft_seconds": 0.0}
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [5, 6, 5, 6, 5]]


def written(path: Path, data: object) -> str:
    path.write_text(json.dumps(data))
    return str(path)


def pipeline(**run: object) -> specframe.Pipeline:
    return compose(
        target=HFTarget.from_model(tiny_llama(11, 0)),
        drafter={"use": "suffix", "least": 0.01},
        sampling={"max_new_tokens": 24, "ignore_eos": True},
        run=run,
    )


@pytest.fixture
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(timing.psutil, "cpu_percent", lambda seconds: 0.0)  # other tests may run meanwhile
    for name in ("SETTLING", "LONGER_SETTLING"):
        monkeypatch.setattr(timing, name, 0.0)  # the times need not be steady, only kept
    return tmp_path / "cache" / "costs"


def test_they_are_timed_once_for_a_machine(cache, monkeypatch):
    found = pipeline(costs="measured").parts.costs
    assert found is not None and [size for size, _ in found.passes] == list(timing.SIZES[:-1]), "of a short context"
    (note,) = cache.glob("*.json")
    assert read_costs(note) == found

    def again(*_):
        raise AssertionError("timed again")

    monkeypatch.setattr(timing, "time_forwards", again)
    assert pipeline(costs="measured").parts.costs == found


def test_with_another_drafter_the_target_is_not_timed_again(cache, monkeypatch):
    found = pipeline(costs="measured").parts.costs
    monkeypatch.setattr(timing, "time_forwards", None)
    other = compose(
        target=HFTarget.from_model(tiny_llama(11, 0)),
        drafter=OwnLayers(exit=1),
        tree=Dynamic(depth=2, width=2, nodes=3),
        run={"costs": "measured"},
    ).parts.costs
    assert found is not None and other is not None
    assert other.passes == found.passes and other.draft > 0
    assert len(list(cache.glob("*.json"))) == 2


def test_another_number_of_threads_has_other_costs(cache):
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            pipeline(costs="measured")
    finally:
        torch.set_num_threads(threads)
    assert len(list(cache.glob("*.json"))) == len(list(cache.glob("passes/*.json"))) == 2


def test_a_cache_that_cannot_be_written_changes_nothing(cache):
    cache.parent.write_text("a file")
    assert pipeline(costs="measured").parts.costs is not None


def test_a_spoilt_note_is_timed_again(cache):
    pipeline(costs="measured")
    (note,), (passes,) = cache.glob("*.json"), cache.glob("passes/*.json")
    for each in (note, passes):
        each.write_text("{")
    pipeline(costs="measured")
    assert read_costs(note).passes[0][0] == 1 and read_costs(note) == read_costs(passes)


@pytest.mark.parametrize("fused", [False, True])
def test_a_drafter_of_a_tree_is_timed(fused, cache):
    """Within a fused one, too: else its levels would cost nothing."""
    first, tree = OwnLayers(exit=1), Dynamic(depth=2, width=2, nodes=3)
    drafter = Fused(first=first, second=Suffix(), tree=tree) if fused else first
    made = compose(
        target=HFTarget.from_model(tiny_llama(11, 0)),
        drafter=drafter,
        tree=None if fused else tree,
        run={"costs": "measured"},
    )
    assert made.parts.costs is not None and made.parts.costs.draft > 0


class Learning(OwnLayers):
    """A drafter that would learn from what is decoded to time it."""

    def observe(self, cycle: Cycle) -> None:
        raise AssertionError("it was run")


def test_what_learns_is_not_run_to_be_timed(cache):
    made = compose(
        target=HFTarget.from_model(tiny_llama(11, 0)),
        drafter=Learning(exit=1),
        tree=Dynamic(depth=2, width=2, nodes=3),
        run={"costs": "measured"},
    )
    assert made.parts.costs is not None and made.parts.costs.draft == 0


def test_what_copies_is_not_run_to_be_timed(cache, monkeypatch):
    def propose(*_):
        raise AssertionError("it was run")

    monkeypatch.setattr(Suffix, "propose", propose)
    made = pipeline(costs="measured")
    assert made.parts.costs is not None and made.parts.costs.draft == 0


def test_a_target_without_a_forward_pass_has_none():
    made = compose(target={"use": "table"}, drafter="lookup", run={"costs": "measured"})
    assert made.parts.costs is None and measured_costs(made.parts) is None


@pytest.mark.parametrize(("times", "drafts"), [(STEEP, False), (FLAT, True)])
def test_drafts_are_as_large_as_pays_and_the_text_is_the_same(tmp_path, times, drafts):
    expected = pipeline().generate(PROMPTS)
    found = pipeline(costs=written(tmp_path / "costs.json", times)).generate(PROMPTS)
    assert found.tokens == expected.tokens
    assert (found.acceptance.drafted > 0) is drafts
    assert expected.acceptance.drafted > 0


def test_the_rows_are_those_that_are_decoded_at_the_time(tmp_path, monkeypatch):
    """With `match`, whose text does not depend on what is drafted; with another rule their number is fixed."""
    made = pipeline(costs=written(tmp_path / "costs.json", STEEP), batch=3)
    seen: list[int | None] = []
    propose = made.parts.drafter.propose

    def watched(root, tree, context):
        seen.append(context.costs.rows)
        assert context.costs.rows == len(root)
        return propose(root, tree, context)

    monkeypatch.setattr(made.parts.drafter, "propose", watched)
    requests = made.requests(PROMPTS)
    with made.open([*requests, replace(requests[0], max_new_tokens=2)]) as session:
        session.run([*requests, replace(requests[0], max_new_tokens=2)])
    assert set(seen) == {2, 3}
    fixed = made.with_parts(verifier=Recursive())
    fixed = fixed.with_parts(costs=timing.costs_of(fixed.parts, fixed.run))
    assert fixed.parts.costs == replace(Costs.of({1: 1.0, 2: 2.0, 9: 9.0}, 0.1), rows=3)
    with fixed.open(requests, slots=2) as session:
        assert session.parts.costs is not None and session.parts.costs.rows == 2
    with fixed.open_endless(5) as session:
        assert session.parts.costs is not None and session.parts.costs.rows == 5
    assert made.plain().parts.costs is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"cycle_seconds": {"2": 1.0}, "draft_seconds": 0}, "costs need the seconds of a forward pass over 1 node"),
        ({"cycle_seconds": {"1": -1.0, "2": 1.0}, "draft_seconds": 0}, "takes more than none"),
        ({"cycle_seconds": [1.0]}, "holds no costs"),
        ([], "holds no costs"),
    ],
)
def test_files_without_costs_are_refused(tmp_path, data, message):
    with pytest.raises(InputError, match=message):
        pipeline(costs=written(tmp_path / "costs.json", data))


def test_a_missing_file_is_refused_before_anything_is_loaded(tmp_path):
    with pytest.raises(RecipeError, match=r"no file .*none\.json of costs; `measured` times this machine"):
        pipeline(costs=str(tmp_path / "none.json"))


def long_pipeline(context: int) -> specframe.Pipeline:
    target = HFTarget.from_model(tiny_llama(11, 0))
    target.context = context
    return compose(target=target, drafter={"use": "suffix"}, run={"costs": "measured"})


def test_passes_after_more_tokens_are_timed_without_reading_them(cache, monkeypatch):
    target = long_pipeline(1200).parts.target
    target.request(frozenset({"last", "layer.0"}))
    longer = timing.time_longer(target)
    assert set(longer) == {1024} and set(longer[1024]) == {1, 2, 4, 8, 16} and min(longer[1024].values()) > 0
    prompts = timing._imagined(target, 1024)
    target.open(1, 1100)
    tree, scores = target.admit(prompts)
    assert scores.logits.isfinite().all()
    target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(1, dtype=torch.int64), tree.tokens[:, 0]))
    assert list(target.memory().counts) == [1024]
    assert timing.time_longer(long_pipeline(512).parts.target) == {}
    monkeypatch.setattr(timing, "LARGEST", 1000)
    assert timing.time_longer(target) == {}, "a large model's memory is not made up"


def test_costs_after_more_tokens_are_kept(cache):
    costs = long_pipeline(1200).parts.costs
    assert costs is not None and [tokens for tokens, _ in costs.longer] == [1024]
    assert long_pipeline(1200).parts.costs == costs
    assert costs.after(1024).passes != costs.passes


def test_those_of_a_busy_machine_are_timed_again_when_it_is_quiet(cache, monkeypatch):
    timed, real = [], timing.time_forwards
    monkeypatch.setattr(timing, "time_forwards", lambda *given: timed.append(1) or real(*given))
    for busy, times in ((55.0, 1), (80.0, 1), (3.0, 2), (90.0, 2), (3.0, 2)):
        monkeypatch.setattr(timing.psutil, "cpu_percent", lambda seconds, busy=busy: busy)
        found = pipeline(costs="measured").parts.costs
        assert len(timed) == 2 * times, f"of one row and of several, at {busy}%"
    (note,), (passes,) = cache.glob("*.json"), cache.glob("passes/*.json")
    assert json.loads(note.read_text())["busy"] == json.loads(passes.read_text())["busy"] == 3.0
    assert read_costs(note) == found
