"""`model.generate(pixel_values=..., custom_generate=...)` continues as `generate` does."""

from __future__ import annotations

import pytest
import torch

import specframe
from specframe.kernel.errors import InputError
from tests.components.targets.images import IMAGE, prompt, seeing

RECIPE = """specframe: 1
target: {use: hf, model: nowhere}
drafter: {use: lookup}
verifier: {use: match}
"""
SAME = {"llava", "gemma3"}
"""Random models whose likeliest tokens are the same after both images; their logits differ (see test_images)."""


@pytest.fixture
def loop(tmp_path):
    (tmp_path / "loop.yaml").write_text(RECIPE)
    return specframe.decoder(tmp_path / "loop.yaml")


def call(requests, **more):
    """The arguments of `generate` for prompts, padded on the left."""
    width = max(len(request.tokens) for request in requests)
    padded = [[0] * (width - len(request.tokens)) + list(request.tokens) for request in requests]
    ids = torch.tensor(padded)
    inputs = {
        name: (ids == IMAGE).int()
        if name.endswith("type_ids")
        else torch.cat([request.inputs[name] for request in requests])
        for name in requests[0].inputs
    }
    mask = (ids != 0).long()
    return {"input_ids": ids, "attention_mask": mask, "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0} | (
        inputs | more
    )


@pytest.mark.parametrize("family", ["llava", "idefics3", "qwen2_vl", "qwen3_vl", "gemma3"])
def test_rows_with_different_images_continue_as_generate_does(family, loop, monkeypatch):
    model = seeing(family, monkeypatch)
    given = call([prompt(model, 1), prompt(model, 2, after=5, wide=3)])
    wanted = model.generate(**given)
    assert torch.equal(model.generate(**given, custom_generate=loop), wanted)
    swapped = given | {"pixel_values": given["pixel_values"].flip(0)}
    other = model.generate(**swapped, custom_generate=loop)
    assert torch.equal(other, model.generate(**swapped))
    if family not in SAME:
        assert not torch.equal(other, wanted), "the image makes no difference"


def test_copies_of_a_row_get_its_image(loop, monkeypatch):
    model = seeing("qwen2_5_vl", monkeypatch)
    given = call([prompt(model, 1)])
    wanted = model.generate(**given)
    copies = model.generate(**given | {"do_sample": True, "top_k": 1}, num_return_sequences=2, custom_generate=loop)
    assert copies.tolist() == wanted.tolist() * 2


def test_rows_of_several_images_each_are_refused(loop, monkeypatch):
    model = seeing("llava", monkeypatch)
    given = call([prompt(model, 1), prompt(model, 2)])
    images = given["pixel_values"].repeat(2, 1, 1, 1)
    ids = given["input_ids"].repeat_interleave(2, 1)
    with pytest.raises(InputError, match="one image each") as caught:
        model.generate(
            **given | {"pixel_values": images, "input_ids": ids, "attention_mask": torch.ones_like(ids)},
            custom_generate=loop,
        )
    assert "\n" not in str(caught.value)
