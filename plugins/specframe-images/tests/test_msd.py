"""MSD's drafter: EAGLE's after a text, an image's own embeddings after an image, in training as in decoding."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe import InputError, train
from specframe.components.rollouts.multi_step import MultiStep
from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.components.targets.hf import HFTarget
from specframe.components.trees.fixed import Chain
from specframe.components.verifiers.match import Match
from specframe.decoding.session import Parts, Session
from specframe.plugin import IMAGES, Context, Expand, Frontier, Proposal, TokenTree
from specframe.testing import check_drafter, random_teacher, shake
from specframe_eagle.drafter import Eagle
from specframe_images.msd import Msd
from tests.components.targets.images import IMAGE, generated, prompt, seeing
from tests.seeing_model import save_picture
from tests.small_model import make_model, make_tokenizer


@pytest.fixture(scope="module")
def target() -> HFTarget:
    with pytest.MonkeyPatch.context() as patch:
        return HFTarget.from_model(seeing("llava", patch))


def bound(target: HFTarget) -> Msd:
    drafter = Msd()
    drafter.bind(target)
    shake(drafter.module)
    return drafter


def read(target: HFTarget, seed: int = 1, after: int = 4) -> Any:
    """A teacher of one text with an image."""
    request = prompt(target.model, seed, after=after)
    tokens = torch.tensor([request.tokens])
    return target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool), inputs=request.inputs)


def test_the_tap_has_the_projected_image_at_its_parts_and_nothing_elsewhere(target: HFTarget) -> None:
    bound(target)
    request = prompt(target.model, 1)
    teacher = read(target)
    shown = teacher.tokens[0] == IMAGE
    wanted = target.model.model.get_image_features(**request.inputs, return_dict=True).pooler_output[0]
    assert torch.allclose(teacher.features[IMAGES][0, shown], wanted)
    assert not teacher.features[IMAGES][0, ~shown].any()
    text = torch.tensor([[5, 6, 7]])
    assert not target.teach(text, torch.ones_like(text, dtype=torch.bool)).features[IMAGES].any()


def test_after_a_text_it_is_eagles_network(target: HFTarget) -> None:
    ours, eagle = bound(target), Eagle()
    eagle.bind(target)
    eagle.network.fc.load_state_dict(ours.network.fc.state_dict())
    eagle.network.layer.load_state_dict(ours.network.layer.state_dict())
    teacher = random_teacher(target, 2, 9)
    teacher.tokens[teacher.tokens == IMAGE] = IMAGE + 1
    found = [TeacherForced(noise=0.0)(drafter, teacher, 0.0).logits for drafter in (ours, eagle)]
    assert torch.equal(*found)


def test_an_image_enters_as_its_embedding_without_the_map_and_without_features(target: HFTarget) -> None:
    drafter, teacher = bound(target), read(target)
    entered: list[Tensor] = []
    handle = drafter.network.layer.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    TeacherForced(noise=0.0)(drafter, teacher, 0.0)
    handle.remove()
    shown = teacher.tokens[0, 1:] == IMAGE
    assert torch.equal(entered[0][0, shown], teacher.features[IMAGES][0, 1:][shown])
    pairs = torch.cat([target.embed(teacher.tokens[:, 1:]), teacher.features["last"][:, :-1]], -1)
    assert torch.allclose(entered[0][0, ~shown], drafter.network.fc(pairs)[0, ~shown])


def test_noise_is_added_to_features_and_never_to_the_image(target: HFTarget) -> None:
    drafter, teacher = bound(target), read(target)
    entered: list[Tensor] = []
    handle = drafter.network.layer.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    TeacherForced(noise=0.5)(drafter, teacher, 0.0)
    TeacherForced(noise=0.5)(drafter, teacher, 0.0)
    handle.remove()
    same = (entered[0] == entered[1]).all(-1)[0]
    assert torch.equal(same, teacher.tokens[0, 1:] == IMAGE)


class Asked(Chain):
    """A chain that keeps the logits which the drafter gives below the root."""

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        def ask(frontier: Frontier) -> Proposal:
            proposal = expand(frontier)
            self.logits = proposal.logits[:, 0, 0]  # [B, V]
            return proposal

        return super().grow(ask, root, context)


def test_what_it_learns_after_an_image_is_what_it_drafts_by(target: HFTarget) -> None:
    """Two rows with unlike images: the prediction below the root, and along the same texts in training."""
    drafter, tree = bound(target), Asked(depth=1)
    requests = [prompt(target.model, seed, after=seed + 2) for seed in (1, 2)]
    session = Session(Parts(target, drafter, tree, Match()), 2, 64)
    rows = session.admit(requests)
    session.step()
    for row, (request, entry) in enumerate(zip(requests, rows, strict=True)):
        tokens = torch.tensor([[*request.tokens, entry.tokens[0]]])
        teacher = target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool), inputs=request.inputs)
        for rollout in (TeacherForced(noise=0.0), MultiStep(steps=1, noise=0.0)):
            learnt = rollout(drafter, teacher, 0.0).logits[0, -1]
            assert torch.allclose(tree.logits[row], learnt, atol=1e-9)


def test_texts_after_images_are_generates(target: HFTarget) -> None:
    requests = [prompt(target.model, seed, before=seed) for seed in (1, 2, 3)]
    session = Session(Parts(target, bound(target), Chain(depth=3), Match()), 3, 64)
    rows = session.admit(requests)
    while any(row.ended is None for row in rows):
        session.step()
    assert [row.tokens for row in rows] == [generated(target.model, request)[0] for request in requests]


def test_it_keeps_the_contract_of_drafters() -> None:
    check_drafter(Msd)


def chat(question: str, answer: str, **more: str) -> dict[str, Any]:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return {"messages": turns, **more}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Chats with an image and one without."""
    for seed in range(4):
        save_picture(tmp_path / f"{seed}.png", seed)
    records = [chat(f"What is it, {seed}?", f"It is number {seed}.", image=f"{seed}.png") for seed in range(4)]
    file = tmp_path / "seen.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in [*records, chat("Hello", "Hi there")]))
    return file


