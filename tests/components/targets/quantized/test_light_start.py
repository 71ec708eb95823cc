"""Loading a recipe with a native target and native drafts imports no model of transformers."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.native_model import LlamaModel

HEAVY = (
    "transformers.modeling_utils",
    "transformers.modeling_layers",
    "transformers.masking_utils",
    "transformers.models.llama.modeling_llama",
    "transformers.generation.utils",
    "transformers.activations",
    "transformers.models.auto.configuration_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.llama.configuration_llama",
    "torch.distributed.tensor",
    "torch.distributed.fsdp",
    "accelerate",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "scipy",
)
LOAD = """
import json, sys
import specframe
pipeline = specframe.load(sys.argv[1], overrides=sys.argv[2:])
heavy = json.loads(sys.stdin.read())
loaded = [name for name in heavy if name in sys.modules]
text = pipeline.generate("Once upon a time", max_new_tokens=6)
print(json.dumps([loaded, [name for name in heavy if name in sys.modules]]))
"""


def imported(*words: str) -> list[list[str]]:
    """The heavy modules that a process has imported after loading a recipe, and after a text of it."""
    done = subprocess.run(
        [sys.executable, "-c", LOAD, *words], input=json.dumps(HEAVY), capture_output=True, text=True, check=True
    )
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize(
    "words",
    [
        ("recipes/small/eagle2.yaml", "target.quantize=int4", "drafter.quantize=int8"),
        ("recipes/suffix.yaml", "target.model=zoo://talk-7m", "target.native=true"),
        ("recipes/small/families/eagle3.yaml", "target.native=true", "drafter.quantize=int8"),
    ],
    ids=["eagle-int4", "suffix-native", "eagle3-native"],
)
def test_a_native_recipe_imports_no_model_of_transformers(words: tuple[str, ...]) -> None:
    imported(*words)  # a kind of model that is new to this machine is checked against transformers' model
    assert imported(*words) == [[], []]


@torch.no_grad()
def test_the_model_is_made_when_it_is_asked_for_around_the_same_weights() -> None:
    HFTarget(model="zoo://talk-7m", native=True)  # checks the kind against transformers' model, once
    target = HFTarget(model="zoo://talk-7m", native=True)
    tokens = torch.tensor([[5, 6, 7, 8]])
    known = target.head(target.embed(tokens))
    assert isinstance(target.weights, LlamaModel) and "whole" not in vars(target.weights)
    model, plain = target.model, HFTarget(model="zoo://talk-7m").model
    assert model is target.model is target.sibling().model
    assert model.get_input_embeddings() is target.weights.get_input_embeddings()
    assert torch.equal(model(tokens).logits, plain(tokens).logits) and type(model) is type(plain)
    assert torch.equal(known, target.head(target.embed(tokens)))
    assert model.generation_config.to_dict() == plain.generation_config.to_dict()
    assert model.config.to_dict() == plain.config.to_dict()
    assert target.identify() == HFTarget(model="zoo://talk-7m").identify()
