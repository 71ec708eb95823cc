"""A model in place of a recipe: a folder, a GGUF file, a name of the zoo or of the Hub."""

import json
import re

import pytest
import torch

import specframe
from specframe.cli.main import main
from specframe.decoding.models import UNTRAINED, names_model
from tests.small_gguf import write_gguf
from tests.small_model import make_model, make_tokenizer

SMOKE = ["--prompt", "a crab", "sampling.max_new_tokens=4", "run.repeats=0", "target.native=false", "--json"]


def test_models_are_separated_from_recipes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "falcon.yaml").write_text("target: {}")
    models = ["model", "./model", "x.gguf", "zoo://talk-7m", "Qwen/Qwen2.5-Coder-0.5B-Instruct"]
    others = ["falcon", "small/falcon", "small/typo", "recipes", "./absent", "../absent", "mine/falcon.yaml", "a/b/c"]
    assert [word for word in [*models, *others] if names_model(word)] == models


def test_a_gguf_file_is_decoded_without_training_and_the_next_step_is_named(tmp_path, capsys):
    file = write_gguf(tmp_path / "small.gguf")
    assert main(["run", str(file), *SMOKE, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    first, *_, last = printed.err.splitlines()
    assert first == f"{file}: the recipe is {UNTRAINED}, the best without training"
    assert last.startswith(f"next: `specframe bench {file}` measures the gain")
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["recipe"]["path"].endswith(f"{UNTRAINED}.yaml") and json.loads(printed.out)["target"]["model"] == str(
        file
    )


def test_a_folder_of_one_gguf_file_is_that_file(tmp_path, capsys):
    write_gguf(tmp_path / "small.gguf")
    assert main(["run", str(tmp_path), *SMOKE, "--out", str(tmp_path / "out")]) == 0
    assert json.loads(capsys.readouterr().out)["tokens"] == 4


@pytest.mark.parametrize(
    ("stored", "decoded"), [("float32", "float32"), ("float16", "float32"), ("bfloat16", "bfloat16")]
)
def test_a_models_folder_is_decoded_in_its_own_dtype(tmp_path, capsys, stored, decoded):
    dtype = getattr(torch, stored)
    model = make_model().to(dtype)
    model.save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    words = ["--prompt", "a crab", "sampling.max_new_tokens=12", "run.repeats=0", "run.costs=null", "--json"]
    assert main(["run", str(tmp_path / "model"), *words, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "is stored in" not in printed.err
    options = {"target.dtype": decoded, "target.native": "true", "run.costs": "null"}
    same = specframe.load(tmp_path / "model", overrides=[f"{name}={value}" for name, value in options.items()])
    assert json.loads(printed.out)["text"] == same.plain().generate("a crab", max_new_tokens=12).texts
    assert same.parts.target.dtype == getattr(torch, decoded)


def test_prompts_of_a_model_without_a_template_are_continued(tmp_path, capsys):
    file = write_gguf(tmp_path / "small.gguf", template="")
    assert main(["run", str(file), *SMOKE, "--out", str(tmp_path / "out")]) == 0
    assert "it has no chat template, so prompts are continued" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "{file}", "run.chat=true"], "run.chat is true, but the tokenizer of .* has no chat template"),
        (["chat", "{file}"], "this target cannot chat: its tokenizer has no chat template"),
        (["run", "absent.gguf"], "there is no file 'absent.gguf'"),
        (["run", "./absent"], "absent: no such recipe or model; is the path right"),
        (["run", "./absent.yaml"], "absent.yaml: no such recipe; is the path right"),
        (["run", "./empty"], "neither a recipe nor a model: the folder has no config.json"),
        (["run", "talk-7m"], "talk-7m: no such recipe; .*zoo://name"),
        (["run", "lookup", "drafter.use=./gone.py:Mine"], "command line: drafter.use: gone.py: no such Python file"),
        (["bench", "zoo://talk-7m", "{file}"], "one model at a time: zoo://talk-7m and "),
        (["doctor", UNTRAINED], "the drafter suffix-recycling is not trained, so there is nothing to diagnose"),
        (["train", UNTRAINED], "the drafter suffix-recycling is not trained: there is nothing to train"),
        (["run", "--model", "zoo://talk-7m"], "No such option '--model'. .* is named without one: specframe run MODEL"),
        (["validate", "lookup", "target.model=./absent"], "target.model: there is no folder or file './absent'"),
        (["run", "zoo://talk-7m", "target.device=mps"], "this torch has no MPS"),
        (["run", "zoo://talk-7m", "target.adapter=./x"], "./x holds no adapter_config.json"),
    ],
)
def test_bad_input_is_one_line_before_weights_are_read(words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.backends.mps.is_available", lambda: False)
    monkeypatch.setattr("specframe_gguf.model.StoredModel.weights", lambda *_: pytest.fail("read"))
    (tmp_path / "empty").mkdir()
    file = write_gguf(tmp_path / "plain.gguf", template="")
    assert main([word.format(file=file) for word in words]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.search(message, last), last


def test_local_code_of_the_command_line_is_found_in_the_working_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = "from specframe.components.drafters.none import NoDrafter as Mine\n"
    (tmp_path / "mine.py").write_text(source)
    assert main(["validate", "lookup", "drafter.use=./mine.py:Mine"]) == 0, capsys.readouterr().err


def test_validate_names_what_it_has_not_looked_for(capsys):
    assert main(["validate", "lookup", "target.model=some-owner/some-model"]) == 0
    assert capsys.readouterr().out.endswith("; some-owner/some-model is looked for on the Hub when it is loaded\n")
    assert main(["validate", "lookup"]) == 0
    assert "Hub" not in capsys.readouterr().out


def test_validate_of_a_name_that_the_hub_does_not_have_is_an_error(monkeypatch, capsys):
    def find(name, **_):
        if "absent" in str(name):
            raise OSError(f"{name} is not a valid model identifier")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", find)
    assert main(["validate", "some-owner/absent"]) == 2
    last = "some-owner/absent cannot be found or reached: some-owner/absent is not a valid model identifier"
    assert capsys.readouterr().err.splitlines()[-1] == last
    assert main(["validate", "some-owner/some-model"]) == 0
    assert "Hub" not in capsys.readouterr().out
