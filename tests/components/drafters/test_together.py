"""Layers of a drafting model in groups that get one input."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from specframe.components.drafters.model import ModelDrafter
from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.components.trees.fixed import Chain, Fixed
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.types import Committed, Context, Draw, Expand, Frontier, TokenTree
from specframe.testing import audit, check_drafter
from tests.components.sessions import CONTEXT, first, later

LAYERS = 6


def model(layers: int = LAYERS) -> Any:
    return random_model(vocab=3, seed=7, layers=layers)


def drafter(together: int, *, mlp: bool = False) -> ModelDrafter:
    return ModelDrafter.from_model(model()).read_together(together, mlp)


def logits_of(drafter: ModelDrafter) -> Tensor:
    """The logits of a tree's nodes after two commits, [B, F, V]."""
    drafter.bind(TableTarget(vocab=3))
    drafter.open(2, 60)
    drafter.commit(first([[0, 1, 2, 0], [1, 2]]))
    drafter.propose(torch.tensor([0, 2]), Chain(depth=2), CONTEXT)
    drafter.commit(later([[1, 1], [0]]))
    found: list[Tensor] = []

    def watched(frontier: Frontier) -> Any:
        found.append(drafter.expand(frontier).logits[:, :, 0])
        return replace(drafter.expand(frontier))

    Fixed(widths=[2, 2, 1]).grow(watched, torch.tensor([1, 0]), CONTEXT)
    return torch.cat(found, 1)


def test_groups_of_one_are_the_model_itself() -> None:
    assert torch.equal(logits_of(drafter(1)), logits_of(ModelDrafter.from_model(model())))


@pytest.mark.parametrize("together", [2, 3, 9])
def test_what_was_committed_is_read_exactly(together: int) -> None:
    exact, fuzzy = logits_of(drafter(1)), logits_of(drafter(together))
    assert torch.equal(exact[:, 0], fuzzy[:, 0])
    assert not torch.allclose(exact[:, 1:], fuzzy[:, 1:])


def grouped_logits(made: Any, together: int, *, mlp: bool) -> Tensor:
    """The formula, layer by layer: the logits [V] after token 0, which follows [0, 1, 2] as a draft's node."""
    reader, inputs = HFTarget.from_model(made), {}
    hooks = [
        layer.register_forward_pre_hook(lambda _, given, index=index: inputs.update({index: given[0]}))
        for index, layer in enumerate(made.model.layers)
    ]
    made(torch.tensor([[0, 1, 2]]))
    for hook in hooks:
        hook.remove()
    rotary = made.model.rotary_emb(inputs[0], torch.arange(4)[None])
    mask = torch.full((4, 4), -torch.inf, dtype=inputs[0].dtype).triu(1)[None, None]

    def attended(index: int, state: Tensor) -> Tensor:
        layer, whole = made.model.layers[index], torch.cat([inputs[index], state], 1)
        return layer.self_attn(layer.input_layernorm(whole), rotary, mask)[0][:, 3:]

    def transformed(index: int, state: Tensor) -> Tensor:
        layer = made.model.layers[index]
        return layer.mlp(layer.post_attention_layernorm(state))

    state = reader.embed(torch.tensor([[0]]))
    for group in [
        [0],
        *[range(1, LAYERS - 1)[at : at + together] for at in range(0, LAYERS - 2, together)],
        [LAYERS - 1],
    ]:
        read, added = state, [attended(index, state) for index in group]
        for index, attention in zip(group, added, strict=True):
            if mlp:
                state = state + attention + transformed(index, read + attention)
            else:
                state = state + attention
                state = state + transformed(index, state)
    return made.lm_head(made.model.norm(state))[0, 0]


@pytest.mark.parametrize("mlp", [False, True])
@pytest.mark.parametrize("together", [2, 3])
def test_a_draft_is_read_in_groups_of_layers(together: int, mlp: bool) -> None:
    made, asked = model(), torch.tensor([[0, 1, 2, 0]])
    found = ModelDrafter.from_model(made).read_together(together, mlp)
    found.bind(TableTarget(vocab=3))
    found.open(1, 40)
    found.commit(first([asked[0, :3].tolist()]))
    draft = TokenTree(
        asked[:, 2:], torch.tensor([[-1, 0]]), torch.ones(1, 2).bool(), torch.zeros(1, 2).long(), levels=1
    )
    found.expand(Frontier(TokenTree.root_only(asked[:, 2]), torch.tensor([[0]])))
    logits = found.expand(Frontier(draft, torch.tensor([[1]]))).logits[0, 0, 0]
    torch.testing.assert_close(logits, grouped_logits(made, together, mlp=mlp), rtol=1e-9, atol=1e-9)


def test_only_attentions_together_are_nearer_to_the_model() -> None:
    """The paper's reason for MLPs in order (Table 5), on a random model whose layers all add something."""
    exact = logits_of(drafter(1))[:, 1:]
    by_attention, by_layer = (logits_of(drafter(4, mlp=mlp))[:, 1:] for mlp in (False, True))
    assert (by_attention - exact).square().mean() < (by_layer - exact).square().mean()


def test_a_small_form_has_a_whole_group() -> None:
    small = drafter(3).untrained(3)
    assert not torch.allclose(logits_of(small)[:, 1:], logits_of(small.read_together(1))[:, 1:])


@pytest.mark.parametrize("together", [2, 3])
def test_the_distribution_of_all_output(together: int) -> None:
    check_drafter(lambda: drafter(together))


class Exact(Chain):
    """It draws from the approximation, and records the distribution of the exact model."""

    twin: Lying

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        tree = super().grow(expand, root, context)
        exact, laws = self.twin.exact, []
        nodes = torch.zeros(len(root), 1, dtype=torch.int64)
        for level in range(self.depth):
            so_far = TokenTree.root_only(root) if level == 0 else tree
            found = exact.expand(Frontier(so_far, nodes + level)).logits[:, :, 0]
            laws.append(context.sampling.law(found, tree, nodes + level))
        return replace(tree, q=torch.cat(laws, 1))


class Lying:
    """A drafter of groups, next to the same model read exactly."""

    def __init__(self, together: int) -> None:
        self.fuzzy, self.exact = drafter(together), drafter(1)
        self.taps, self.promise = self.fuzzy.taps, self.fuzzy.promise

    def bind(self, target: Any) -> None:
        self.fuzzy.bind(target)
        self.exact.bind(target)

    def open(self, slots: int, room: int) -> None:
        self.fuzzy.open(slots, room)
        self.exact.open(slots, room)

    def propose(self, root: Tensor, tree: Any, context: Context) -> TokenTree:
        tree.twin = self
        return self.fuzzy.propose(root, tree, context)

    def commit(self, committed: Committed) -> None:
        self.fuzzy.commit(committed)
        self.exact.commit(committed)

    def keep(self, rows: Tensor) -> None:
        self.fuzzy.keep(rows)
        self.exact.keep(rows)


@pytest.mark.parametrize("together", [1, 2, 3])
def test_control_exact_logits_recorded_for_draws_of_the_approximation(together: int) -> None:
    found = audit(lambda: Lying(together), Exact(depth=2, draw=Draw.IID))
    assert found.passed == (together == 1)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1, and 1 with masks or a head, not 0"):
        ModelDrafter(model="zoo://talk-7m", together=0)
    with pytest.raises(InputError, match="at least 1, and 1 with masks or a head, not 2"):
        ModelDrafter(model="zoo://talk-7m", masks=2, together=2)
    with pytest.raises(CompositionError, match="leave out masks, head, together, KV selection or exits"):
        drafter(2).exit_after([1])
