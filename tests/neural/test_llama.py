"""The modules of Llama's family have transformers' weights, gradients and results, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, DynamicCache

from specframe.neural.llama import Decoder, is_llama

ROPES: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 2.0, "original_max_position_embeddings": 32},
}
FORMS = [
    *(("llama", {"rope_parameters": {"rope_type": kind, "rope_theta": 5e3, **more}}) for kind, more in ROPES.items()),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"head_dim": 16}),
    ("mistral", {}),
    ("qwen2", {}),
    ("qwen3", {}),
    ("qwen3", {"attention_bias": True, "head_dim": 16}),
]
ALL = torch.ones(9, 9, dtype=torch.bool).tril()[None, None]


def config(kind: str, **more: Any) -> Any:
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"num_hidden_layers": 2, "vocab_size": 11, "max_position_embeddings": 64}
    return AutoConfig.for_model(kind, **sizes, pad_token_id=None, bos_token_id=None, eos_token_id=None, **more)


@pytest.mark.parametrize(("kind", "more"), FORMS)
def test_new_weights_and_the_draws_after_them_are_transformers_own(kind: str, more: dict[str, Any]) -> None:
    found = config(kind, **more)
    torch.manual_seed(3)
    theirs, following = AutoModel.from_config(found, dtype=torch.float32).state_dict(), torch.rand(4)
    torch.manual_seed(3)
    own, after = Decoder.initialised(found).state_dict(), torch.rand(4)
    assert is_llama(found) and list(own) == list(theirs)
    assert all(torch.equal(own[name], theirs[name]) for name in own) and torch.equal(following, after)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("kind", "more"), FORMS)
@pytest.mark.parametrize("mask", [None, ALL], ids=["causal", "masked"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_layer_s_results_and_gradients_are_transformers_own(
    kind: str, more: dict[str, Any], dtype: torch.dtype, mask: torch.Tensor | None, implementation: str
) -> None:
    theirs: Any = AutoModel.from_config(config(kind, **more), dtype=dtype, attn_implementation=implementation)
    own = Decoder(theirs.config)
    own.load_state_dict(theirs.state_dict(), assign=True)  # no cast: that would round the rotary frequencies, too
    states, places = torch.randn(2, 9, 32, dtype=dtype), torch.arange(9).expand(2, 9)
    if mask is not None and implementation == "eager":
        mask = torch.zeros(mask.shape, dtype=dtype).masked_fill(~mask, -torch.inf)
    found = []
    for model in (theirs, own):
        cache, inputs = DynamicCache(), states.clone().requires_grad_()
        turns = model.rotary_emb(inputs, places)
        options: dict[str, Any] = {"position_ids": places, "position_embeddings": turns, "attention_mask": mask}
        output = model.layers[1](model.layers[0](inputs, cache=cache, **options), cache=cache, **options)
        output.float().square().sum().backward()
        found.append((output, inputs.grad, *turns, *(weight.grad for weight in model.layers.parameters())))
    assert len(found[0]) == len(found[1])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("granite", {}),
        ("llama", {"hidden_act": "gelu"}),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    ],
)
def test_another_kind_is_transformers_own(kind: str, more: dict[str, Any]) -> None:
    assert not is_llama(config(kind, **more))
