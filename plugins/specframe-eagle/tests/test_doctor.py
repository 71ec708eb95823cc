"""`specframe doctor`: a drafter that reads what it was trained on, and the mistakes that checkpoints come with."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

import specframe
from specframe.cli.main import main
from specframe.files.provenance import claimed
from specframe.inspect.doctor import examine
from specframe.neural.weights.checkpoint import locate
from specframe.neural.weights.rounded import restore_matrices

RECIPE = """
specframe: 1
target: {use: hf, model: zoo://talk-7m}
drafter: {use: eagle, weights: zoo://talk-7m-eagle}
tree: {use: chain, depth: 3}
verifier: match
run:
  chat: true
  prompts: ['Do you like music?', 'Write a poem about the sea.', 'What is 4 times 6?']
"""


@pytest.fixture
def recipe(tmp_path):
    path = tmp_path / "eagle.yaml"
    path.write_text(RECIPE)
    return str(path)


def test_a_drafter_that_reads_rightly_is_found_right(recipe, capsys):
    assert main(["doctor", recipe]) == 0
    out = capsys.readouterr().out
    assert "nothing wrong was found" in out and "its training recorded" in out


def test_a_first_map_with_swapped_halves_is_recognised(recipe, tmp_path, capsys):
    broken = tmp_path / "broken"
    shutil.copytree(locate("zoo://talk-7m-eagle"), broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["fc.weight"] = torch.cat(tensors["fc.weight"].chunk(2, -1)[::-1], -1).contiguous()
    save_file(tensors, broken / "model.safetensors")
    assert main(["doctor", recipe, f"drafter.weights={broken}", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "fit another reading of the target better, embedding and feature swapped" in found["finding"]
    assert found["readings"][0]["agreement"] < 0.1 < 0.5 < found["readings"][1]["agreement"]


def test_an_untrained_drafter_is_recognised(recipe, capsys):
    assert main(["doctor", recipe, "drafter.weights=null"]) == 1
    assert "hardly more than by chance" in capsys.readouterr().out


def test_a_drafter_without_features_is_judged_by_its_acceptance(recipe, capsys):
    assert main(["doctor", recipe, "drafter={use: model, model: zoo://talk-7m}", "tree={use: chain}"]) == 0
    assert "first choice" not in capsys.readouterr().out


@pytest.mark.sampled
@pytest.mark.parametrize("layers", [(1, 6, 11), (13, 8, 3)], ids=["two earlier", "reverse order"])
def test_layers_that_are_off_are_named(layers, recipe):
    """An EAGLE-3 drafter fitted to the features of three layers, and read as if they were others."""
    pipeline = specframe.load(recipe, overrides=["drafter={use: eagle3, taps: [3, 8, 13]}"])
    target, drafter = pipeline.parts.target, pipeline.parts.drafter
    target.request(drafter.taps | {"last"})
    texts = [
        pipeline.encode(prompt) + list(new)
        for prompt, new in zip(pipeline.run.prompts, pipeline.generate(pipeline.run.prompts).tokens, strict=True)
    ]
    width = max(map(len, texts))
    tokens = torch.tensor([row + [0] * (width - len(row)) for row in texts])
    drafter.fit([target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool))] * 4)
    assert examine(pipeline, pipeline.run.prompts).finding is None

    off = tuple(f"layer.{layer}" for layer in layers)
    drafter.network.spec = drafter.spec = replace(drafter.spec, taps=off)
    found = examine(pipeline, pipeline.run.prompts)
    assert found.better and found.better[0].taps == ("layer.3", "layer.8", "layer.13")
    assert "correct the layer numbers" in (found.finding or "")


@pytest.mark.parametrize("switch", ["norm_output", "norm_before_residual"])
def test_a_switch_that_a_checkpoint_does_not_record_rightly_is_named(switch, recipe, tmp_path, capsys):
    """Programs take an absent one for different things, and no tensor shows it."""
    broken = tmp_path / "broken"
    shutil.copytree(locate("zoo://talk-7m-eagle3"), broken)
    if switch == "norm_output":
        config = json.loads((broken / "config.json").read_text())
        assert config.pop(switch) is True
        (broken / "config.json").write_text(json.dumps(config))
    else:  # read with the switch, the scale of the state is nothing to it
        tensors = restore_matrices(load_file(broken / "model.safetensors"))
        tensors["fc.weight"] *= 30
        save_file(tensors, broken / "model.safetensors")
    more = "['Do you like music?', 'Write a poem about the sea.', 'What is a river?', 'Tell me about your day.']"
    overrides = [f"drafter={{use: eagle3, own_head: false, weights: '{broken}'}}", f"run.prompts={more}", "--json"]
    assert main(["doctor", recipe, *overrides]) == 1
    found = json.loads(capsys.readouterr().out)
    assert "correct these entries of its config.json" in found["finding"] and f"{switch}: true" in found["finding"]
    assert all(len(reading["depths"]) == 3 for reading in found["readings"])


def test_an_exported_drafter_is_compared_with_what_its_training_recorded(recipe, tmp_path, capsys):
    assert main(["export", recipe, "--to", "eagle", "--out", str(tmp_path / "out")]) == 0
    assert main(["doctor", recipe, f"drafter.weights={tmp_path / 'out'}", "--json"]) == 0
    recorded = claimed("zoo://talk-7m-eagle")
    assert len(recorded) == 8 and json.loads(capsys.readouterr().out.splitlines()[-1])["recorded"] == recorded


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drafter={use: none}", "tree=null"], "the drafter none is not trained"),
        (["drafter={use: lookup}", "tree=null"], "the drafter lookup is not trained"),
        (["--limit", "3"], "--limit needs --prompts"),
        (["run.prompts=[]"], "nothing to decode"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl"),
    ],
)
def test_bad_input_is_one_line(arguments, message, recipe, capsys):
    assert main(["doctor", recipe, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
