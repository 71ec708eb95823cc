"""Pictures with questions, and the model that is trained on them."""

import importlib
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import specframe

pytestmark = pytest.mark.slow

TRAINING = Path(__file__).parents[1] / "training"


@pytest.fixture
def training(monkeypatch):
    monkeypatch.syspath_prepend(str(TRAINING))
    return importlib.import_module


def test_answers_are_what_is_drawn(training):
    pictures = training("pictures")
    kinds = set()
    for seed in range(200):
        dice = random.Random(seed)
        scene = pictures.Scene.random(dice)
        drawn = {pixel for _, pixel in scene.draw().getcolors()}
        assert drawn == {pictures.GROUNDS[scene.ground], *(pictures.COLOURS[thing.colour] for thing in scene.things)}
        facts = scene.facts(8)
        assert {tuple(fact) for fact in facts} - {(0, 0, 0)} == {
            (
                pictures.SHAPES.index(thing.shape) + 1,
                [*pictures.COLOURS].index(thing.colour) + 1,
                [*pictures.SIZES].index(thing.size) + 1,
            )
            for thing in scene.things
        }
        for question in pictures.ask(scene, dice):
            kinds.add(question.kind)
            if question.kind == "colour":
                (shape,) = [shape for shape in pictures.SHAPES if shape in question.text]
                assert [thing.colour for thing in scene.things if thing.shape == shape] == [question.answer]
    assert kinds == {"how many", "ground", "colour", "shape", "where"}


def test_what_is_exported_is_what_was_trained_and_is_decoded_behind_a_picture(training, tmp_path):
    see, pictures = training("see"), training("pictures")
    base = specframe.model_folder("zoo://talk-7m")
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [see.MARK]})
    model = see.build(base)
    trained = see.adapt(model)
    assert 2 * sum(p.numel() for p in trained.values()) < 2_000_000, "more than 2 MB in bfloat16"
    optimizer = torch.optim.AdamW(trained.values(), lr=2e-3)
    losses = []
    for _ in range(6):
        losses.append(model(**see.batch(tokenizer, range(2))).loss)
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]
    scene = pictures.Scene.random(random.Random(1))
    tokens, _ = see.encode(tokenizer, pictures.ask(scene, random.Random(1))[:1])
    with torch.no_grad():
        wanted = model(input_ids=torch.tensor([tokens]), pixel_values=see.pixels([scene])).logits
        see.merge(model)
        merged = model(input_ids=torch.tensor([tokens]), pixel_values=see.pixels([scene])).logits
    assert torch.allclose(wanted, merged, atol=1e-3)
    see.export(model, tokenizer, tmp_path)
    pipeline = specframe.compose(
        target=str(tmp_path), drafter="lookup", run={"chat": True}, sampling={"max_new_tokens": 8}
    )
    question = "How many things are there?"
    row = pipeline.encode(question, [scene.draw()])
    plain = pipeline.plain().generate([row]).tokens
    assert pipeline.generate(question, images=[scene.draw()]).tokens == plain
    asked = tokenizer(f"<|bos|><|user|>{see.MARK * see.PARTS}{question}<|assistant|>", add_special_tokens=False)
    assert list(row) == asked["input_ids"]
    assert torch.allclose(row.inputs["pixel_values"], see.pixels([scene]), atol=1e-6)
