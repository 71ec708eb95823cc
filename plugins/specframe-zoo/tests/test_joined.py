"""A model that keeps only what another one lacks: the whole is joined once, in the cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from specframe_zoo.joined import OWN, Joined

EMBED, MAP, NORM = "model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "model.norm.weight"


@pytest.fixture
def model(tmp_path, monkeypatch) -> Joined:
    """A tiny base in two files, and a model that adds a map of rank 1, two rows and a projector."""
    monkeypatch.setenv("SPECFRAME_CACHE", str(tmp_path / "cache"))
    base, kept = tmp_path / "base", tmp_path / "kept"
    base.mkdir()
    kept.mkdir()
    save_file({EMBED: torch.randn(5, 4).bfloat16(), NORM: torch.randn(4).bfloat16()}, base / "model-1.safetensors")
    save_file({MAP: torch.randn(6, 4).bfloat16()}, base / "model-2.safetensors")
    own = {"projector.weight": torch.randn(4, 3).bfloat16()}
    pair = {f"{MAP}.up": torch.randn(6, 1).bfloat16(), f"{MAP}.down": torch.randn(1, 4).bfloat16()}
    save_file(own | {f"language_model.{name}": weight for name, weight in pair.items()}, kept / OWN)
    (kept / "config.json").write_text(json.dumps({"text_config": {"vocab_size": 7, "pad_token_id": 2}}))
    (kept / "tokenizer.json").write_text("{}")
    return Joined("tiny", "a tiny model", kept, base)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return {name: w for file in folder.glob("*.safetensors") for name, w in load_file(file).items()}


def test_the_whole_is_the_base_with_what_was_kept(model):
    whole, base, own = weights(model()), weights(model.base), weights(model.own_folder)
    assert whole.keys() == {f"language_model.{name}" for name in base} | {"projector.weight"}
    assert torch.equal(whole["projector.weight"], own["projector.weight"])
    assert torch.equal(whole[f"language_model.{NORM}"], base[NORM])
    rows = whole[f"language_model.{EMBED}"]
    assert torch.equal(rows[:5], base[EMBED]) and torch.equal(rows[5:], base[EMBED][[2, 2]])
    up, down = (own[f"language_model.{MAP}.{part}"].float() for part in ("up", "down"))
    added = base[MAP].float() + up @ down
    assert torch.equal(whole[f"language_model.{MAP}"], added.bfloat16())


def test_it_is_made_once_and_again_for_other_weights(model):
    folder = model()
    assert {path.name for path in folder.iterdir()} == {"config.json", "tokenizer.json", "model.safetensors"}
    (folder / "mark").touch()
    assert (model() / "mark").exists()
    own = load_file(model.own_folder / OWN)
    save_file(own | {"projector.weight": torch.zeros(4, 3)}, model.own_folder / OWN)
    assert model() != folder and not weights(model())["projector.weight"].any()
