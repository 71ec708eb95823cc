"""`specframe train --auto`: a drafter for a model within minutes, by steps that resume."""

import errno
import json
import shutil
from pathlib import Path

import pytest

import specframe
from specframe.cli.main import main
from specframe_distill.auto import steps as auto

PROMPTS = [f"hello {letter * 3} good" for letter in "abcdefghijklmnopqrstuvwx"]


@pytest.fixture
def work(model_folder, tmp_path, monkeypatch):
    """A folder with a model of a longer context, and prompts."""
    model = tmp_path / "model"
    shutil.copytree(model_folder, model)
    config = json.loads((model / "config.json").read_text()) | {"max_position_embeddings": 512}
    (model / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*words, minutes="0.05"):
    return main(
        [
            "train",
            "--auto",
            "model",
            "--prompts",
            "mine.jsonl",
            "--minutes",
            minutes,
            "sampling.max_new_tokens=12",
            *words,
        ]
    )


@pytest.fixture
def quick(monkeypatch):
    """Answers take no time that counts: a busy machine decides nothing."""
    distill = auto.Auto._distill
    monkeypatch.setattr(auto.Auto, "_distill", lambda *words: distill(*words) and 0.05)


@pytest.mark.full
def test_one_command_leaves_a_recipe_that_runs_and_goes_on_after_a_kill_at_each_step(work, quick, monkeypatch, capsys):
    folder = work / "runs" / "auto" / "model"
    done = []
    steps = [(auto, "write_prompts"), (specframe, "train"), (specframe, "bench"), (auto, "interval")]
    for module, name in steps:
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            assert call() == 130
        done.append({path.relative_to(folder) for path in folder.rglob("answers.jsonl")})
        assert not (folder / "recipe.yaml").exists()
    assert done[1] == done[2] == done[3] and len(done[1]) == 1, "the rounds stay those of the first call"
    trained = (folder / "drafter" / "model.safetensors").read_bytes()
    assert call() == 0
    output = capsys.readouterr()
    assert "18 prompts to learn from, 6 to measure by" in output.out and "plain decoding" in output.out
    assert "the law expected tau" in output.out and "expected" in output.err and "bench" in output.err
    assert (folder / "drafter" / "model.safetensors").read_bytes() == trained, "what is trained is not trained again"
    learnt, measured = ((folder / f"{name}.jsonl").read_text().splitlines() for name in ("learn", "measure"))
    assert len(measured) == 6 and not set(learnt) & set(measured)
    assert main(["run", str(folder / "recipe.yaml"), "--prompt", "hello", "run.repeats=0"]) == 0


def interrupted(*given, **options):
    raise KeyboardInterrupt("interrupted")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--auto", "falcon", "--prompts", "mine.jsonl", "--minutes", "1"], "give a model in place of falcon"),
        (["--auto", "model", "falcon", "--prompts", "mine.jsonl", "--minutes", "1"], "'falcon' is not of the form"),
        (["--auto", "model", "--minutes", "1"], "--auto needs --prompts FILE and --minutes N"),
        (["--auto", "model", "--prompts", "mine.jsonl", "--minutes", "0"], "--minutes must be above 0, not 0"),
        (["--auto", "model", "--prompts", "gone.jsonl", "--minutes", "1"], "gone.jsonl"),
        (["--auto", "model", "--prompts", "torn.jsonl", "--minutes", "1"], "torn.jsonl:1"),
        (["--auto", "model", "--prompts", "ten.txt", "--minutes", "1"], "10 different prompts: --auto needs at least"),
        (["--auto", "model", "--prompts", "same.txt", "--minutes", "1"], "1 different prompt: --auto needs at least"),
        (["--auto", "plain", "--prompts", "turns.jsonl", "--minutes", "1"], "several turns need a chat template"),
        (["--auto", "encoder", "--prompts", "mine.jsonl", "--minutes", "1"], "encoder"),
        (["--auto", "model", "--show", "1"], "--auto begins a drafter"),
        (["model", "--minutes", "1"], "--prompts, --minutes and --out belong to --auto"),
    ],
)  # fmt: skip
def test_bad_input_is_one_clear_line(work, words, message, capsys):
    (work / "torn.jsonl").write_text('{"prompt": ')
    (work / "ten.txt").write_text("\n".join(PROMPTS[:10]))
    (work / "same.txt").write_text("hello\n" * 30)
    (work / "turns.jsonl").write_text("".join(json.dumps({"turns": [p, "and then?"]}) + "\n" for p in PROMPTS))
    plain = shutil.copytree("model", "plain")
    for template in ("chat_template.jinja", "tokenizer_config.json"):
        forget_template(Path(plain) / template)
    encoder = Path(shutil.copytree("model", "encoder")) / "config.json"
    config = json.loads(encoder.read_text()) | {"model_type": "bert", "architectures": ["BertModel"]}
    encoder.write_text(json.dumps(config))
    assert main(["train", *words]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line != "answers"]  # the progress
    if "--auto" not in words:
        assert "best without training" in lines.pop(0)
    assert len(lines) == 1 and message in lines[0] and "Traceback" not in lines[0]


def forget_template(path):
    if path.suffix == ".jinja":
        path.unlink(missing_ok=True)
    else:
        config = json.loads(path.read_text())
        config.pop("chat_template", None)
        path.write_text(json.dumps(config))


def test_too_few_minutes_are_refused_with_the_number_and_keep_the_answers(work, monkeypatch, capsys):
    monkeypatch.setattr(auto.Auto, "_distill", lambda *words: 3.4)
    assert call(minutes="1") == 2
    assert "--minutes 1 is too short" in (line := capsys.readouterr().err.splitlines()[-1]) and "give 3 or more" in line


def test_a_full_disk_is_one_line_and_the_same_command_resumes(work, quick, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(auto, "write_prompts", full)
        assert call() == 2
    assert "No space left on device; the same command resumes" in capsys.readouterr().err.splitlines()[-1]


def full(*given):
    raise OSError(errno.ENOSPC, "No space left on device")


def figures(value, low, high):
    figure = {"value": value, "low": low, "high": high}
    return {"speedup": figure, "tau": figure}


@pytest.mark.parametrize(
    ("trained", "copies", "best", "words"),
    [
        ((1.4, 1.2, 1.6), (1.1, 1.0, 1.2), "eagle", "1.40 [1.20, 1.60] times"),
        ((0.9, 0.8, 1.0), (1.2, 1.1, 1.3), "suffix", "the trained drafter does not pay"),
        ((0.9, 0.8, 1.0), (1.0, 0.9, 1.1), "suffix", "not above 1"),
    ],
)
def test_the_recipe_is_the_fastest_contestants(trained, copies, best, words, tmp_path, capsys):
    for name in ("eagle", "suffix"):
        (tmp_path / f"{name}.yaml").write_text(f"drafter: {{use: {name}}}\n")
    found = {"eagle": figures(*trained), "suffix": figures(*copies)}
    path = auto.Auto(None, "model", (), 1.0, tmp_path, True)._choose(found, 1.5, 6)
    text = path.read_text()
    assert f"use: {best}" in text and words in text and words in capsys.readouterr().out


def test_without_the_package_one_line_names_it(work, monkeypatch, capsys):
    from specframe.recipes.registry import Registry

    monkeypatch.setattr(
        Registry, "of", lambda registry, kind, of=Registry.of: [] if kind == "extension" else of(registry, kind)
    )
    assert call() == 2
    assert "`specframe train --auto` needs another package: pip install specframe-distill" in capsys.readouterr().err
