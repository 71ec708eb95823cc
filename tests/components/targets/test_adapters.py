"""Adapters in folders, and checkpoints that are quantized in ways which are not read."""

import json

import peft
import pytest
import torch

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import InputError, WeightsError
from tests.components.targets.models import PROMPTS
from tests.components.targets.test_wrapped import adapted

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # by PEFT


@pytest.fixture
def folders(build, tmp_path):
    """A model's folder, that of an adapter for it, and the logits of both together."""
    model = build("llama").float()
    model.save_pretrained(tmp_path / "model")
    whole = adapted(
        model, peft.LoraConfig(task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj", "down_proj"])
    )
    whole.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        logits = whole(torch.tensor([PROMPTS[0]])).logits
    return str(tmp_path / "model"), str(tmp_path / "adapter"), logits


def test_an_adapter_is_merged_into_the_weights(folders):
    model, adapter, wanted = folders
    target = HFTarget(model=model, adapter=adapter, device="cpu")
    found = target.model(torch.tensor([PROMPTS[0]])).logits
    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    plain = HFTarget(model=model, device="cpu").model(torch.tensor([PROMPTS[0]])).logits
    assert not torch.allclose(plain, wanted, rtol=1e-2, atol=1e-2), "the adapter changes something"
    target.check()


def test_an_adapter_of_another_model_is_one_line(folders, build, tmp_path):
    _, adapter, _ = folders
    build("llama", hidden_size=64, intermediate_size=64).float().save_pretrained(tmp_path / "wider")
    with pytest.raises(WeightsError, match=r"the adapter .* does not fit the model: ") as caught:
        HFTarget(model=str(tmp_path / "wider"), adapter=adapter, device="cpu")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("how", "package"), [("gptq", "gptqmodel"), ("awq", "gptqmodel"), ("bitsandbytes", "bitsandbytes")]
)
def test_a_checkpoint_quantized_otherwise_is_one_true_sentence(how, package, folders, tmp_path):
    config = tmp_path / "model" / "config.json"
    written = json.loads(config.read_text())
    config.write_text(json.dumps(written | {"quantization_config": {"quant_method": how, "bits": 4}}))
    with pytest.raises(InputError, match=f"quantized by {how}, which needs the package {package}; or take the plain"):
        HFTarget(model=folders[0], device="cpu")
