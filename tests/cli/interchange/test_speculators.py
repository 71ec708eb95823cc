"""A drafter that the package speculators made: it comes in, decodes, is certified, goes out, and is read back there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import specframe
from specframe.certify.certify import certify_plan
from specframe.cli.main import main
from specframe.recipes.build import plan
from specframe.recipes.discovery import discover
from specframe.recipes.recipe import Recipe
from tests.speculators_models import speculators_model

pytestmark = pytest.mark.full
TAPS = (0, 1)
"""The layers whose outputs the drafter reads; the test model has three."""
DRAFTED = torch.arange(0, 64, 2)
"""Its draft vocabulary."""


@pytest.fixture(autouse=True)
def _no_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """speculators would fetch its verifier from the Hub; the test model's weights are in the drafter's file."""
    monkeypatch.setattr(speculators_model("eagle3").Eagle3DraftModel, "load_verifier_weights", lambda self: None)


def make(model: Any) -> Any:
    """An EAGLE-3 drafter as their training makes one: their config, their class, random weights in bfloat16."""
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig

    layer = LlamaConfig(**{**model.config.to_dict(), "num_hidden_layers": 1, "tie_word_embeddings": False})
    layer._attn_implementation = "eager"  # their default needs a GPU
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=layer,
        draft_vocab_size=len(DRAFTED),
        eagle_aux_hidden_state_layer_ids=[tap + 1 for tap in TAPS],
        fc_norm=True,
        norm_output=True,
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=None, architectures=["LlamaForCausalLM"]),
        ),
    )
    made = Eagle3DraftModel(config)
    chance = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in made.parameters():
            weight.copy_((weight.ndim == 1) + 0.3 * torch.randn(weight.shape, generator=chance))
        made.embed_tokens.weight.copy_(model.get_input_embeddings().weight)
        made.d2t.copy_(DRAFTED - torch.arange(len(DRAFTED)))
        made.t2d.zero_()[DRAFTED] = True
    return made.bfloat16()


def read_there(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors that their loader makes of a folder, without the target's."""
    tensors: dict[str, torch.Tensor] = speculators_model("eagle3").Eagle3DraftModel.from_pretrained(folder).state_dict()
    return {name: tensor for name, tensor in tensors.items() if not name.startswith("verifier_")}


def test_it_comes_in_decodes_is_certified_goes_out_and_reads_back_equal(
    model: Any, model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, ours, out = (tmp_path / name for name in ("theirs", "ours", "out"))
    make(model).save_pretrained(theirs)
    recipe = tmp_path / "eagle3.yaml"
    recipe.write_text(
        f"target: {{use: hf, model: '{model_folder}', dtype: float64}}\n"
        "drafter: {use: eagle3}\n"
        "tree: {use: chain, depth: 1}\n"
        "verifier: {use: match}\n"
        "sampling: {temperature: 0.0, max_new_tokens: 16}\n"
        "run: {prompts: [hello there], chat: false, seed: 1, repeats: 1}\n"
    )

    assert main(["import", str(recipe), f"drafter.weights={theirs}", "--out", str(ours), "--json"]) == 0
    checklist = json.loads(capsys.readouterr().out.splitlines()[-1])["checklist"]
    assert checklist["read back"] == "the same, bit by bit" and checklist["draft vocabulary"] == "32 of 64 tokens"

    pipeline = specframe.load(recipe, overrides=[f"drafter.weights={ours}"])
    prompt = pipeline.encode("hello there")
    drafted = pipeline.generate([prompt])
    assert drafted.tokens == pipeline.plain().generate([prompt]).tokens and drafted.acceptance.drafted > 0

    asked = plan(Recipe.read(recipe, [f"drafter.weights={ours}"]), discover())
    certificate = certify_plan(asked, budget=30, seeds=1)
    assert certificate.lossless and certificate.control_failed

    assert main(["export", str(recipe), f"drafter.weights={ours}", "--to", "speculators", "--out", str(out)]) == 0
    before, after = read_there(theirs), read_there(out)
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name
    settings = [json.loads((folder / "config.json").read_text()) for folder in (theirs, out)]
    for name in ("draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "fc_norm", "norm_output", "norm_before_fc"):
        assert settings[0][name] == settings[1][name], name
