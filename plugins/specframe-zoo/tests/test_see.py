"""see-8m answers from the picture, and by `generate` what it answers here."""

from __future__ import annotations

import pytest
import torch
from PIL import Image, ImageDraw
from transformers import AutoModelForImageTextToText, AutoProcessor

import specframe
import specframe_zoo

LARGEST = 4_000_000
"""Bytes of the files that come with the package."""
KNOWN = {
    "How many things are there?": "two",
    "What shape is the red thing?": "square",
    "Which colour is the circle?": "blue",
    "In which place is the blue one?": "bottom left",
    "What colour is the background?": "white",
}


def drawing(things: bool = True) -> Image.Image:
    picture = Image.new("RGB", (64, 64), (250, 250, 250))
    if things:
        pen = ImageDraw.Draw(picture)
        pen.rectangle((23, 23, 41, 41), (220, 40, 40))
        pen.ellipse((1, 44, 19, 62), (50, 80, 220))
    return picture


@pytest.fixture(scope="module")
def pipeline():
    return specframe.compose(
        target="zoo://see-8m", drafter="lookup", run={"chat": True}, sampling={"max_new_tokens": 48}
    )


def test_what_comes_with_the_package_is_small():
    kept = specframe_zoo.see.own_folder
    assert 1_000_000 < sum(file.stat().st_size for file in kept.iterdir()) < LARGEST


def test_it_answers_from_the_picture(pipeline):
    assert {question: pipeline.generate(question, images=[drawing()]).texts[0] for question in KNOWN} == KNOWN
    blank = {question: pipeline.generate(question, images=[drawing(things=False)]).texts[0] for question in KNOWN}
    assert blank["What colour is the background?"] == "white"
    assert blank != KNOWN


def test_the_text_is_that_of_generate(pipeline):
    folder = specframe_zoo.see()
    model = AutoModelForImageTextToText.from_pretrained(folder)
    assert model.dtype == torch.bfloat16
    processor = AutoProcessor.from_pretrained(folder)
    content = [{"type": "image"}, {"type": "text", "text": "Describe the picture."}]
    text = processor.apply_chat_template([{"role": "user", "content": content}], add_generation_prompt=True)
    given = processor(images=[drawing()], text=text, return_tensors="pt", add_special_tokens=False)
    tokens = model.generate(**given, max_new_tokens=48, do_sample=False)[0, given["input_ids"].shape[1] :]
    found = pipeline.generate("Describe the picture.", images=[drawing()])
    assert found.tokens[0] == tokens.tolist()
    assert "square" in found.texts[0] and "circle" in found.texts[0]
