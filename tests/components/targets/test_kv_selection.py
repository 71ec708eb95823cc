"""Drafts on a part of the committed tokens: what they write is scratch, and all tokens are no part."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from specframe.components.targets.hf import HFTarget
from specframe.kernel.layers import ChosenSlots, CommittedMemory, LayerChoice
from tests.components.targets.models import PROMPTS, accept, batch, random_tree
from tests.components.targets.test_layers import BROAD, stored

ALL = LayerChoice.first(3, 3)
FAMILIES = ["llama", "qwen3", "gemma", "gpt2", "gpt_neox"]


def random_slots(memory: CommittedMemory, lists: tuple[int, int], budget: int, noise: torch.Generator) -> ChosenSlots:
    """Random lists, ascending, of `budget` slots or all that a row has, for so many layers and heads."""
    layers, heads = lists
    slots = torch.full((layers, len(memory.counts), heads, budget), -1)
    for layer in range(layers):
        for row, count in enumerate(memory.counts):
            for head in range(heads):
                some = torch.randperm(count, generator=noise)[:budget].sort().values
                slots[layer, row, head, : len(some)] = some
    return ChosenSlots(slots)


def native(build, kind: str) -> HFTarget:
    kind, _, cache = kind.partition(" cache ")
    model = build("llama", **BROAD)
    target = HFTarget.from_model(model.bfloat16() if kind == "native" else model.float())
    target.cache = cache or None
    if kind == "native":
        target._take_native()
    else:
        target._quantize(kind)
    return target


def sessions(*targets: HFTarget, rows=PROMPTS) -> Tensor:
    """Each in a session of the prompts; their roots."""
    for target in targets:
        target.open(len(rows), 96)
        tree, scores = target.admit(batch(rows))
        root = target.commit(tree, accept(tree, scores.logits)).root
    return root


def drafts(target: HFTarget, tree, slots: ChosenSlots | None, step: int = 3, chosen: LayerChoice = ALL) -> Tensor:
    """The states after the chosen layers, or all, at the tree's nodes, a few at a time."""
    found = [
        target.run_layers(chosen, tree, torch.arange(start, start + step).expand(len(tree.tokens), -1), slots)["last"]
        for start in range(0, tree.tokens.shape[1], step)
    ]
    return torch.cat(found, 1)


def cycles(target: HFTarget, fresh: HFTarget, lists: tuple[int, int] | None, chosen: LayerChoice = ALL) -> None:
    """`target` drafts with KV selections of one to four slots, or of all; `fresh` does not; logits, features, keys and
    values are the same to the last bit, while rows join and leave."""
    noise, taps = torch.Generator().manual_seed(3), frozenset({"last", "layer.1"})
    for one in (target, fresh):
        one.request(taps)
    root = sessions(target, fresh)
    for cycle, count in enumerate((9, 6, 12, 6, 3)):
        tree = random_tree(root, [[1, 2, 3]] * len(root), count, noise)
        slots = None if lists is None else random_slots(target.memory(), lists, 1 + cycle % 4, noise)
        drafts(target, tree, slots, chosen=chosen)
        scores, wanted = target.score(tree), fresh.score(tree)
        assert torch.equal(scores.logits, wanted.logits)
        assert all(torch.equal(scores.features[tap], wanted.features[tap]) for tap in taps)
        root = target.commit(tree, accept(tree, scores.logits)).root
        fresh.commit(tree, accept(tree, wanted.logits))
        for mine, theirs in zip(stored(target), stored(fresh), strict=True):
            assert all(torch.equal(found, right) for found, right in zip(mine, theirs, strict=True))
        if cycle == 1:
            kept = torch.tensor([2, 0])
            for one in (target, fresh):
                one.keep(kept)
            root = root[kept]
        if cycle == 2:
            for one in (target, fresh):
                first, scores = one.admit(batch([[31, 32]]))
                new = one.commit(first, accept(first, scores.logits)).root
            root = torch.cat([root, new])


@pytest.mark.parametrize("lists", [(1, 1), (3, 2)], ids=["one list", "lists of heads"])
@pytest.mark.parametrize("kind", ["native", "int4", "int8", "int4 cache bfloat16"])
@torch.no_grad()
def test_what_a_draft_writes_is_scratch(kind, lists, build):
    target = native(build, kind)
    cycles(target, target.sibling(), lists)