def recipe(folder: Path, data: Path, **more: Any) -> Path:
    settings = {"data": [str(data)], "rollout": {"use": "teacher-forced"}, "steps": 12, "batch": 5, "lr": 0.01}
    settings |= {"out": str(data.parent / "out"), "validation": 0, "length": 128, "log_every": 4}
    loss = [{"use": "feature-regression"}, {"use": "cross-entropy", "weight": 0.1}]
    target = {"use": "hf", "model": str(folder)}
    parts = {"drafter": {"use": "msd"}, "tree": {"use": "chain", "depth": 2}, "verifier": {"use": "match"}}
    file = data.parent / "recipe.yaml"
    whole = {"specframe": 1, "target": target, **parts, "loss": loss, "train": settings | more}
    file.write_text(json.dumps(whole))  # JSON is YAML
    return file


@pytest.mark.parametrize("cache", [False, True])
def test_it_is_trained_on_images_and_texts_in_one_batch(cache: bool, seeing_folder: Path, data: Path) -> None:
    report = train(recipe(seeing_folder, data, **({"cache": str(data.parent / "features")} if cache else {})))
    losses = [entry["loss"] for entry in json.loads((report.folder / "train.json").read_text())["losses"]]
    assert losses[-1] < losses[0]


def test_a_file_that_is_missing_is_named(seeing_folder: Path, data: Path) -> None:
    data.write_text(json.dumps(chat("a", "b", image="none.png")) + "\n")
    with pytest.raises(InputError, match=r"seen.jsonl:1: there is no file .*none\.png"):
        train(recipe(seeing_folder, data))


def test_a_target_of_texts_refuses_an_image(data: Path, tmp_path: Path) -> None:
    make_model().save_pretrained(tmp_path / "blind")
    make_tokenizer().save_pretrained(tmp_path / "blind")
    with pytest.raises(InputError, match=r"seen\.jsonl:1: the target reads texts alone"):
        train(recipe(tmp_path / "blind", data))


def test_a_text_with_an_image_stays_whole(seeing_folder: Path, data: Path) -> None:
    with pytest.raises(InputError, match=r"train\.length is 8: a text with an image stays whole"):
        train(recipe(seeing_folder, data, length=8))
