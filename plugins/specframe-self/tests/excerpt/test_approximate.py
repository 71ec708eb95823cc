"""A target that reads a part of a long prompt: what it reads, what it keeps, and that every report calls it lossy."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe import InputError, RecipeError
from specframe.bench.contest.contestants import Selection, plan_contestants
from specframe.certify.certificate import Certificate
from specframe.certify.guarantees import measure_distance
from specframe.certify.real import logits_along
from specframe.certify.recipe import certify
from specframe.cli.main import main
from specframe.cli.render.certificate import print_certificate
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import tiny_llama
from specframe.decoding.requests import as_prompts
from specframe.kernel.capabilities import DelegatingTarget, is_approximate
from specframe.plugin import Prompts, Verdict
from specframe.recipes.discovery import discover
from specframe_self.excerpt.specpc import AttendedTokens
from tests.approximate_recipe import check_certificate, check_no_answers, check_run, write_recipe

VOCAB = 16
LONG = torch.randint(3, VOCAB, (40,), generator=torch.Generator().manual_seed(0)).tolist()
ROWS = [LONG, LONG[:5], LONG[::-1][:23]]


def selection(tokens: int = 12) -> AttendedTokens:
    return AttendedTokens(
        tokens=tokens, window=4, pool=3, neighbours=2, drafter=ModelDrafter.from_model(tiny_llama(VOCAB, seed=7))
    )


def approximate(tokens: int = 12) -> HFTarget:
    target = HFTarget.from_model(tiny_llama(VOCAB, seed=3))
    target.prompt = selection(tokens)
    target.prompt.bind(target)
    return target


def cut(target: HFTarget, row: list[int]) -> list[int]:
    assert target.prompt is not None
    if len(row) <= target.prompt.tokens:
        return row
    return [row[place] for place in target.prompt.choose(row)]


@torch.no_grad()
def decode(target: HFTarget, rows: list[list[int]], steps: int = 4) -> list[torch.Tensor]:
    """The logits of greedy decoding, [B, V] a step, the prompts' own first."""
    target.open(len(rows), 64)
    tree, scores = target.admit(as_prompts(rows))
    found = [scores.logits[:, 0]]
    for _ in range(steps):
        bonus = found[-1].argmax(-1)
        target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(bonus), bonus))
        tree = type(tree).root_only(bonus)
        found.append(target.score(tree).logits[:, 0])
    return found


def test_a_budget_of_the_prompt_gives_the_full_target_s_logits_bit_for_bit():
    target = approximate(len(LONG))
    for ours, theirs in zip(decode(target, ROWS), decode(target.full(), ROWS), strict=True):
        assert torch.equal(ours, theirs)


def test_it_is_the_full_target_on_the_shortened_texts_row_by_row():
    """Positions of a shortened text are contiguous, and rows of unlike lengths stand side by side."""
    target = approximate()
    rows = [cut(target, row) for row in ROWS]
    assert [len(row) for row in rows] == [12, 5, 12] and rows[0][-4:] == LONG[-4:]
    for ours, theirs in zip(decode(target, ROWS), decode(target.full(), rows), strict=True):
        assert torch.equal(ours, theirs)
    different = zip(decode(target, ROWS), decode(target.full(), ROWS), strict=True)
    assert not all(torch.equal(ours, theirs) for ours, theirs in different)


def test_the_selection_leaves_no_trace():
    target = approximate()
    decode(target, ROWS, steps=1)
    memory = target.memory()
    assert memory.counts == [12, 5, 12]
    keys = memory.keys[:, 0, :, :12].clone()
    full = target.full()
    decode(full, [cut(target, row) for row in ROWS], steps=1)
    assert torch.equal(keys, full.memory().keys[:, 0, :, :12])


def test_the_commit_has_the_prompt_that_was_read():
    target = approximate()
    target.request(frozenset({"last"}))
    target.open(1, 64)
    tree, _ = target.admit(as_prompts([LONG]))
    bonus = torch.tensor([5])
    committed = target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros_like(bonus), bonus))
    assert committed.prompt.tokens.tolist() == [cut(target, LONG)]
    assert committed.features["last"].shape[1] == 12 and committed.tokens[0, -1] == 5


def test_nothing_is_read_ahead_and_a_picture_is_not_cut():
    target = approximate()
    target.open(1, 64)
    assert target.read_ahead(LONG, 8) == 0
    whole = as_prompts([LONG])
    with pytest.raises(InputError, match="a prompt with an image is read whole"):
        target.admit(Prompts(whole.tokens, whole.count, inputs={"pixel_values": torch.zeros(1)}))


