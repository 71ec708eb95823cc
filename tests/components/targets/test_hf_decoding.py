"""HFTarget's trees give token for token what the model's own greedy decoding gives."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM

from specframe.components.targets.hf import HFTarget
from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.types import Prompts, TokenTree, Verdict
from specframe.testing import admitted
from tests.components.targets.models import PROMPTS, SHAPES, batch

COUNT = 22


@pytest.mark.parametrize("family", sorted(SHAPES))
def test_trees_equal_generate_token_for_token(family, build, continuation, decode):
    model = build(family)
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    found = decode(HFTarget.from_model(model), PROMPTS, expected)
    assert [row[:COUNT] for row in found] == expected


@pytest.mark.parametrize("nodes", [1, 2, 16])
@pytest.mark.parametrize("prompts", [PROMPTS, PROMPTS[:1], (PROMPTS[0], [4, 3, 2, 1, 2])])
def test_every_tree_size_and_batch_equals_generate(nodes, prompts, build, continuation, decode):
    model = build("llama")
    expected = [continuation(model, prompt, COUNT) for prompt in prompts]
    seen = []
    found = decode(HFTarget.from_model(model), prompts, expected, nodes=nodes, seen=seen)
    assert [row[:COUNT] for row in found] == expected
    if nodes == 16:
        assert len(seen) < COUNT, "no draft was accepted, so compaction was not exercised"


def test_eager_attention_equals_generate(build, continuation, decode):
    model = build("llama", attn_implementation="eager")
    assert model.config._attn_implementation == "eager"
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    found = decode(HFTarget.from_model(model), PROMPTS, expected)
    assert [row[:COUNT] for row in found] == expected


class Untrimmed(LlamaForCausalLM):
    def forward(self, input_ids, attention_mask=None, position_ids=None, past_key_values=None, use_cache=None):
        return super().forward(input_ids, attention_mask, position_ids, past_key_values, use_cache=use_cache)


def test_a_model_that_always_gives_all_logits_will_do(build):
    model = build("llama")
    _, expected = admitted(HFTarget.from_model(model), batch(PROMPTS), 1)
    model.__class__ = Untrimmed
    _, scores = admitted(HFTarget.from_model(model), batch(PROMPTS), 1)
    torch.testing.assert_close(scores.logits, expected.logits)


def test_rows_can_be_dropped_and_reordered_midway(build, continuation, decode):
    model = build("qwen2")
    expected = [continuation(model, prompt, COUNT) for prompt in PROMPTS]
    found = decode(HFTarget.from_model(model), PROMPTS, expected, drop={0: [2, 0, 1], 3: [0, 2], 6: [1]})
    assert found[1][:COUNT] == expected[1]
    assert len(found[0]) < COUNT and found[0] == expected[0][: len(found[0])]
    assert len(found[2]) < COUNT and found[2] == expected[2][: len(found[2])]


def test_first_commit_is_the_shifted_prompt_with_its_features(build):
    model = build("llama")
    target = HFTarget.from_model(model)
    target.request(frozenset({"last"}))
    tree, scores = admitted(target, batch(PROMPTS), 4)
    assert tree.tokens[:, 0].tolist() == [9, 13, 27]
    assert scores.logits.shape == (3, 1, 50)
    bonus = torch.tensor([40, 41, 42])
    committed = target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(3).long(), bonus))
    assert committed.tokens.tolist() == [
        [6, 7, 8, 9, 40, 0, 0],
        [12, 13, 41, 0, 0, 0, 0],
        [22, 23, 24, 25, 26, 27, 42],
    ]
    assert committed.count.tolist() == [5, 3, 7]
    assert committed.root.tolist() == [40, 41, 42]
    assert committed.prompt is not None and committed.prompt.count.tolist() == [5, 3, 7]
    for row, prompt in enumerate(PROMPTS):
        alone = model.model(torch.tensor([prompt])).last_hidden_state[0]
        torch.testing.assert_close(committed.features["last"][row, : len(prompt)], alone)
        torch.testing.assert_close(scores.logits[row, 0], model.lm_head(alone[-1]))


def test_padding_nodes_do_not_disturb_the_others(build):
    model = build("llama")
    target = HFTarget.from_model(model)
    parent = torch.tensor([[-1, 0, 0, 1, 2, 4]])
    tokens = torch.tensor([[1, 2, 3, 4, 0, 0]])
    valid = torch.tensor([[True, True, True, True, False, False]])

    def score(count: int) -> torch.Tensor:
        tree, _ = admitted(target, batch(PROMPTS[:1]), 8)
        target.commit(tree, Verdict(tree.tokens[:, :0], torch.zeros(1).long(), tokens[:, 0]))
        part = (tokens[:, :count], parent[:, :count], valid[:, :count], torch.zeros(1, count).long())
        return target.score(TokenTree(*part, levels=3)).logits

    padded = score(6)
    assert padded.isfinite().all()
    torch.testing.assert_close(padded[:, :4], score(4))


def test_a_session_without_room_raises(build):
    target = HFTarget.from_model(build("llama"))
    with pytest.raises(InputError, match="call open first"):
        target.score(TokenTree.root_only(torch.tensor([1])))
    tree, _ = admitted(target, batch(PROMPTS), 1)
    with pytest.raises(InputError, match="not committed yet"):
        target.score(tree)
    verdict = Verdict(tree.tokens[:, :0], torch.zeros(3).long(), torch.tensor([1, 2, 3]))
    target.commit(tree, verdict)
    target.score(tree)
    target.commit(tree, verdict)
    with pytest.raises(InputError, match="open it with more room"):
        target.score(tree)


@pytest.mark.parametrize(
    ("prompts", "message"),
    [
        (Prompts(torch.tensor([[1, 50]]), torch.tensor([2])), "token 50, outside the vocabulary"),
        (Prompts(torch.tensor([[-1, 5]]), torch.tensor([2])), "token -1, outside the vocabulary"),
        (Prompts(torch.tensor([[1, 5]]), torch.tensor([0])), "0 tokens"),
    ],
)
def test_prompts_that_cannot_be_used_are_refused(prompts, message, build):
    with pytest.raises(InputError, match=message):
        admitted(HFTarget.from_model(build("llama")), prompts, 4)


def test_it_is_a_neural_target(build):
    target = HFTarget.from_model(build("gpt2"))
    assert isinstance(target, NeuralTarget)
    assert (target.vocab_size, target.context, target.dtype) == (50, 256, torch.float64)
