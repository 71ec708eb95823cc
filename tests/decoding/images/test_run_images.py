"""`specframe run --image`: what it prints and writes, and bad input."""

import json

import pytest

import specframe
from specframe.cli.main import main
from tests.seeing_model import PARTS

POSITIONS = f"{PARTS} of the prompts' {PARTS + 12} positions"


def test_a_run_prints_the_text_and_how_many_positions_are_the_images(seeing, photos, capsys, tmp_path):
    text = specframe.load(seeing).generate("What is it?", images=[photos[0]]).texts[0]
    given = ["run", str(seeing), "--image", str(photos[0]), "--prompt", "What is it?", "--out", str(tmp_path / "out")]
    assert main(given) == 0
    printed = capsys.readouterr().out
    assert text in printed and POSITIONS in " ".join(printed.split())
    written = json.loads((tmp_path / "out" / "run.json").read_text())
    assert written["figures"]["images"] == {"positions": PARTS, "of": PARTS + 12}


@pytest.mark.full
def test_several_prompts_have_an_image_each(seeing, photos, capsys, tmp_path):
    pictures = [word for photo in photos for word in ("--image", str(photo))]
    given = ["run", str(seeing), *pictures, "--prompt", "one?", "--prompt", "second?", "--out", str(tmp_path / "out")]
    assert main([*given, "--json", "run.batch=2", "run.repeats=1"]) == 0
    found = json.loads(capsys.readouterr().out)
    pipeline = specframe.load(seeing)
    assert found["text"] == [
        pipeline.generate(prompt, images=[photo]).texts[0]
        for prompt, photo in zip(["one?", "second?"], photos, strict=True)
    ]
    assert found["identical_to_generate"] is True and found["images"]["positions"] == 2 * PARTS


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["--image", "gone.png", "--prompt", "a"], "there is no file gone.png"),
        (["--image", "seeing.yaml", "--prompt", "a"], "seeing.yaml is no image that can be read"),
        (["--image", "1.png", "--prompts", "file.txt"], "--image belongs to prompts of the command line"),
        (["--image", "1.png"], "there is nothing to decode"),
        (
            ["--image", "1.png", "--image", "1.png", *["--prompt", "a"] * 3],
            "2 images for 3 prompts: give one a prompt, or all of them to a single prompt",
        ),
        (["--image", "1.png", "--prompt", "a", "target={use: table, vocab: 16}"], "the target reads texts alone"),
    ],
)
def test_bad_input_is_one_line(words, line, seeing, photos, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "1.png").write_bytes(photos[0].read_bytes())
    assert main(["run", str(seeing), *words]) == 2
    error = capsys.readouterr().err
    assert line in error and len(error.splitlines()) == 1