def test_siblings_are_approximate_and_the_full_one_is_not():
    target = approximate()
    assert is_approximate(target) and is_approximate(target.sibling()) and not is_approximate(target.full())
    assert is_approximate(DelegatingTarget(target)) and not is_approximate(object())


@pytest.mark.parametrize(
    "drafter", [{"use": "lookup"}, {"use": "self", "kv_selection": {"use": "window", "recent": 3}}]
)
def test_drafts_keep_the_approximate_target_s_text(drafter):
    tree = None if drafter["use"] == "lookup" else {"use": "chain", "depth": 2}
    pipeline = specframe.compose(
        target=approximate(),
        drafter=drafter,
        tree=tree,
        sampling={"temperature": 0.0, "max_new_tokens": 12},
        run={"batch": 2},
    )
    plain = pipeline.plain()
    assert not pipeline.lossless and not plain.lossless
    assert pipeline.generate(ROWS).tokens == plain.generate(ROWS).tokens


def test_the_distance_is_none_of_a_budget_of_the_prompt_and_some_of_a_smaller_one():
    found = []
    for tokens in (len(LONG), 12):
        pipeline = specframe.compose(target=approximate(tokens), drafter={"use": "lookup"})
        found.append(measure_distance(pipeline, pipeline.parts.target, ROWS))
    assert found[0].mean_tv == 0 and found[0].agreement == 1 and found[0].same_texts == 3 and not found[0].shortened
    assert 0 < found[1].mean_tv <= found[1].largest_tv <= 1 and found[1].shortened == 2 and found[1].same_texts < 3


def test_the_distance_is_a_second_implementation_s():
    """Both targets' logits by transformers' own forward passes over the texts."""
    pipeline = specframe.compose(target=approximate(), drafter={"use": "none"})
    target = pipeline.parts.target
    text = pipeline.with_parts(target=target.full()).generate([LONG], max_new_tokens=48).tokens[0]
    model, laws = target.model, []
    for prompt in (LONG, cut(target, LONG)):
        logits = model(torch.tensor([[*prompt, *text]])).logits[0, len(prompt) - 1 : -1]
        laws.append(logits.softmax(-1))
    wanted = 0.5 * (laws[0] - laws[1]).abs().sum(-1)
    hot = specframe.compose(target=target, drafter={"use": "none"}, sampling={"temperature": 1.0})
    found = measure_distance(hot, target, [LONG])
    assert found.tokens == len(text)
    assert found.mean_tv == pytest.approx(wanted.mean().item()) and found.largest_tv == pytest.approx(
        wanted.max().item()
    )
    logits, count = logits_along(target, LONG, text)
    assert count == 12 and logits.argmax(-1).tolist() == laws[1].argmax(-1).tolist()


PART = "prompt: {use: bm25, tokens: 24, chunk: 4, question: 8}"


@pytest.fixture
def recipe(tmp_path):
    return write_recipe(tmp_path, PART)


def test_a_run_calls_it_lossy(recipe, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    check_run(recipe, capsys)
    assert main(["run", str(recipe), "run.repeats=0"]) == 0
    assert "the target reads or keeps a part of a long prompt" in " ".join(capsys.readouterr().out.split())


def test_a_certificate_is_of_what_is_read_and_has_the_distance(recipe, capsys):
    found = certify(recipe, budget=2000)
    assert isinstance(found, Certificate) and found.real is None
    check_certificate(found)
    print_certificate(found.as_dict(), "part.yaml")
    shown = " ".join(capsys.readouterr().out.split())
    assert "not lossless, as the target is approximate: total variation" in shown and "1 of 1 prompt" in shown


def test_a_bench_has_plain_decoding_of_both_targets(recipe, tmp_path):
    full = write_recipe(tmp_path)
    planned = plan_contestants(Selection([str(recipe), str(full), "plain"]), discover())
    names = {entrant.name: entrant.contestant.lossless for entrant in planned.entrants}
    assert names["part"] is False and names["full"] is True
    assert "plain of zoo://talk-7m (prompt bm25 tokens=24 chunk=4 question=8)" in names
    planned.load(1)
    assert [entrant.contestant.lossless for entrant in planned.entrants] == [False, True, False, True]


def test_data_is_not_distilled_from_it(recipe, tmp_path, capsys):
    check_no_answers(recipe, tmp_path, capsys, "prompt")


def test_a_budget_below_the_window_is_a_line_of_the_recipe(tmp_path):
    with pytest.raises(InputError, match="a budget of 32 tokens does not exceed the window of 64"):
        AttendedTokens(tokens=32)
    path = write_recipe(tmp_path, PART.replace("bm25", "bm26"))
    with pytest.raises(RecipeError, match="did you mean 'bm25'"):
        specframe.load(path)
