"""The package speculators as an oracle: it reads our exports, we read what it saves, and both compute the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import eagle3_texts as texts
import pytest
import torch
from torch import Tensor

from specframe.testing import random_teacher
from specframe_eagle.eagle3 import Eagle3
from specframe_eagle.rollout import TrainingTimeTest
from tests.speculators_models import speculators_model

pytestmark = pytest.mark.filterwarnings(
    "ignore:.past_key_values. is deprecated:FutureWarning"
)  # speculators gives it so
STEPS = 3
VARIANTS = [
    {},
    {"fc_norm": True, "norm_output": True},
    {"norm_before_residual": True, "norm_before_fc": True, "layer": "qwen3"},
    {"own_head": False},
]


def drafter_of(options: dict[str, Any]) -> Eagle3:
    drafter = texts.bound(torch.float32, **options)
    drafter.module.bfloat16().float()
    return drafter


def theirs(model: Any, taps: Tensor, tokens: Tensor) -> Tensor:
    """The logits of every step of their forward: [STEPS, n, v]. Tokens come shifted already."""
    seen: list[Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda module, given, out: seen.append(out[0].detach()))
    with torch.no_grad():
        model(taps[None], tokens[None], torch.zeros(1, len(tokens), dtype=torch.long), ttt_steps=STEPS)
    hook.remove()
    return torch.stack(seen)


def ours(drafter: Eagle3, teacher: Any) -> Tensor:
    """The same of our rollout."""
    with torch.no_grad():
        student = TrainingTimeTest(steps=STEPS)(drafter, teacher, 0.0)
    return student.logits.view(STEPS, teacher.tokens.shape[1] - 1, -1)


def compare(drafter: Eagle3, model: Any) -> None:
    with torch.no_grad():  # the copy of the target's embedding is rounded like all that is exported
        model.embed_tokens.weight.copy_(drafter.target.embed(torch.arange(texts.VOCAB)))
    teacher = random_teacher(drafter.target, 1, 12)
    taps = torch.cat([teacher.features[tap] for tap in drafter.spec.taps], -1)[0, :-1]
    wanted, found = theirs(model, taps, teacher.tokens[0, 1:]), ours(drafter, teacher)
    for step in range(STEPS):  # after the text's end they go on with token 0, and nothing is scored
        end = 11 - step
        torch.testing.assert_close(found[step, :end], wanted[step, :end], rtol=1e-5, atol=1e-5)


@pytest.fixture(autouse=True)
def _no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's own weights are of no use here, and a random one has no place to load them from."""
    monkeypatch.setattr(speculators_model("eagle3").Eagle3DraftModel, "load_verifier_weights", lambda self: None)


def loaded(folder: Path) -> Any:
    return texts.load_theirs(speculators_model("eagle3").Eagle3DraftModel, folder)


@pytest.mark.parametrize("options", VARIANTS)
def test_it_reads_our_export_and_computes_the_same(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = drafter_of(options)
    drafter.export("speculators").write(tmp_path)
    exact = Eagle3(weights=str(tmp_path))  # an LM head of the target's is rounded on the way
    exact.bind(texts.target(torch.float64))
    compare(exact, loaded(tmp_path))


@pytest.mark.parametrize("options", VARIANTS[:3])
def test_we_read_what_it_saves(options: dict[str, Any], tmp_path: Path) -> None:
    drafter = drafter_of(options)
    drafter.export("speculators").write(tmp_path / "ours")
    loaded(tmp_path / "ours").save_pretrained(tmp_path / "theirs")
    again = Eagle3(weights=str(tmp_path / "theirs"))
    again.bind(texts.target(torch.float32))
    assert again.layout.switches == drafter.layout.switches and again.layout.taps == drafter.layout.taps
    for name, tensor in drafter.module.state_dict().items():
        assert torch.equal(tensor, again.module.state_dict()[name]), name
