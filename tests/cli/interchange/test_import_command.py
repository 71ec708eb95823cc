"""`specframe import`: what was published is stored as it was, and what does not fit is one clear line."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
import torch
from huggingface_hub.utils import filter_repo_objects
from safetensors.torch import load_file

from specframe.cli.main import main
from specframe.files.provenance import claimed
from specframe_zoo import talk_eagle
from tests.repo.repository import ROOT

SMALL = ROOT / "recipes" / "small"


def exported(recipe: str, form: str, out: Path, capsys: pytest.CaptureFixture[str], *settings: str) -> Path:
    assert main(["export", str(SMALL / recipe), *settings, "--to", form, "--out", str(out)]) == 0
    capsys.readouterr()
    return out


def take(recipe: str, weights: Path, out: Path, *more: str) -> int:
    return main(["import", str(SMALL / recipe), f"drafter.weights={weights}", "--out", str(out), *more])


def test_an_export_comes_back_with_a_checklist(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported("eagle.yaml", "sglang", tmp_path / "theirs", capsys)
    assert take("eagle.yaml", folder, tmp_path / "ours") == 0
    output = capsys.readouterr().out
    assert f"drafter.weights={tmp_path / 'ours'}" in output
    for word in ("the last hidden state, after the final norm", "a level a forward pass", "the same, bit by bit"):
        assert word in output
    ours, zoo = (load_file(path / "model.safetensors") for path in (tmp_path / "ours", talk_eagle()))
    assert ours.keys() == zoo.keys() and all(torch.equal(ours[name], zoo[name]) for name in zoo)
    facts = json.loads((tmp_path / "ours" / "specframe.json").read_text())
    assert facts["figures"]["read_from"] == str(folder) and "model.safetensors" in facts["figures"]["sha256"]
    assert claimed(tmp_path / "ours") == claimed(folder) == claimed(talk_eagle()), "what training recorded goes along"
    assert len(claimed(folder)) > 1
    assert take("eagle.yaml", folder, tmp_path / "ours", "--json") == 0, "and again"
    found = json.loads(capsys.readouterr().out)
    assert found["numbers"] == sum(tensor.numel() for tensor in zoo.values())
    assert found["checklist"]["drafter"] == "eagle" and found["checklist"]["bias"] == "true"


def test_heads_in_half_precision_are_rounded_and_it_is_stated(
    own_heads: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made, settings = own_heads
    folder = exported("medusa.yaml", "medusa", tmp_path / "theirs", capsys, *settings)
    assert take("medusa.yaml", folder, tmp_path / "ours", *settings[:-1], "--json") == 0
    checklist = json.loads(capsys.readouterr().out)["checklist"]
    assert checklist["drafts"] == "4 levels at most" and "read back" in checklist
    ours, zoo = (load_file(path / "model.safetensors") for path in (tmp_path / "ours", made))
    assert ours.keys() == zoo.keys()
    for name in zoo:
        torch.testing.assert_close(ours[name].float(), zoo[name].float(), rtol=1e-2, atol=1e-4)


def test_pickled_tensors_are_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = exported("eagle.yaml", "eagle", tmp_path / "theirs", capsys)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    for number, part in enumerate((names[:3], names[3:]), 1):
        torch.save({name: tensors[name] for name in part}, folder / f"pytorch_model-{number:05}-of-00002.bin")
    assert take("eagle.yaml", folder, tmp_path / "ours") == 0
    assert "converted from" in capsys.readouterr().out
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(torch.equal(ours[name], tensors[name]) for name in ours) and ours.keys() == tensors.keys()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose repositories are all that the Hub has: OWNER/NAME."""

    def snapshot(name: str, allow_patterns: list[str], ignore_patterns: list[str] | None) -> str:
        repository, cached = tmp_path / "hub" / name, tmp_path / "cache" / name
        files = [str(path.relative_to(repository)) for path in repository.rglob("*") if path.is_file()]
        for file in filter_repo_objects(files, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns):
            (cached / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(repository / file, cached / file)
        return str(cached)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    (tmp_path / "hub" / "owner").mkdir(parents=True)
    return tmp_path / "hub"


@pytest.mark.parametrize("parts", [1, 2], ids=["whole", "in two parts"])
def test_pickles_of_the_hub_are_fetched_by_import_alone(
    parts: int, hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = exported("eagle.yaml", "eagle", hub / "owner" / "eagle", capsys)
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    if parts == 1:
        torch.save(tensors, folder / "pytorch_model.bin")
    else:
        files = {name: f"pytorch_model-{number % 2 + 1:05}-of-00002.bin" for number, name in enumerate(tensors)}
        for file in set(files.values()):
            torch.save({name: tensor for name, tensor in tensors.items() if files[name] == file}, folder / file)
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    (folder / "training_args.bin").write_bytes(pickle.dumps(print))
    (folder / "old").mkdir()
    (folder / "old" / "optimizer.pt").write_bytes(b"large")

    assert main(["run", str(SMALL / "eagle.yaml"), "drafter.weights=owner/eagle"]) == 2
    error = capsys.readouterr().err
    assert "specframe import RECIPE drafter.weights=owner/eagle --out FOLDER" in error and error.count("\n") == 1
    assert not list((tmp_path / "cache").rglob("*.bin")), "nothing pickled is fetched unasked"

    assert main(["import", str(SMALL / "eagle.yaml"), "drafter.weights=owner/eagle", "--out", "ours", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checklist"]["read back"] == "the same, bit by bit"
    ours = load_file(tmp_path / "ours" / "model.safetensors")
    assert all(torch.equal(ours[name], tensors[name]) for name in ours) and ours.keys() == tensors.keys()
    assert (
        not list((tmp_path / "cache").rglob("training_args.bin")) and not (tmp_path / "cache/owner/eagle/old").exists()
    )


def test_a_repository_without_weights_is_one_line(
    hub: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (hub / "owner" / "eagle").mkdir()
    (hub / "owner" / "eagle" / "config.json").write_text("{}")
    assert main(["import", str(SMALL / "eagle.yaml"), "drafter.weights=owner/eagle", "--out", "ours"]) == 2
    error = capsys.readouterr().err
    assert "neither a safetensors file nor a pickled one" in error and error.count("\n") == 1


def spoil_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": print}, protocol=2))


def spoil_list(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save([torch.zeros(2)], folder / "pytorch_model.bin")


def spoil_width(folder: Path) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "hidden_size": 99}))


def spoil_end(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-40])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_pickle, "it holds more than tensors, or is damaged"),
        (spoil_list, "it holds something else than named tensors"),
        (spoil_width, "hidden_size: the checkpoint has 99"),
        (spoil_end, "cannot read"),
    ],
)
def test_what_does_not_fit_is_an_error_and_nothing_is_written(
    spoil: Callable[[Path], None], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = exported("eagle.yaml", "sglang", tmp_path / "theirs", capsys)
    spoil(folder)
    assert take("eagle.yaml", folder, tmp_path / "ours") == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert not (tmp_path / "ours" / "model.safetensors").exists()


def test_what_cannot_be_imported_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    for arguments, message in [
        (["eagle.yaml", "drafter.weights=null", "--out", str(tmp_path / "new")], "names no weights"),
        (["eagle.yaml", "--out", str(tmp_path / "other")], "holds a checkpoint that was not imported here"),
        (["eagle.yaml", f"drafter.weights={tmp_path}/none", "--out", str(tmp_path / "new")], "no checkpoint"),
    ]:
        recipe, *rest = arguments
        assert main(["import", str(SMALL / recipe), *rest]) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1
