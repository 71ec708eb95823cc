"""Targets that see: trees and sessions after images decode as `generate` does."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from specframe.components.drafters.lookup import Lookup
from specframe.components.targets.forward.compiled import CompiledForward
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.verifiers.match import Match
from specframe.decoding.requests import Request, groups, prompts_of
from specframe.decoding.session import Parts, Session
from specframe.kernel.errors import InputError
from specframe.neural.slot_map import SlotMap
from tests.components.targets.images import FAMILIES, IMAGE, PLACED, ROOM, generated, prompt, seeing, text, worst
from tests.components.targets.registry.walk import build


@pytest.mark.parametrize("family", FAMILIES)
def test_trees_after_two_images_in_a_ragged_batch_decode_as_generate_does(family, monkeypatch):
    model = seeing(family, monkeypatch)
    target = HFTarget.from_model(model)
    requests = [prompt(model, 1), prompt(model, 2, before=2, after=4)]
    wanted = [generated(model, request) for request in requests]
    assert groups(target, requests) == [[0, 1]], "images of one size are read together"
    batch = prompts_of(requests)
    assert worst(target, batch, wanted) < 1e-6
    swapped = prompts_of([replace(requests[0], inputs=requests[1].inputs | _kinds(requests[0])), requests[1]])
    assert worst(target, swapped, wanted) > 1e-3, "the images of rows make no difference"
    if family in PLACED:
        monkeypatch.setattr(SlotMap, "places", lambda rows, positions: None)
        assert worst(target, batch, wanted) > 1e-3, "the offset of positions makes no difference"


def _kinds(request: Request) -> dict[str, torch.Tensor]:
    return {name: values for name, values in request.inputs.items() if name.endswith("token_type_ids")}


def open_session(target, slots: int) -> Session:
    drafter = Lookup()
    drafter.bind(target)
    return Session(Parts(target, drafter, None, Match()), slots, ROOM)


@pytest.mark.parametrize("family", ["llava", "qwen2_5_vl", "gemma3"])
def test_images_are_admitted_while_other_rows_decode(family, monkeypatch):
    model = seeing(family, monkeypatch)
    target = HFTarget.from_model(model)
    model.base_model.rope_deltas = torch.tensor([[-3]])  # what the last call of `generate` may have left
    requests = [
        text(9, 8, 7),
        prompt(model, 1),
        text(5, 6, 7, 5, 6),
        prompt(model, 2, wide=3),
        prompt(model, 3, before=3),
        prompt(model, 4, after=5),
    ]
    requests[0] = replace(requests[0], max_new_tokens=3)
    requests[4] = replace(requests[4], max_new_tokens=2)
    entries = open_session(target, 3).run(requests)
    for request, entry in zip(requests, entries, strict=True):
        assert entry.tokens == generated(model, request)[0][: request.max_new_tokens]


def test_a_cancelled_row_takes_its_offset_along(monkeypatch):
    model = seeing("qwen2_5_vl", monkeypatch)
    session = open_session(HFTarget.from_model(model), 3)
    requests = [prompt(model, 1), prompt(model, 2, wide=4), text(9, 8, 7)]
    entries = session.admit(requests)
    session.step()
    session.cancel(entries[0])
    entries += session.admit([prompt(model, 3, wide=3)])
    while session.live:
        session.step()
    for entry in entries[1:]:
        assert entry.tokens == generated(model, entry.request)[0]
    assert entries[0].ended == "cancelled"


def test_requests_are_read_together_whose_inputs_have_the_same_shapes(monkeypatch):
    model = seeing("qwen2_5_vl", monkeypatch)
    target = HFTarget.from_model(model)
    images = [prompt(model, 1), prompt(model, 2, after=5), prompt(model, 3, wide=3)]
    mixed = [images[0], text(5, 6), images[2], images[1], text(7)]
    assert groups(target, mixed) == [[0, 3], [1, 4], [2]]
    odd = replace(images[1], tokens=[*images[1].tokens[:-1], IMAGE])
    assert groups(target, [images[0], odd]) == [[0], [1]]
    batch = prompts_of([images[0], images[1]])
    assert batch.inputs["mm_token_type_ids"].shape == batch.tokens.shape
    assert batch.inputs["image_grid_thw"].shape == (2, 3)


@pytest.mark.parametrize("more", [-1, 1])
@pytest.mark.parametrize("family", ["llava", "qwen2_vl"])
def test_more_or_fewer_tokens_than_features_are_refused_and_other_rows_go_on(family, more, monkeypatch):
    model = seeing(family, monkeypatch)
    session = open_session(HFTarget.from_model(model), 3)
    (entry,) = session.admit([text(9, 8, 7)])
    request = prompt(model, 1)
    tokens = [*request.tokens[:-1], IMAGE] if more > 0 else [5, *request.tokens[2:], 5]
    inputs = request.inputs | {name: (torch.tensor([tokens]) == IMAGE).int() for name in _kinds(request)}
    with pytest.raises(InputError, match="cannot read the image of a prompt") as caught:
        session.admit([replace(request, tokens=tokens, inputs=inputs)])
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="cannot read the image of a prompt"):
        session.admit([text(4, 5), replace(request, tokens=tokens, inputs=inputs)])
    assert session.live == [entry], "the text that was read before the image is gone, too"
    while session.live:
        session.step()
    assert entry.tokens == generated(model, entry.request)[0]


def test_images_for_targets_without_eyes_are_refused():
    request = Request(tokens=[1, 2], inputs={"pixel_values": torch.zeros(1, 3, 8, 8)}, max_new_tokens=2)
    for target in (HFTarget.from_model(build("llama")), TableTarget(vocab=5)):
        session = open_session(target, 1)
        with pytest.raises(InputError, match="reads texts alone"):
            session.admit([request])
        assert not session.live


def test_a_compiled_target_refuses_images(monkeypatch):
    model = seeing("llava", monkeypatch)
    target = HFTarget.from_model(model)
    target.computing.inner = CompiledForward(target.parts.eager, target.dtype)
    with pytest.raises(InputError, match="reads texts alone: leave it out"):
        open_session(target, 1).admit([prompt(model, 1)])


def test_inputs_that_a_model_does_not_know_are_refused(monkeypatch):
    model = seeing("qwen2_5_vl", monkeypatch)
    target, request = HFTarget.from_model(model), prompt(model, 1)
    with pytest.raises(InputError, match="reads no position_ids with a prompt"):
        target.require_inputs(request.inputs | {"position_ids": torch.zeros(1)})
    blind = replace(request, inputs={k: v for k, v in request.inputs.items() if k != "mm_token_type_ids"})
    with pytest.raises(InputError, match="mm_token_type_ids, which its processor makes"):
        open_session(target, 1).admit([blind])


def test_a_prompt_with_an_image_is_not_read_ahead(monkeypatch):
    model = seeing("llava", monkeypatch)
    session = open_session(HFTarget.from_model(model), 2)
    request = prompt(model, 1)
    with pytest.raises(InputError, match="a prompt with an image is read whole"):
        session.read_ahead(request.tokens, 4)
    (entry,) = session.admit([request])
    while session.live:
        session.step()
    assert entry.tokens == generated(model, request)[0]


@pytest.fixture
def untried(monkeypatch, tmp_path):
    """A cache folder in which no kind of model is known."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path))
    return tmp_path / "checked"


