"""Models that cannot be a target are refused with the reason; the self-test finds those that slip through."""

from __future__ import annotations

import warnings

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    LlamaForCausalLM,
    MambaConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from specframe.components.targets import probe
from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import TokenTree, Verdict
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, batch


def test_state_space_models_are_refused():
    config = MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(CompositionError, match=r"recurrent state .*are off by 0\.\d+ of the logits' deviation"):
        HFTarget.from_model(AutoModelForCausalLM.from_config(config))


def test_models_without_position_ids_are_refused():
    config = BloomConfig(vocab_size=50, hidden_size=32, n_layer=2, n_head=4)
    with pytest.raises(CompositionError, match="takes no position ids"):
        HFTarget.from_model(AutoModelForCausalLM.from_config(config))


def test_encoder_decoder_models_are_refused():
    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4)
    with pytest.raises(CompositionError, match="encoder-decoder"):
        HFTarget.from_model(T5ForConditionalGeneration(config))


def test_attention_without_masks_is_refused(build):
    model = build("llama")
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(CompositionError, match="takes no tree mask"):
        HFTarget.from_model(model)


def test_a_window_is_refused_only_where_it_bites_and_layers_take_no_masks_of_their_own(build, monkeypatch):
    monkeypatch.setattr("specframe.components.targets.architectures.takes_masks", lambda *_: False)
    target = HFTarget.from_model(build("gemma2", sliding_window=16))
    admitted(target, batch(PROMPTS), 9)
    with pytest.raises(CompositionError, match="17 positions, more than 16, the sliding window"):
        admitted(target, batch(PROMPTS), 10)


def test_an_unused_window_is_no_obstacle(build):
    model = build("qwen2", sliding_window=16, use_sliding_window=False)
    admitted(HFTarget.from_model(model), batch(PROMPTS), 100)


def test_rotary_embeddings_that_change_with_the_length_are_refused_beyond_it(build):
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
    model = build("phi3", rope_parameters=rope, original_max_position_embeddings=32)
    target = HFTarget.from_model(model)
    admitted(target, batch(PROMPTS), 25)
    with pytest.raises(CompositionError, match="33 positions, more than 32, where its rotary embedding"):
        admitted(target, batch(PROMPTS), 26)


def test_the_context_is_a_limit_for_prompts(build):
    target = HFTarget.from_model(build("gpt2"))
    with pytest.raises(InputError, match="257 tokens, more than the model's context of 256"):
        admitted(target, batch([[5] * 257]), 1)


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_a_tree_may_reach_beyond_the_end_of_the_context(family, build):
    """Its nodes there get no meaningful scores, but those within the context do."""
    target = HFTarget.from_model(build(family))
    prompt = [5, 6, 7, 8] * 63 + [9, 10]  # 254 tokens: root and one node are left
    tree, _ = admitted(target, batch([prompt]), 8)
    none = torch.zeros(1, 0, dtype=torch.int64)
    target.commit(tree, Verdict(none, torch.tensor([0]), torch.tensor([11])))
    tokens = torch.tensor([[11, 12, 13, 14]])
    parent = torch.tensor([[-1, 0, 1, 2]])
    chain = TokenTree(tokens, parent, torch.ones(1, 4).bool(), torch.zeros(1, 4).long(), 3)
    logits = target.score(chain).logits
    plain = target.model(torch.tensor([[*prompt, 11, 12]])).logits[0, -2:]
    assert torch.allclose(logits[0, :2], plain, atol=1e-9)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2", "opt"])
def test_the_self_test_passes_and_leaves_a_session_alone(family, build):
    target = HFTarget.from_model(build(family))
    admitted(target, batch(PROMPTS), 8)
    running = target._state
    target.check()
    assert target._state is running


class Maskless(LlamaForCausalLM):
    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        if attention_mask is not None:
            attention_mask = torch.zeros_like(attention_mask)
        return super().forward(input_ids, attention_mask, position_ids, **kwargs)


class Positionless(LlamaForCausalLM):
    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        return super().forward(input_ids, attention_mask, **kwargs)


class Bidirectional(LlamaForCausalLM):
    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        length = input_ids.shape[1]
        if attention_mask is None:
            attention_mask = torch.zeros(len(input_ids), 1, length, length, dtype=self.dtype)
        return super().forward(input_ids, attention_mask, position_ids, **kwargs)


