"""The queries that a target's memory shows, and the slots that KV selections choose by them."""

from __future__ import annotations

import pytest
import torch
from transformers.models.llama import modeling_llama

from specframe import CompositionError
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.kernel.layers import NEWEST_QUERIES, LayerChoice
from specframe_self.selections.chunks import KeyChunks
from specframe_self.selections.snapkv import SnapKV
from specframe_self.selections.speckv import SpecKV
from specframe_self.selections.verified import Verified
from tests.components.targets.models import accept, batch, random_tree
from tests.components.targets.test_layers import BROAD

LONG = ([7, 8, 9, 4, 5, 6, 7, 8, 9, 1, 2, 3, 7, 8], [1, 2, 3], [3, 1, 4, 1, 5, 9, 2, 6, 5])


def opened(target: HFTarget, kv_selection, rows=LONG):
    """A session of prompts after their first tokens, which the KV selection has seen; the roots, and those commits."""
    target.check_layers(LayerChoice.first(3, 3), kv_selection)
    target.open(len(rows), 96)
    kv_selection.open(len(rows), 96)
    tree, scores = target.admit(batch(rows))
    committed = target.commit(tree, accept(tree, scores.logits))
    kv_selection.commit(committed, target.memory())
    return committed.root


def literal_queries(target: HFTarget, text: list[int]) -> torch.Tensor:
    """The scaled queries of a whole text without a cache, [layers, heads, T, D], by the model's own modules."""
    found: list[torch.Tensor] = []
    handles = []
    for layer in target.model.model.layers:

        def look(module, inputs, named):
            shape = (*named["hidden_states"].shape[:-1], -1, module.head_dim)
            states = module.q_proj(named["hidden_states"]).view(shape).transpose(1, 2)
            cosine, sine = named["position_embeddings"]
            rotated = modeling_llama.apply_rotary_pos_emb(states, states, cosine, sine)[0]
            found.append(rotated[0] * module.scaling)

        handles.append(layer.self_attn.register_forward_pre_hook(look, with_kwargs=True))
    target.model(torch.tensor([text]), use_cache=False)
    for handle in handles:
        handle.remove()
    return torch.stack(found)


@pytest.mark.parametrize("kind", ["transformers", "native"])
@torch.no_grad()
def test_a_memory_shows_the_queries_of_what_was_committed(kind, build):
    target = HFTarget.from_model(build("llama", **BROAD).float())
    if kind == "native":
        target._take_native()
    kv_selection = SnapKV(budget=3, window=1, pool=1)
    root = opened(target, kv_selection)
    close = {"rtol": 1e-4, "atol": 1e-4}
    for row, prompt in enumerate(LONG):
        shown, wanted = target.memory().queries[:, row], literal_queries(target, prompt)
        torch.testing.assert_close(shown[:, :, -len(prompt) :], wanted, **close)
        assert not shown[:, :, : -len(prompt)].any()
    tree = random_tree(root, [[1, 2, 3]] * 3, 6, torch.Generator().manual_seed(4))
    verdict = accept(tree, target.score(tree).logits)
    committed = target.commit(tree, verdict)
    for row, prompt in enumerate(LONG):
        count = int(committed.count[row])
        text = [*prompt, int(root[row]), *committed.tokens[row, : count - 1].tolist()]
        wanted = literal_queries(target, text)[:, :, -count:]
        torch.testing.assert_close(target.memory().queries[:, row, :, -count:], wanted, **close)


