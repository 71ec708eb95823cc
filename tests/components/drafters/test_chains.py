"""Drafters that promise `path_in_frontier` answer for several nodes of a path as if they were asked one by one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.components.drafters.mask_tokens import Masks
from specframe.components.drafters.model import ModelDrafter
from specframe.components.drafters.own_layers import OwnLayers
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.tiny import random_model, tiny_llama
from specframe.decoding.requests import as_prompts
from specframe.kernel.types import Frontier, Verdict
from specframe.testing import GrowingTree
from specframe_self.selections.window import SinkWindow

VOCAB = 11
PROMPTS = [[1, 2, 3, 4, 5], [7, 8], [3, 1, 4, 1, 5, 9, 2]]
DRAFTERS: dict[str, Callable[[], Any]] = {
    "model": lambda: ModelDrafter.from_model(tiny_llama(VOCAB, seed=2)),
    "some layers": lambda: OwnLayers(exit=2),
    "a KV selection": lambda: OwnLayers(kv_selection=SinkWindow(sinks=1, recent=2)),
    "a model that sees a part": lambda: ModelDrafter.from_model(
        tiny_llama(VOCAB, seed=2), kv_selection=SinkWindow(sinks=1, recent=2)
    ),
    "layers read together": lambda: ModelDrafter.from_model(random_model(vocab=VOCAB, layers=5, seed=2)).read_together(
        2
    ),
    "skipped parts": lambda: OwnLayers(skip={"attention": [1], "mlp": [0]}),
}


def begun(drafter: Any, *, read: bool = True) -> tuple[Any, GrowingTree]:
    """The drafter in a session of ragged rows, which has `read` its roots or not, and a tree of the roots."""
    target = HFTarget.from_model(random_model(vocab=VOCAB, layers=3, seed=1))
    target.open(len(PROMPTS), 64)
    drafter.bind(target)
    drafter.open(len(PROMPTS), 64)
    draft, scores = target.admit(as_prompts(PROMPTS))
    bonus = scores.logits[:, 0].argmax(-1)
    committed = target.commit(draft, Verdict(draft.tokens[:, :0], torch.zeros_like(bonus), bonus))
    drafter.commit(committed)
    grown = GrowingTree(committed.root, VOCAB, seed=3)
    if read:
        drafter.expand(grown.frontier([0]))
    return drafter, grown


def answered(drafter: Any, grown: GrowingTree, frontiers: list[list[int]]) -> Tensor:
    """The logits after the nodes of frontiers, one after the other: [B, nodes, V]."""
    found = [drafter.expand(Frontier(grown.tree, grown.frontier(nodes).nodes)).logits[:, :, 0] for nodes in frontiers]
    return torch.cat(found, 1)


@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_a_chain_of_four_in_one_frontier_is_four_frontiers(make: Callable[[], Any]) -> None:
    assert make().promise.path_in_frontier
    one, other = begun(make()), begun(make())
    for _, grown in (one, other):
        grown.descend(0, 4)
    path = [2, 4, 6, 8]
    together, apart = answered(*one, [path]), answered(*other, [[node] for node in path])
    assert torch.allclose(together, apart, rtol=0, atol=1e-10)
    assert not torch.allclose(together[:, 0], together[:, 1]), "the nodes must differ"


@pytest.mark.parametrize("make", DRAFTERS.values(), ids=DRAFTERS)
def test_a_first_frontier_may_go_on_after_the_root(make: Callable[[], Any]) -> None:
    """The committed tokens, the root and a chain are read in one forward pass, in ragged rows."""
    one, other = begun(make(), read=False), begun(make())
    for _, grown in (one, other):
        grown.descend(0, 4)
    together, apart = answered(*one, [[0, 2, 4], [6]]), answered(*other, [[2], [4], [6]])
    assert torch.allclose(together[:, 1:], apart, rtol=0, atol=1e-10)
    drafter, grown = begun(make(), read=False)
    assert torch.allclose(together[:, 0], answered(drafter, grown, [[0]])[:, 0], rtol=0, atol=1e-10)


def test_a_chain_that_goes_on_after_another_one_in_a_second_frontier() -> None:
    one, other = begun(DRAFTERS["model"]()), begun(DRAFTERS["model"]())
    for _, grown in (one, other):
        grown.descend(0, 4)
    together, apart = answered(*one, [[2, 4], [6, 8]]), answered(*other, [[2], [4], [6], [8]])
    assert torch.allclose(together, apart, rtol=0, atol=1e-10)


def test_with_masks_a_model_promises_none() -> None:
    """Its proposals all follow the root."""
    assert not ModelDrafter.from_model(tiny_llama(VOCAB, seed=2), masks=Masks(2, 1)).promise.path_in_frontier