@pytest.mark.parametrize("lists", [None, (1, 1), (3, 2)], ids=["all slots", "one list", "lists of heads"])
@pytest.mark.parametrize("layers", [2, 3])
@pytest.mark.parametrize("kind", ["native", "native cache bfloat16"])
@torch.no_grad()
def test_what_a_copy_in_few_bits_writes_is_scratch(kind, layers, lists, build):
    """Verification does not take over what it computed, as it does from the layers themselves."""
    target, chosen = native(build, kind), replace(LayerChoice.first(layers, 3), quantize="int4")
    target.check_layers(chosen)
    cycles(target, target.sibling(), lists, chosen)


@pytest.mark.sampled
@pytest.mark.parametrize("lists", [(1, 1), (3, 0)], ids=["one list", "lists of heads"])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_what_a_draft_writes_is_scratch_in_transformers_layers(family, lists, build):
    model = build(family)
    heads = getattr(model.config, "num_key_value_heads", model.config.num_attention_heads)
    cycles(HFTarget.from_model(model), HFTarget.from_model(model), (lists[0], (lists[1] and heads) or 1))


def everything(memory: CommittedMemory, lists: tuple[int, int]) -> ChosenSlots:
    noise = torch.Generator().manual_seed(0)
    return random_slots(memory, lists, max(memory.counts), noise)


@pytest.mark.parametrize("lists", [(1, 1), (3, 2)], ids=["one list", "lists of heads"])
@pytest.mark.parametrize("kind", ["native", "int4", "int4 cache bfloat16", "transformers"])
@torch.no_grad()
def test_a_kv_selection_of_all_slots_is_none(kind, lists, build):
    """In native passes to the bit, which add up in the order of the slots."""
    target = HFTarget.from_model(build("llama")) if kind == "transformers" else native(build, kind)
    root = sessions(target)
    tree = random_tree(root, [[1, 2, 3]] * 3, 9, torch.Generator().manual_seed(4))
    wanted = drafts(target, tree, None)
    found = drafts(target, tree, everything(target.memory(), lists))
    if kind == "transformers":
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    else:
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("lists", [(1, 1), (3, 2)], ids=["one list", "lists of heads"])
@torch.no_grad()
def test_native_passes_see_what_transformers_layers_see(lists, build):
    model = build("llama", **BROAD).bfloat16()
    target, slow = HFTarget.from_model(model), HFTarget.from_model(model)
    target._take_native()
    root = sessions(target, slow)
    tree = random_tree(root, [[1, 2, 3]] * 3, 9, torch.Generator().manual_seed(4))
    slots = random_slots(target.memory(), lists, 2, torch.Generator().manual_seed(5))
    found, wanted = (drafts(one, tree, slots).float() for one in (target, slow))
    assert (found - wanted).norm() < 2e-2 * wanted.norm()
    others = drafts(target, tree, random_slots(target.memory(), lists, 2, torch.Generator().manual_seed(6))).float()
    assert (found - others).norm() > 0.1 * wanted.norm(), "the slots matter"


@torch.no_grad()
def test_a_head_sees_its_own_list_alone(build):
    """Keys and values that no list has can be anything."""
    target = HFTarget.from_model(build("llama"))
    root = sessions(target)
    tree = random_tree(root, [[1, 2, 3]] * 3, 6, torch.Generator().manual_seed(4))
    memory = target.memory()
    slots = random_slots(memory, (3, 2), 2, torch.Generator().manual_seed(5))
    wanted = drafts(target, tree, slots)
    for layer in range(3):
        for row, count in enumerate(memory.counts):
            for head in range(2):
                others = [slot for slot in range(count) if slot not in slots.slots[layer, row, head]]
                memory.keys[layer, row, head, others] += 7
                memory.values[layer, row, head, others] -= 7
    assert torch.equal(drafts(target, tree, slots), wanted)
    memory.values[1, 0, 1, slots.slots[1, 0, 1, 0]] += 7
    assert not torch.equal(drafts(target, tree, slots)[0], wanted[0])


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        (torch.tensor([[[[0, 99]]]]), "listed slots are from"),
        (torch.zeros(1, 1, 1, 2, dtype=torch.int32), "int64"),
        (torch.zeros(2, 1, 1, 2, dtype=torch.int64), "for each layer and head"),
    ],
)
@torch.no_grad()
def test_native_passes_refuse_other_lists(slots, words, build):
    target = native(build, "native")
    root = sessions(target, rows=PROMPTS[:1])
    tree = random_tree(root, [[1]], 3, torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match=words):
        drafts(target, tree, ChosenSlots(slots))