class Crossing(LlamaForCausalLM):
    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        out = super().forward(input_ids, attention_mask, position_ids, **kwargs)
        out.logits = out.logits + out.logits.mean(0)
        return out


class Failing(LlamaForCausalLM):
    def forward(self, input_ids, attention_mask=None, position_ids=None, **kwargs):
        if attention_mask is not None:
            raise RuntimeError("The size of tensor a must match")
        return super().forward(input_ids, attention_mask, position_ids, **kwargs)


@pytest.mark.parametrize(
    ("broken", "fault"),
    [
        (Maskless, "does not take the mask or the positions of a tree"),
        (Positionless, "does not take the mask or the positions of a tree"),
        (Bidirectional, "sees the tokens that come after a position"),
        (Crossing, "the rows of a batch"),
        (Failing, "or a tree, follow a cache .The size of tensor a must match"),
    ],
)
def test_a_model_that_does_not_score_trees_is_refused_when_it_is_met(broken, fault, build):
    model = build("llama")
    model.__class__ = broken
    with pytest.raises(CompositionError, match=f"llama cannot be a target, it .*: .*{fault}"):
        HFTarget.from_model(model)


def test_a_kind_of_model_is_checked_once(build, monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "cache_folder", lambda: tmp_path)
    checked = []
    find = probe.find_fault
    monkeypatch.setattr(probe, "find_fault", lambda target: checked.append(target) or find(target))
    for _ in range(2):
        HFTarget.from_model(build("llama"))
    assert len(checked) == 1
    HFTarget.from_model(build("llama", num_hidden_layers=2))
    HFTarget.from_model(build("llama").float())
    assert len(checked) == 3


def test_a_failed_check_is_not_remembered(build, monkeypatch, tmp_path):
    monkeypatch.setattr(probe, "cache_folder", lambda: tmp_path)
    model = build("llama")
    model.__class__ = Maskless
    for _ in range(2):
        with pytest.raises(CompositionError, match="does not take the mask"):
            HFTarget.from_model(model)


def test_a_cache_that_cannot_be_written_is_no_obstacle(build, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(probe, "cache_folder", lambda: tmp_path / "file")
    HFTarget.from_model(build("llama"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma2"])
def test_half_precision_passes(family, dtype, build):
    HFTarget.from_model(build(family).to(dtype)).check()


def dynamic(model):
    """The same in float32 with linear layers in 8 bits, activations rounded by one scale for a whole batch."""
    with warnings.catch_warnings(action="ignore"):
        return torch.ao.quantization.quantize_dynamic(model.float(), {torch.nn.Linear}, dtype=torch.qint8)


class BatchScale(torch.nn.Linear):
    """A linear layer that rounds its input to 255 steps of one scale for the batch, or for each token."""

    alone = False

    def forward(self, input):
        size = input.abs().amax(-1, keepdim=True) if self.alone else input.abs().amax()
        step = size.clamp(min=1e-9) / 127
        return super().forward((input / step).round() * step)


class TokenScale(BatchScale):
    alone = True


def rounding(model, kind):
    for module in model.modules():
        if type(module) is torch.nn.Linear and module is not model.lm_head:
            module.__class__ = kind
    return model


NEIGHBOURS = r"the output of model\.layers\.0\.self_attn\.q_proj \(.*\) for a row depends on the rows next to it"


def test_a_model_whose_activation_scales_depend_on_neighbours_is_refused_after_the_same_unrounded(build):
    HFTarget.from_model(build("llama").float())
    model = dynamic(build("llama"))
    with pytest.raises(CompositionError, match=f"{NEIGHBOURS}, as it does where activations .* a scale for each token"):
        HFTarget.from_model(model)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_such_scales_are_found_in_every_dtype_and_scales_for_each_token_are_accepted(dtype, build):
    with pytest.raises(CompositionError, match=NEIGHBOURS):
        HFTarget.from_model(rounding(build("llama").to(dtype), BatchScale))
    assert probe.find_mixing(HFTarget.from_model(build("llama").to(dtype))) is None
    target = HFTarget.from_model(build("llama").to(dtype))
    rounding(target.model, TokenScale)
    assert probe.find_mixing(target) is None


def test_the_kind_of_a_model_includes_its_modules_and_weights(build):
    target = HFTarget.from_model(build("llama"))
    plain = target.fingerprint()
    rounding(target.model, TokenScale)
    assert target.fingerprint() != plain