@torch.no_grad()
def test_a_prompt_read_in_pieces_shows_the_same_queries(build):
    prompt = torch.randint(1, 50, (70,), generator=torch.Generator().manual_seed(1)).tolist()
    shown, model = [], build("llama")
    for pieces in (False, True):
        target = HFTarget.from_model(model)
        opened(target, SnapKV(budget=3, window=1, pool=1), [[1, 2]])
        target.open(1, 96)
        while pieces and target.read_ahead(prompt, 25) < len(prompt) - 1:
            pass
        tree, scores = target.admit(batch([prompt]))
        target.commit(tree, accept(tree, scores.logits))
        shown.append(target.memory().queries)
    assert shown[0].shape[3] == NEWEST_QUERIES
    torch.testing.assert_close(shown[0], shown[1], rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_chunks_are_those_that_a_slow_choice_finds(build):
    """Row by row, layer by layer, head by head; the newest tokens take the place of the chunks ranked last."""
    target = HFTarget.from_model(build("llama"))
    kv_selection = KeyChunks(budget=9, chunk=2, recent=2, every=3)
    opened(target, kv_selection)
    memory = target.memory()
    found = kv_selection.choose(memory).slots
    for row, count in enumerate(memory.counts):
        begin = max(0, count - 2) // 2 * 2
        fit = min((9 - (count - begin)) // 2, begin // 2)
        for layer in range(3):
            for head in range(2):
                asking = memory.queries[layer, row, 2 * head : 2 * head + 2, -1].sum(0)
                keys = memory.keys[layer, row, head]
                scores = {c: float(keys[2 * c : 2 * c + 2].mean(0) @ asking) for c in range(1, begin // 2)}
                best = [0, *sorted(scores, key=lambda c: -scores[c])][:fit]
                wanted = sorted(2 * c + i for c in best for i in range(2)) + list(range(begin, count))
                listed = found[layer, row, head].tolist()
                assert listed == wanted + [-1] * (len(listed) - len(wanted))


@torch.no_grad()
def test_snapkv_sees_what_the_prompts_end_attends_to(build):
    target = HFTarget.from_model(build("llama"))
    kv_selection = SnapKV(budget=6, window=2, pool=1)
    opened(target, kv_selection)
    memory = target.memory()
    found = kv_selection.choose(memory).slots
    count = memory.counts[0]
    for layer in range(3):
        for head in range(2):
            votes = torch.zeros(count)
            for asked in (count - 2, count - 1):
                for query in memory.queries[layer, 0, 2 * head : 2 * head + 2, asked - count]:
                    logits = memory.keys[layer, 0, head, : asked + 1] @ query
                    votes[: asked + 1] += logits.softmax(-1)
            best = votes[: count - 2].topk(4).indices.sort().values.tolist()
            assert found[layer, 0, head].tolist() == [*best, count - 2, count - 1]
    assert found[0, 1, 0].tolist()[:3] == [0, 1, 2], "a short prompt is seen as a whole"


def test_a_target_that_shows_no_queries_is_refused(build):
    target = HFTarget.from_model(build("llama"))
    target._taps._attention = dict.fromkeys(target._taps._attention)
    with pytest.raises(CompositionError, match="needs queries, which the target's attention does not show"):
        OwnLayers(kv_selection=KeyChunks(budget=4, chunk=1, recent=1, every=1)).bind(target)


@torch.no_grad()
def test_verified_sees_what_the_committed_tokens_attend_to(build):
    """After ragged prompts, and after a verification that accepts paths of several lengths."""
    target = HFTarget.from_model(build("llama"))
    kv_selection = Verified(budget=7, chunk=2, recent=3)
    root, asked = opened(target, kv_selection), [len(prompt) for prompt in LONG]
    for step in range(2):
        memory = target.memory()
        found = kv_selection.choose(memory).slots
        for row, count in enumerate(memory.counts):
            end = max(0, count - 3) // 2
            fit = min((7 - (count - 2 * end)) // 2, end)
            for layer in range(3):
                for head in range(2):
                    means = memory.keys[layer, row, head, : 2 * end].unflatten(0, (end, 2)).mean(1)
                    votes = torch.zeros(end, dtype=means.dtype)
                    for query in memory.queries[layer, row, 2 * head : 2 * head + 2, -asked[row] :].flatten(0, 1):
                        votes += (means @ query).softmax(0) if end else 0
                    best = [0, *[c for c in votes.argsort(descending=True).tolist() if c]][:fit]
                    wanted = sorted(2 * c + i for c in best for i in range(2)) + list(range(2 * end, count))
                    listed = found[layer, row, head].tolist()
                    assert listed == wanted + [-1] * (len(listed) - len(wanted))
        if step == 0:
            tree = random_tree(root, [[1, 2, 3]] * 3, 6, torch.Generator().manual_seed(4))
            committed = target.commit(tree, accept(tree, target.score(tree).logits))
            asked = committed.count.tolist()
            kv_selection.commit(committed, memory)


@torch.no_grad()
@pytest.mark.parametrize("prompts", [LONG[:1], LONG])
def test_speckv_sees_what_the_likely_answer_attends_to(prompts, build):
    """The answer, and its queries, are those of a slow reading on what the prompt's own queries chose."""
    target = HFTarget.from_model(build("llama"))
    drafter = OwnLayers(
        kv_selection=SpecKV(budget=40, lookahead=3, window=2, pool=1)
    )  # wide: the answer sees everything
    small = SpecKV(budget=6, lookahead=3, window=2, pool=1)
    drafter.bind(target)
    target.open(len(prompts), 96)
    for kv_selection in (drafter.kv_selection, small):
        kv_selection.open(len(prompts), 96)
    tree, scores = target.admit(batch(prompts))
    committed = target.commit(tree, accept(tree, scores.logits))
    memory = target.memory()
    before = memory.keys[:, 0, :, : memory.counts[0]].clone()
    small.commit(committed, memory)
    shown = []
    drafter.kv_selection.look_ahead = lambda queries, memory: shown.append(queries)
    drafter.commit(committed)
    small.look_ahead(shown[0], memory)
    assert torch.equal(before, memory.keys[:, 0, :, : memory.counts[0]]), "a lookahead writes no committed slot"
    found = small.choose(memory).slots
    for row, prompt in enumerate(prompts):
        text, count = [*prompt, int(committed.root[row])], len(prompt)
        for _ in range(2):
            text.append(int(target.model(torch.tensor([text])).logits[0, -1].argmax()))
        queries = literal_queries(target, text)[:, :, count - 2 :]  # two of the prompt, three ahead
        for layer in range(3):
            for head in range(2):
                votes = torch.zeros(count, dtype=queries.dtype)
                for place in range(queries.shape[2]):
                    for query in queries[layer, 2 * head : 2 * head + 2, place]:
                        keys = memory.keys[layer, row, head, : min(count, count - 2 + place + 1)]
                        votes[: len(keys)] = torch.maximum(votes[: len(keys)], (keys @ query).softmax(-1))
                best = votes[: max(0, count - 2)].topk(min(4, max(0, count - 2))).indices.sort().values.tolist()
                listed = [slot for slot in found[layer, row, head].tolist() if slot >= 0]
                assert listed == [*best, *range(max(0, count - 2), count)]
