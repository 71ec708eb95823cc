"""A drafting model leaves for transformers, llama.cpp and OpenVINO: what they read drafts as it does here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.generation.candidate_generator import AssistedCandidateGenerator

import specframe
from specframe import WeightsError
from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget

MODEL = "zoo://talk-7m"
LAYERS = [*range(11)]
"""Most layers of the target: drafts that are often accepted, and not always."""
PROMPT = "What do you like to do on a rainy day?"


@pytest.fixture(scope="module")
def target() -> HFTarget:
    return HFTarget(model=MODEL, dtype="float32")


def bound(target: HFTarget, **options: Any) -> ModelDrafter:
    drafter = ModelDrafter(model=MODEL, dtype="float32", **options)
    drafter.bind(target)
    return drafter


def test_assisted_generation_drafts_what_the_drafter_drafts(
    target: HFTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = bound(target, layers=LAYERS)
    drafter.export("transformers").write(tmp_path)
    ours: list[list[int]] = []
    propose = drafter.propose

    def record(*arguments: Any) -> Any:
        tree = propose(*arguments)
        ours.append(tree.tokens[0, 1:].tolist())
        return tree

    monkeypatch.setattr(drafter, "propose", record)
    pipeline = specframe.compose(
        target=target, drafter=drafter, tree={"use": "chain", "depth": 3}, verifier={"use": "match"}
    )
    prompt = [*pipeline.encode(PROMPT)]
    text = [*pipeline.generate([prompt], max_new_tokens=24).tokens[0]]
    theirs: list[list[int]] = []
    candidates = AssistedCandidateGenerator.get_candidates

    def note(self: Any, ids: torch.Tensor, *arguments: Any, **named: Any) -> Any:
        found = candidates(self, ids, *arguments, **named)
        theirs.append(found[0][0, ids.shape[1] :].tolist())
        return found

    monkeypatch.setattr(AssistedCandidateGenerator, "get_candidates", note)
    assistant = AutoModelForCausalLM.from_pretrained(tmp_path).float()
    assert assistant.config.num_hidden_layers == len(LAYERS)
    settings = assistant.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = 3, "constant"
    settings.assistant_confidence_threshold = 0.0
    begun = torch.tensor([[*prompt, text[0]]])  # our first token came with the prompt's own forward pass
    answer = target.model.generate(begun, assistant_model=assistant, max_new_tokens=len(text) - 1, do_sample=False)
    assert answer[0, len(prompt) :].tolist() == text
    assert len(theirs) == len(ours) > 2
    for mine, other in zip(ours, theirs, strict=True):
        assert other == mine[: len(other)], "cut where the text ends"


def test_a_gguf_file_has_the_model_s_logits_and_tokens(target: HFTarget, tmp_path: Path) -> None:
    made = bound(target).export("gguf")
    made.write(tmp_path)
    assert made.config["general.architecture"] == "llama" and not (tmp_path / "config.json").exists()
    again = HFTarget(model=str(tmp_path / "model.gguf"), dtype="float32")
    assert again.tokenizer.encode(PROMPT) == target.tokenizer.encode(PROMPT)
    tokens = torch.tensor([target.tokenizer.encode(PROMPT)])
    with torch.no_grad():
        torch.testing.assert_close(again.model(tokens).logits, target.model(tokens).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("form", "words"), [("vllm", '"method": "draft_model"'), ("openvino", "--weight-format fp32")])
def test_an_engine_gets_the_folder_of_a_model(form: str, words: str, target: HFTarget, tmp_path: Path) -> None:
    made = bound(target).export(form)
    made.write(tmp_path)
    assert words in made.command and (tmp_path / "tokenizer.json").exists()
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["LlamaForCausalLM"]


@pytest.mark.parametrize("form", ModelDrafter.forms)
@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"quantize": "int8"}, "its layers are rounded: set drafter.quantize=null"),
        ({"masks": 2, "mask_token": 5}, r"its mask tokens \(PARD\) are not known there"),
        ({"together": 2}, "layers that are computed together are not known there"),
    ],
)
def test_what_an_engine_would_lose_is_refused(
    form: str, options: dict[str, Any], reason: str, target: HFTarget
) -> None:
    with pytest.raises(WeightsError, match=f"{form} cannot serve this drafter: {reason}"):
        bound(target, **options).export(form)