def notes(folder) -> list[str]:
    return [note.name for note in folder.glob("*-images")]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_kind_of_model_is_tried_with_its_first_image(family, untried, monkeypatch):
    model = seeing(family, monkeypatch)
    target = HFTarget.from_model(model)
    session = open_session(target, 3)
    (text_entry,) = session.admit([text(9, 8, 7)])
    assert not notes(untried), "texts were read alone so far"
    (entry,) = session.admit([prompt(model, 1)])
    assert len(notes(untried)) == 1
    calls: list[object] = []
    monkeypatch.setattr(HFTarget, "teach", lambda *given: calls.append(given))
    session.admit([prompt(model, 2)])
    assert not calls, "a kind that is known was tried again"
    while session.live:
        session.step()
    for row in (entry, text_entry):  # the test left the rows of the session alone
        assert row.tokens == generated(model, row.request)[0]


def test_a_model_that_scores_trees_after_images_wrongly_refuses_them_and_reads_texts(untried, monkeypatch):
    model = seeing("qwen2_5_vl", monkeypatch)
    session = open_session(HFTarget.from_model(model), 2)
    with monkeypatch.context() as patch:
        patch.setattr(SlotMap, "places", lambda rows, positions: None)
        with pytest.raises(InputError, match="does not score trees after an image as it scores texts"):
            session.admit([prompt(model, 1)])
    assert not notes(untried) and not session.live
    (entry,) = session.admit([text(9, 8, 7)])
    while session.live:
        session.step()
    assert entry.tokens == generated(model, entry.request)[0]
