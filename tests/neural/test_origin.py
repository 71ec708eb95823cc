"""A drafter's config names the target that it was trained for, and another target gets a warning with both names."""

import json
import logging

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from specframe.cli.main import main
from specframe.components.targets.hf import HFTarget
from specframe.decoding.compose import compose
from specframe.neural.weights.export import Export
from specframe.neural.weights.origin import TRAINED_FOR, TargetIdentity, fingerprint, trained_for_another
from specframe_falcon.drafter import Falcon
from tests.small_model import make_model, make_tokenizer

OTHER = "other-model"


def changed(model: nn.Module) -> nn.Module:
    """The model after some training: its norms are a little different."""
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name:
                weight += 0.05
    return model


@pytest.fixture(scope="module")
def other_folder(tmp_path_factory):
    """A model of the same shape and tokens, with other weights."""
    folder = tmp_path_factory.mktemp("models") / OTHER
    changed(make_model()).save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(other_folder, tmp_path_factory):
    """A drafter that was trained for that model."""
    folder = tmp_path_factory.mktemp("drafter")
    drafter = Falcon(block=2)
    drafter.bind(HFTarget(model=str(other_folder)))
    drafter.save(folder)
    return folder


def rebound(weights, target) -> Falcon:
    drafter = Falcon(block=2, weights=str(weights))
    drafter.bind(target)
    return drafter


def warnings(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def test_the_config_has_the_targets_name_but_not_its_place(trained, other_folder):
    config = json.loads((trained / "config.json").read_text())
    assert config[TRAINED_FOR] == vars(HFTarget(model=str(other_folder)).identify())
    assert config[TRAINED_FOR]["name"] == OTHER and config["format"] == "falcon"


def test_the_same_target_is_no_other_one_in_any_dtype_precision_or_place(trained, other_folder, tmp_path, caplog):
    (tmp_path / "copy").symlink_to(other_folder)
    for target in (
        HFTarget(model=str(other_folder)),
        HFTarget(model=str(other_folder), dtype="float64"),
        HFTarget(model=str(tmp_path / "copy"), quantize="int4"),
        HFTarget(model=str(other_folder), native=True).sibling(),
        HFTarget.from_model(changed(make_model())),
    ):
        rebound(trained, target)
    assert warnings(caplog) == []


def test_another_target_gets_a_warning_with_both_names(trained, model_folder, caplog):
    rebound(trained, HFTarget(model=str(model_folder)))
    assert warnings(caplog) == [
        f"the drafter falcon in {trained} was trained for the target {OTHER}, and this one is {model_folder.name}: "
        "few drafts will be accepted"
    ]


@pytest.mark.parametrize("entry", [None, "a text", {}, {"name": OTHER}, {"name": OTHER, "fingerprint": 3}])
def test_folders_of_earlier_releases_load_as_before(trained, model_folder, tmp_path, caplog, entry):
    config = json.loads((trained / "config.json").read_text())
    del config[TRAINED_FOR]
    (tmp_path / "config.json").write_text(json.dumps(config | ({TRAINED_FOR: entry} if entry is not None else {})))
    (tmp_path / "model.safetensors").write_bytes((trained / "model.safetensors").read_bytes())
    drafter = rebound(tmp_path, HFTarget(model=str(model_folder)))
    loaded = drafter.network.state_dict()
    for name, tensor in load_file(trained / "model.safetensors").items():
        assert torch.equal(loaded[name].to(tensor.dtype), tensor)
    assert warnings(caplog) == []


@pytest.mark.parametrize(
    ("theirs", "ours", "same"),
    [
        ("zoo://smollm2-135m", "HuggingFaceTB/SmolLM2-135M-Instruct", True),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "zoo://specframe-zoo/smollm2-135m", True),
        ("owner/model", "owner/model", True),
        ("owner/model", "owner/model-2", False),
        ("zoo://talk-7m", "HuggingFaceTB/SmolLM2-135M-Instruct", False),
        ("checkpoint-1000", "checkpoint-1000", False),  # folders are often called alike
    ],
)
def test_a_name_of_the_hub_or_the_zoo_is_a_model_whatever_the_rounding(theirs, ours, same):
    assert TargetIdentity(theirs, "1").is_of(TargetIdentity(ours, "2")) == same
    assert TargetIdentity(theirs, "1").is_of(TargetIdentity(ours, "1"))


def test_models_of_one_shape_differ_by_their_norms():
    model, other = make_model(), make_model()
    assert fingerprint(model, model.config) == fingerprint(other.bfloat16(), other.config)
    assert fingerprint(model, model.config) != fingerprint(changed(make_model()), other.config)


def test_a_target_without_an_identity_is_not_compared(trained):
    assert trained_for_another(trained, object()) is None


def test_a_name_from_outside_steers_no_terminal(trained, model_folder, tmp_path, caplog):
    config = json.loads((trained / "config.json").read_text())
    config[TRAINED_FOR]["name"] = "a\x1b[2Jmodel"
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").write_bytes((trained / "model.safetensors").read_bytes())
    rebound(tmp_path, HFTarget(model=str(model_folder)))
    (warning,) = warnings(caplog)
    assert "\x1b" not in warning and "a\\x1b[2Jmodel" in warning


def test_exports_are_as_other_programs_read_them(tmp_path):
    Export({"a": 1, TRAINED_FOR: {"name": OTHER}}, {"w": torch.zeros(1)}, ()).write(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text()) == {"a": 1}


@pytest.mark.parametrize(
    "command",
    [
        ["run", "RECIPE", "--out", "OUT", "run.repeats=0"],
        ["show", "RECIPE", "--prompt", "hello"],
        ["bench", "RECIPE", "plain", "--data", "DATA", "--repeats", "1", "--out", "OUT"],
        ["certify", "RECIPE", "--budget", "200"],
        ["profile", "RECIPE", "--sizes", "1", "--depth", "1"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_warns(command, recipe, trained, tmp_path, caplog):
    data = tmp_path / "texts.jsonl"
    data.write_text('{"prompt": "hello there"}\n')
    places = {"RECIPE": str(recipe), "OUT": str(tmp_path / "out"), "DATA": str(data)}
    short = [f"drafter.weights={trained}", "sampling.max_new_tokens=3", "run.prompts=[hello]"]
    main([*(places.get(word, word) for word in command), *short])
    assert any(f"was trained for the target {OTHER}, and this one is" in warning for warning in warnings(caplog))
    if command[0] == "run":
        assert json.loads((tmp_path / "out" / "run.json").read_text())["target"]["drafter_of"] == OTHER


def test_a_composition_in_memory_warns_too(trained, caplog):
    drafter = Falcon(block=2, weights=str(trained))
    compose(target=make_model(), drafter=drafter, tree={"use": "chain", "depth": 2})
    assert any(f"{OTHER}, and this one is a llama model in memory" in warning for warning in warnings(caplog))
