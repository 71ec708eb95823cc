"""Models in a wrapper: of PEFT, of torch.compile, of data parallelism; and the folder of an adapter."""

from __future__ import annotations

import json

import peft
import pytest
import torch

import specframe
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError, InputError
from tests.components.targets.models import PROMPTS

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # by PEFT
COUNT = 12


def adapted(model, config):
    """The model with an adapter whose weights are random, in evaluation mode."""
    found = peft.get_peft_model(model, config)
    torch.manual_seed(3)
    for name, weights in found.named_parameters():
        if "lora" in name or "ia3" in name:
            weights.data.normal_(0, 0.3)
    return found.eval()


LORA = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj", "down_proj", "lm_head"])
WRAPPERS = {
    "lora": lambda model: adapted(model, LORA),
    "ia3": lambda model: adapted(
        model,
        peft.IA3Config(
            task_type="CAUSAL_LM", target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"]
        ),
    ),
    "mixed": lambda model: adapted_by_several(model),
    "compiled": torch.compile,
    "parallel": torch.nn.DataParallel,
    "compiled lora": lambda model: torch.compile(adapted(model, LORA)),
}


def adapted_by_several(model):
    found = peft.PeftMixedModel(model, LORA, "one")
    torch.manual_seed(3)
    for name, weights in found.named_parameters():
        if "lora" in name:
            weights.data.normal_(0, 0.3)
    return found.eval()


@pytest.mark.parametrize("kind", sorted(WRAPPERS))
def test_a_wrapped_model_decodes_as_it_generates(kind, build, continuation, decode):
    model = build("llama")
    plain = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    wrapped = WRAPPERS[kind](model)
    inner = getattr(wrapped, "module", getattr(wrapped, "_orig_mod", wrapped))  # generates without compiling
    expected = [continuation(inner, prompt, COUNT) for prompt in PROMPTS]
    assert (expected == plain) == (kind in ("compiled", "parallel")), "the adapter changes texts"
    assert [row[:COUNT] for row in decode(HFTarget.from_model(wrapped), PROMPTS, expected)] == expected
    pipeline = specframe.compose(target=wrapped, drafter="lookup")
    assert pipeline.generate([PROMPTS[0]], max_new_tokens=COUNT).tokens == expected[:1]


def test_an_adapter_outside_of_the_layers_is_refused(build):
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    with pytest.raises(CompositionError, match="of the kind prompt_tuning, which puts tokens of its own before every"):
        HFTarget.from_model(peft.get_peft_model(build("llama"), config))


def test_an_adapters_folder_is_called_that(build, tmp_path):
    config = peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj"])
    adapted(build("llama"), config).save_pretrained(tmp_path)
    with pytest.raises(InputError, match=r"holds an adapter, not a model: name it in .* the PeftModel"):
        HFTarget(model=str(tmp_path))
    config = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | {"base_model_name_or_path": "some/model"}))
    with pytest.raises(InputError, match="holds an adapter for the model 'some/model', not a model"):
        HFTarget(model=str(tmp_path))


class Logging(torch.nn.Module):
    """A home-made wrapper, which hands everything on."""

    def __init__(self, model):
        super().__init__()
        self.inner = model

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.inner, name)

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


class Named(Logging):
    def forward(self, **kwargs):
        return self.inner(**kwargs)


@pytest.mark.parametrize("kind", [Logging, Named])
def test_a_wrapper_that_hides_what_it_reads_is_called_that(build, kind):
    model = build("llama")
    with pytest.raises(CompositionError, match=r"hides what it reads .* give the model of transformers in it"):
        HFTarget.from_model(kind(model))
    assert HFTarget.from_model(kind(model).inner).model is model
