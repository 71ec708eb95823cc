"""Taps, teaching, and what a drafter shares with its target."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import CompositionError, InputError
from tests.components.targets.models import PROMPTS, SHAPES


@pytest.mark.parametrize("family", ["llama", "gpt2", "opt", "gpt_neox", "gemma2"])
def test_committed_features_are_paired_with_the_token_that_follows(family, build, continuation, decode):
    model = build(family)
    expected = [continuation(model, prompt, 20) for prompt in PROMPTS]
    target = HFTarget.from_model(model)
    target.request(frozenset({"last", "layer.0", "layer.1"}))
    seen = []
    found = decode(target, PROMPTS, expected, seen=seen)
    for row, prompt in enumerate(PROMPTS):
        with torch.no_grad():
            plain = model(torch.tensor([prompt + found[row]]), output_hidden_states=True).hidden_states
        wanted = {"last": plain[-1][0], "layer.0": plain[1][0], "layer.1": plain[2][0]}
        position = 0
        for _, committed in seen:
            count = int(committed.count[row])
            tokens = committed.tokens[row, :count].tolist()
            assert tokens == (prompt + found[row])[position + 1 : position + 1 + count]
            assert not committed.tokens[row, count:].any()
            for tap, values in wanted.items():
                here = values[position : position + count]
                torch.testing.assert_close(committed.features[tap][row, :count], here, rtol=1e-5, atol=1e-6)
            position += count


def test_the_last_layer_s_tap_is_the_final_norm_s_input(build):
    model = build("llama")
    target = HFTarget.from_model(model)
    target.request(frozenset({"last", "layer.2"}))
    features = target.teach(torch.tensor([[1, 2, 3]]), torch.ones(1, 3).bool()).features
    torch.testing.assert_close(model.model.norm(features["layer.2"]), features["last"])


def test_an_unknown_tap_lists_the_ones_that_exist(build):
    with pytest.raises(CompositionError, match=r"no feature layer\.3; it has: last, layer\.0 \.\. layer\.2"):
        HFTarget.from_model(build("llama")).request(frozenset({"layer.3", "last"}))


@pytest.mark.parametrize("family", sorted(SHAPES))
def test_shared_head_and_embedding_are_the_model_s_own(family, build):
    model = build(family)
    target = HFTarget.from_model(model)
    target.request(frozenset({"last"}))
    tokens = torch.tensor([[3, 1, 4, 1, 5, 9]])
    lesson = target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool))
    torch.testing.assert_close(target.head(lesson.features["last"]), lesson.logits)
    captured = []
    layer = target.parts.layers[0]
    handle = layer.register_forward_pre_hook(
        lambda module, args, kwargs: captured.append(args[0] if args else kwargs["hidden_states"]),
        with_kwargs=True,
    )
    model(tokens)
    handle.remove()
    entry = captured[0]
    if family == "gpt2":
        entry = entry - model.transformer.wpe(torch.arange(6))
    elif family == "opt":
        entry = entry - model.model.decoder.embed_positions(None, position_ids=torch.arange(6))
    torch.testing.assert_close(target.embed(tokens), entry)


def test_gradients_reach_the_features_and_stop_at_the_target(build):
    model = build("gemma2")
    target = HFTarget.from_model(model)
    features = torch.randn(2, 32, dtype=torch.float64, requires_grad=True)
    (target.head(features) + target.embed(torch.tensor([1, 2])).sum()).sum().backward()
    assert features.grad is not None and features.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in model.parameters())


class Odd(LlamaForCausalLM):
    def forward(self, input_ids, position_ids=None, **kwargs):
        output = super().forward(input_ids, position_ids=position_ids, **kwargs)
        output.logits = output.logits**3
        return output


def test_a_head_that_no_rule_explains_is_refused(build):
    model = build("llama")
    model.__class__ = Odd
    with pytest.raises(CompositionError, match="LM head of llama cannot be shared"):
        HFTarget.from_model(model).head(torch.zeros(1, 32, dtype=torch.float64))


def test_teaching_is_the_plain_forward(build):
    model = build("mistral")
    target = HFTarget.from_model(model)
    target.request(frozenset({"last", "layer.0"}))
    tokens = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0]])
    mask = torch.tensor([[0, 1, 1, 1], [0, 1, 0, 0]]).bool()
    lesson = target.teach(tokens, mask)
    plain = model(tokens, output_hidden_states=True)
    torch.testing.assert_close(lesson.logits, plain.logits)
    torch.testing.assert_close(lesson.features["last"], plain.hidden_states[-1])
    torch.testing.assert_close(lesson.features["layer.0"], plain.hidden_states[1])
    torch.testing.assert_close(lesson.logits[1, :2], model(torch.tensor([[5, 6]])).logits[0])
    assert not lesson.logits.requires_grad
    assert lesson.mask is mask and lesson.tokens is tokens


def test_the_caller_s_model_stays_as_it_was(build, continuation, decode):
    model = build("qwen3")
    config = model.config.to_dict()
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    frozen = [parameter.requires_grad for parameter in model.parameters()]
    expected = [continuation(model, prompt, 8) for prompt in PROMPTS]
    target = HFTarget.from_model(model)
    target.request(frozenset({"last", "layer.1"}))
    decode(target, PROMPTS, expected)
    target.head(torch.zeros(1, 32, dtype=torch.float64))
    assert model.config.to_dict() == config
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == frozen
    for module in model.modules():
        assert not module._forward_hooks and not module._forward_pre_hooks
    assert [continuation(model, prompt, 8) for prompt in PROMPTS] == expected


def test_hooks_go_even_when_the_forward_fails(build):
    model = build("llama")
    target = HFTarget.from_model(model)
    target.request(frozenset({"last"}))
    with pytest.raises(IndexError):
        target.teach(torch.tensor([[999]]), torch.ones(1, 1).bool())
    assert not model.model._forward_hooks


def test_training_mode_is_refused(build):
    with pytest.raises(InputError, match="training mode"):
        HFTarget.from_model(build("llama").train()).teach(torch.tensor([[1]]), torch.ones(1, 1).bool())


def test_an_lm_head_that_is_left_out_reads_one_contiguous_place_a_text(build):
    model = build("llama")
    target = HFTarget.from_model(model)
    target.request(frozenset({"last"}))
    read = []
    model.lm_head.register_forward_pre_hook(lambda module, inputs: read.append(inputs[0]))
    tokens = torch.tensor([PROMPTS[0][:4]] * 3)
    for _ in range(2):  # the first time its head's rule is found out
        read.clear()
        target.teach(tokens, torch.ones_like(tokens, dtype=torch.bool))
    assert [(states.shape[:2], states.is_contiguous()) for states in read] == [((3, 1), True)], "or the head is copied"
