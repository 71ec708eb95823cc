"""The package speculators as an oracle for P-EAGLE: it reads our exports, we read what it saves, rows agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eagle3_texts
import peagle_texts as texts
import pytest
import torch

from specframe.testing import random_teacher
from specframe_eagle.parallel.drafter import PEagle
from specframe_eagle.parallel.rollout import COD
from tests.speculators_models import speculators_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:.past_key_values. is deprecated:FutureWarning"
)  # speculators gives it so
VARIANTS: list[dict[str, Any]] = [
    {},
    {"layers": 3, "own_embedding": True},
    {"layers": 2, "layer": "qwen3", "norm_before_residual": True, "norm_before_fc": True},
]


@pytest.fixture(autouse=True)
def _no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own weights are of no use here, and a random one has no place to load them from."""
    monkeypatch.setattr(speculators_model("peagle.core").PEagleDraftModel, "load_verifier_weights", lambda self: None)


def loaded(folder: Path) -> Any:
    return eagle3_texts.load_theirs(speculators_model("peagle.core").PEagleDraftModel, folder)


def exported(folder: Path, options: dict[str, Any]) -> PEagle:
    """Our drafter, read again from the export that lies in the folder, in float64."""
    drafter = texts.round_weights(texts.bound(torch.float32, **options))
    drafter.export("speculators").write(folder)
    again = PEagle(weights=str(folder), levels=texts.LEVELS)
    again.bind(eagle3_texts.target(torch.float64))
    return again


@pytest.mark.parametrize("options", VARIANTS)
def test_it_reads_our_export_and_computes_the_same(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter, model = exported(tmp_path, options), loaded(tmp_path)
    teacher = random_teacher(drafter.target, 1, 10)
    n, levels = 9, texts.LEVELS
    with torch.no_grad():
        if drafter.network.embedding is None:  # their copy of the target's embedding is rounded
            model.embed_tokens.weight.copy_(drafter.target.embed(torch.arange(texts.VOCAB)))
        ours = COD()(drafter, teacher, 0.0)
        taps = torch.cat([teacher.features[tap] for tap in drafter.spec.taps], -1)[:, :-1]
        depth = torch.arange(levels)
        rows = torch.stack([torch.arange(n).repeat_interleave(levels), depth.repeat(n)])
        inside = rows.sum(0) < n  # theirs has no rows beyond the text
        order = rows[:, inside][1].argsort(stable=True)  # depth by depth, as their sampling gives them
        anchors, below = rows[:, inside][:, order]
        core = speculators_model("peagle.core")
        monkeypatch.setattr(core, "generate_cod_sample_indices", lambda **given: (anchors, below))
        monkeypatch.setattr(core, "compute_metrics", lambda **given: (torch.zeros(()), {}))  # theirs needs Triton
        found: list[torch.Tensor] = []
        model.lm_head.register_forward_hook(lambda module, given, out: found.append(out[0].detach()))
        model(
            taps,
            teacher.tokens[:, 1:],
            torch.zeros(1, n, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, n, 8, dtype=torch.float64),
            num_depths=levels,
        )
    mine = ours.logits.view(n, levels, -1)[anchors, below]
    torch.testing.assert_close(mine, found[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", VARIANTS)
def test_we_read_what_it_saves(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = exported(tmp_path / "ours", options)
    loaded(tmp_path / "ours").bfloat16().save_pretrained(tmp_path / "theirs")
    again = PEagle(weights=str(tmp_path / "theirs"), levels=texts.LEVELS)
    again.bind(eagle3_texts.target(torch.float64))
    assert again.layout.switches == drafter.layout.switches and again.layout.taps == drafter.layout.taps
    assert again.layout.mask == drafter.layout.mask
    for name, tensor in drafter.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name]), name
