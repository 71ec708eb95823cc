"""Pictures with questions, and the model that is trained on them."""

import ast
import functools
import importlib
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer

import specframe
from specframe.training.documents import read

pytestmark = pytest.mark.slow

TRAINING = Path(__file__).parents[1] / "training" / "images"


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


@pytest.fixture(scope="module")
def base():
    return specframe.model_folder("zoo://talk-7m")


@pytest.fixture
def tokenizer(training, base):
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.add_special_tokens({"additional_special_tokens": [training("lessons").MARK]})
    return tokenizer


def test_rows_are_the_tokens_of_the_whole_conversation(training, tokenizer):
    lessons, pictures = training("lessons"), training("pictures")
    writer = lessons.Writer(tokenizer)
    for seed in range(50):
        dice = random.Random(seed)
        scene = pictures.Scene.random(dice)
        turns = pictures.ask(scene, dice) if seed % 2 else [pictures.caption(scene, dice)]
        written = "".join(f"<|user|>{turn.text}<|assistant|>{turn.answer}<|end|>" for turn in turns)
        written = written.replace("<|user|>", "<|user|>" + lessons.MARK * lessons.PARTS, 1)
        tokens, labels = writer.write(turns)
        assert tokens == tokenizer("<|bos|>" + written, add_special_tokens=False)["input_ids"]
        answers = "".join(f"{turn.answer}<|end|>" for turn in turns)
        assert tokenizer.decode([label for label in labels if label >= 0]) == answers


def test_places_are_in_front_of_the_answers(training, tokenizer):
    lessons = training("lessons")
    arrays = lessons.examination(lessons.Writer(tokenizer), 3, 0)
    flat = arrays["tokens"].reshape(-1)
    assert (flat[arrays["places"] + 1] == arrays["answers"]).all()
    assert arrays["tokens"].shape[1] % lessons.WIDTH == 0
    assert len(arrays["kinds"]) == len(arrays["tokens"]) == len(arrays["pictures"])


def test_workers_give_the_same_batches(training, tokenizer):
    lessons = training("lessons")
    make = functools.partial(lessons.lesson, lessons.Writer(tokenizer), 2)
    for alone, drawn in zip(*(lessons.batches(make, range(3, 6), workers) for workers in (0, 2)), strict=True):
        assert all((alone[name] == drawn[name]).all() for name in alone)


def test_what_is_exported_is_what_was_trained_and_is_decoded_after_a_picture(training, base, tokenizer, tmp_path):
    see, seeing, lessons, pictures = (training(name) for name in ("see", "seeing", "lessons", "pictures"))
    model = seeing.build(base)
    trained = seeing.adapt(model, 24)
    writer = lessons.Writer(tokenizer)
    optimizer = torch.optim.AdamW(trained.values(), lr=2e-3)
    given, losses = see.tensors(lessons.lesson(writer, 2, 0), "cpu"), []
    for _ in range(6):
        losses.append(torch.nn.functional.cross_entropy(seeing.read(model, given), given["answers"]))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < losses[0]
    with torch.no_grad():
        wanted = model(input_ids=given["tokens"], pixel_values=given["pictures"]).logits.flatten(0, 1)[given["places"]]
        assert torch.allclose(seeing.read(model, given), wanted, atol=1e-4)
        seeing.export(model, tokenizer, tmp_path / "parts", trained)
        assert (tmp_path / "parts" / seeing.KEPT).stat().st_size < 4_000_000
        seeing.merge(model)
        assert torch.allclose(seeing.read(model, given), wanted, atol=1e-3)
    seeing.export(model, tokenizer, out := tmp_path / "whole")
    pipeline = specframe.compose(target=str(out), drafter="lookup", run={"chat": True}, sampling={"max_new_tokens": 8})
    scene = pictures.Scene.random(random.Random(1))
    question = "How many things are there?"
    row = pipeline.encode(question, [scene.draw()])
    plain = pipeline.plain().generate([row]).tokens
    assert pipeline.generate(question, images=[scene.draw()]).tokens == plain
    tokens, _ = writer.write([pictures.Question("how many", question, "one")])
    assert list(row) == tokens[: len(row)]
    drawn = see.tensors({"pictures": lessons.draw([scene])}, "cpu")["pictures"]
    assert torch.allclose(row.inputs["pixel_values"], drawn, atol=1e-6)


def test_a_run_that_was_cut_goes_on_and_reports(training, base, tmp_path, monkeypatch, capsys):
    see = training("see")
    kept = tmp_path / "model" / training("seeing").KEPT

    def run(*more: str) -> str:
        sizes = ["--rows", "2", "--encoder-rows", "2", "--encoder-steps", "2", "--held-out", "1"]
        given = ["--base", str(base), "--model", str(tmp_path / "model"), *sizes, *more]
        monkeypatch.setattr("sys.argv", ["see.py", *given])
        see.main()
        return capsys.readouterr().out

    assert "encoder, step 1" in (first := run("--steps", "2")) and "held out at 2" in first
    before = kept.read_bytes()
    assert "encoder" not in (second := run("--steps", "3")) and "held out at 3" in second
    assert before != kept.read_bytes()
    assert run("--report", "1").splitlines()[-2:] == second.splitlines()[-2:]


def test_the_released_model_sees_what_is_drawn(training, base, monkeypatch, capsys):
    see = training("see")
    given = ["--base", str(base), "--model", str(specframe.model_folder("zoo://see-8m"))]
    monkeypatch.setattr("sys.argv", ["see.py", *given, "--report", "24"])
    see.main()
    seen, blank = (
        ast.literal_eval(line.split(" ", 1)[1])
        for line in capsys.readouterr().out.splitlines()
        if line.startswith(("seen", "blank"))
    )
    assert seen.keys() == blank.keys() == {"how many", "ground", "colour", "shape", "where"}
    assert all(share > 0.95 for share in seen.values()), seen
    assert all(share < 0.8 for share in blank.values()), blank
    monkeypatch.setattr("sys.argv", ["see.py", *given])
    with pytest.raises(SystemExit):
        see.main()
    assert "is reported on, not trained" in capsys.readouterr().err


def test_a_target_that_sees_writes_texts_for_drafters(training, tmp_path, monkeypatch):
    seen = training("seen")
    out = tmp_path / "seen"
    given = ["--out", str(out), "--pictures", "4", "--rows", "3"]
    monkeypatch.setattr("sys.argv", ["seen.py", *given])
    seen.main()
    found = list(read([str(out / "answers.jsonl")]))
    assert len(found) == 4, "each answer of this model ends"
    for seed, document in enumerate(found, seen.FIRST):
        assert document.image is not None and document.image.is_file()
        questions = seen.asked(seed)[1]
        assert [message["content"] for message in document.messages[::2]] == questions
        assert [message["role"] for message in document.messages] == ["user", "assistant"] * len(questions)
