"""The head `trimmed`: which tokens stay, that no other row is read, and lossless output; and how counts are made."""

import json
from pathlib import Path

import pytest
import torch

from specframe.cli.main import main
from specframe.components.heads import Trimmed, read_counts, store_vocabulary
from specframe.components.targets.table import TableTarget
from specframe.kernel.errors import CompositionError, InputError, WeightsError
from specframe.neural.heads import make_proposal
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from specframe.sampling.laws import Sampling
from specframe.testing import check_drafter
from specframe_eagle.drafter import Eagle
from tests.small_composition import small_composition

COUNTS = {"4": 9, "1": 9, "6": 20, "0": 1}


@pytest.fixture
def counts(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps(COUNTS))
    return path


def bound(**options):
    head, target = Trimmed(**options), TableTarget(vocab=8, hidden=4)
    head.bind(target)
    return head, target


FEATURES = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("keep", "counted", "kept"),
    [
        (2, True, [1, 6]),  # of 1 and 4, counted as often, the smaller id
        (3, True, [1, 4, 6]),
        (5, True, [0, 1, 2, 4, 6]),  # 2 was never counted
        (3, False, [0, 1, 2]),
        (100, False, list(range(8))),
        (100, True, list(range(8))),
    ],
)
def test_the_frequent_tokens_stay_and_nothing_else(keep, counted, kept, counts):
    head, target = bound(keep=keep, counts=counts if counted else None)
    logits = head(FEATURES)
    assert head.support.tolist() == kept and head.vocab == 8
    assert torch.allclose(logits, target.head(FEATURES)[..., kept])
    whole = make_proposal(logits[:, :, None], head, FEATURES[:, :, None]).whole
    assert whole.support is None and torch.equal(whole.logits[..., kept], logits[:, :, None])
    assert (whole.logits[..., [token for token in range(8) if token not in kept]] == -torch.inf).all()


def test_rows_that_are_not_kept_are_not_read(counts):
    target, head = TableTarget(vocab=8, hidden=4), Trimmed(keep=3, counts=counts)
    for row in (0, 2, 3, 5, 7):
        target._head[row] = torch.nan
    head.bind(target)
    assert not head(FEATURES).isnan().any()


def test_drafters_with_it_are_lossless():
    check_drafter(lambda: Eagle(head=Trimmed(keep=2)))


@pytest.mark.parametrize(
    ("tree", "verifier"),
    [
        ("{use: dynamic, depth: 2, width: 2, nodes: 4}", "match"),
        ("{use: fixed, widths: [2, 1], draw: without_replacement}", "recursive"),
        ("{use: fixed, widths: [2, 1], draw: iid}", "traversal"),
    ],
)
def test_recipes_with_it_are_certified_small(tree, verifier, tmp_path, counts):
    path = tmp_path / "recipe.yaml"
    path.write_text(
        "specframe: 1\ntarget: {use: table, vocab: 3}\n"
        f"drafter: {{use: eagle, head: {{use: trimmed, keep: 2, counts: {counts}}}}}\n"
        f"tree: {tree}\nverifier: {verifier}\n"
    )
    miniature = small_composition(plan(Recipe.read(path), discover()))
    assert miniature.emission("", Sampling(temperature=1.0), seed=2).compare(budget=30_000).tv < 1e-9


def test_counts_that_cannot_be_used_are_refused(tmp_path):
    path = tmp_path / "counts.json"
    for text in ("", "[1, 2]", '{"a": 1}', '{"1": null}'):
        path.write_text(text)
        with pytest.raises(InputError, match="token id"):
            read_counts(path, 8)
    path.write_text('{"8": 1}')
    with pytest.raises(InputError, match="token 8, outside the target's vocabulary of 8"):
        read_counts(path, 8)
    with pytest.raises(InputError, match="nowhere"):
        read_counts(tmp_path / "nowhere", 8)
    path.write_text("{}")
    assert read_counts(path, 8).tolist() == [0] * 8


def test_it_names_what_it_needs():
    class Whole: ...

    with pytest.raises(InputError, match="keep"):
        Trimmed(keep=0)
    with pytest.raises(CompositionError, match="Whole"):
        Trimmed(keep=1).bind(Whole())
    with pytest.raises(CompositionError, match="bind"):
        Trimmed(keep=1)(FEATURES)
    for options in ({}, {"keep": 1, "weights": "folder"}, {"counts": Path("counts.json"), "weights": "folder"}):
        with pytest.raises(InputError, match="trimmed"):
            Trimmed(**options)


def test_a_stored_draft_vocabulary_comes_back_and_others_are_refused(tmp_path):
    store_vocabulary(torch.tensor([6, 1, 4]), 8, tmp_path / "of8")
    head, target = bound(weights=str(tmp_path / "of8"))
    assert head.support.tolist() == [1, 4, 6]
    assert torch.allclose(head(FEATURES), target.head(FEATURES)[..., [1, 4, 6]])
    store_vocabulary(torch.tensor([6, 1, 4]), 9, tmp_path / "of9")
    with pytest.raises(WeightsError, match="vocab_size"):
        bound(weights=str(tmp_path / "of9"))
    for tokens in ([1, 1, 4], [-1, 4], [4, 8]):
        store_vocabulary(torch.tensor(tokens), 8, tmp_path / "strange")
        with pytest.raises(WeightsError, match="vocabulary of 8"):
            bound(weights=str(tmp_path / "strange"))
    (tmp_path / "of8" / "model.safetensors").write_bytes(b"no tensors")
    with pytest.raises(WeightsError, match="cannot read"):
        bound(weights=str(tmp_path / "of8"))


def test_gradients_pass_through_it_and_the_target_gets_none():
    head, target = bound(keep=3)
    features = FEATURES.clone().requires_grad_()
    head(features).logsumexp(-1).sum().backward()
    whole = FEATURES.clone().requires_grad_()
    target.head(whole)[..., :3].logsumexp(-1).sum().backward()
    assert torch.allclose(features.grad, whole.grad)


def test_answers_of_a_recipe_s_data_are_counted(tmp_path, capsys):
    texts, recipe, out = tmp_path / "texts.jsonl", tmp_path / "recipe.yaml", tmp_path / "counts.json"
    answers = [
        {"messages": [{"role": "user", "content": "xyz"}, {"role": "assistant", "content": "hello hello"}]},
    ]
    texts.write_text("\n".join(map(json.dumps, answers)))
    recipe.write_text(
        "specframe: 1\ntarget: {use: hf, model: zoo://talk-7m}\ndrafter: none\nverifier: match\n"
        f"train: {{data: [{texts}], rollout: teacher-forced}}\n"
    )
    assert main(["train", str(recipe), "--count-tokens", str(out)]) == 0
    from transformers import AutoTokenizer

    from specframe import model_folder

    tokenizer = AutoTokenizer.from_pretrained(model_folder("talk-7m"))
    counts = {tokenizer.decode([int(token)]).strip(): n for token, n in json.loads(out.read_text()).items()}
    words = tokenizer("hello hello", add_special_tokens=False)["input_ids"]
    assert len(words) <= sum(counts.values()) <= len(words) + 2, "the answer, and what ends the turn"
    assert not [word for word in counts if "x" in word or "y" in word], "the question is not counted"
    assert str(out) in capsys.readouterr().out


def test_a_recipe_without_training_data_is_refused(tmp_path, capsys):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("specframe: 1\ntarget: {use: table}\ndrafter: none\nverifier: match\n")
    assert main(["train", str(recipe), "--count-tokens", str(tmp_path / "counts.json")]) == 2
    assert "train section" in capsys.readouterr().err
