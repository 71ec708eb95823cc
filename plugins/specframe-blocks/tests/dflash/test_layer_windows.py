"""Layers of a checkpoint that see a window: read, written, and trained as they decode."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import dflash_texts as texts
import pytest
import torch
from dflash_texts import again, change, stored

from specframe import WeightsError
from specframe.neural import gather
from specframe.testing import GivenSession, GrowingTree, random_teacher
from specframe_blocks.dflash.dflash import DFlash

KINDS = ["sliding_attention", "full_attention"]


def drafted(drafter: DFlash, features: dict[str, torch.Tensor] | None = None) -> torch.Tensor:
    """The predictions of a block after a text of nine tokens, whose features may be given."""
    teacher = random_teacher(drafter.target, 1, 12)
    rows = GivenSession.of(teacher if features is None else replace(teacher, features=features))
    drafter.open(1, 16)
    drafter.commit(rows.admit([9]))
    return drafter.expand(GrowingTree(rows.root, 11).frontier([0])).logits


@pytest.mark.parametrize("kinds", [KINDS, ["sliding_attention"] * 2])
@pytest.mark.parametrize("form", ["vllm", "speculators"])
def test_layers_with_a_window_are_read_and_written(kinds: list[str], form: str, tmp_path: Path) -> None:
    change(folder := stored(tmp_path / "one", texts.dflash()), layer_types=kinds, sliding_window=3)
    loaded = again(folder)
    assert loaded.layout.plan.windows == tuple(3 if kind == "sliding_attention" else None for kind in kinds)
    loaded.export(form).write(tmp_path / "two")
    written = json.loads((tmp_path / "two" / "config.json").read_text())
    inner = written.get("transformer_layer_config", written)
    assert inner["layer_types"] == kinds and inner["sliding_window"] == 3 and inner["use_sliding_window"]
    twice = again(tmp_path / "two")
    assert twice.layout.plan == loaded.layout.plan and torch.equal(drafted(twice), drafted(loaded))


def test_a_block_sees_as_many_context_features_as_its_window_has(tmp_path: Path) -> None:
    """Features that lie further back change nothing, the first one within the window does, and a long one is none."""
    plain = texts.dflash()
    wide = drafted(plain)
    taps = random_teacher(plain.target, 1, 12).features

    def changed(loaded: DFlash, place: int) -> torch.Tensor:
        moved = {tap: values.clone() for tap, values in taps.items()}
        for values in moved.values():
            values[:, place] += 1.0
        return drafted(loaded, moved)

    folder = stored(tmp_path, plain)
    change(folder, layer_types=["sliding_attention"] * 2, sliding_window=9)
    torch.testing.assert_close(drafted(again(folder)), drafted(plain), rtol=0, atol=0)
    assert wide.shape == drafted(plain).shape
    change(folder, sliding_window=3)
    loaded = again(folder)
    base = drafted(loaded)
    assert not torch.equal(base, drafted(plain))
    assert all(torch.equal(changed(loaded, place), base) for place in range(6))
    assert all(not torch.equal(changed(loaded, place), base) for place in (6, 7, 8))


def test_training_sees_what_decoding_sees_within_windows(tmp_path: Path) -> None:
    folder = stored(tmp_path, texts.dflash())
    change(folder, layer_types=KINDS, sliding_window=3, sliding_window_non_causal=False)
    loaded = again(folder)
    assert loaded.layout.plan.view(0) == (3, True) and loaded.layout.plan.view(1) == (None, False)
    teacher = random_teacher(loaded.target, 1, 12)
    features = loaded.fuse(gather(loaded.spec, teacher.features)[:, :9])
    made = loaded.network.blocks(features, teacher.tokens[:, 1:], loaded.target.embed, torch.tensor([[8]]))
    torch.testing.assert_close(loaded.read(made)[:, 0], drafted(loaded)[:, 0], rtol=1e-5, atol=1e-5)
    with pytest.raises(WeightsError, match="make all layers causal there"):
        loaded.export("vllm")
    assert loaded.export("speculators").config["sliding_window_non_causal"] is False
