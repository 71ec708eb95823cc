"""Attention along texts by matrix products, held to PyTorch's own and to a literal sum."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as reference
from transformers import DynamicCache

from specframe.neural import DecoderLayer
from specframe.neural.llama import attend, visible_steps
from specframe.testing import tiny_target


def parts(steps: int, n: int = 6) -> list[torch.Tensor]:
    chance = torch.Generator().manual_seed(steps)
    shapes = [(2, 4, n, 8), (2, 2, steps * n, 8), (2, 2, steps * n, 8)]
    return [torch.randn(*shape, generator=chance, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_are_those_of_a_dense_mask(steps, masked):
    query, key, value = parts(steps)
    mask = visible_steps(6, steps, query.device)
    found, weights = attend(torch.nn.Identity(), query, key, value, mask if masked else None)
    wanted = reference(query, key, value, attn_mask=mask, enable_gqa=True).transpose(1, 2)
    assert weights is None
    assert torch.allclose(found, wanted, atol=1e-12)
    pull = torch.randn(found.shape, dtype=torch.float64)
    pairs = zip(
        *(torch.autograd.grad((made * pull).sum(), [query, key, value]) for made in (found, wanted)), strict=True
    )
    assert all(torch.allclose(one, other, atol=1e-12) for one, other in pairs)


def test_an_entry_sees_the_first_step_up_to_itself_and_its_own_of_later_ones():
    seen = visible_steps(4, 3, torch.device("cpu"))[0, 0]
    for entry in range(4):
        assert seen[entry].nonzero().flatten().tolist() == [*range(entry + 1), 4 + entry, 8 + entry]


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_a_layer_gives_the_same_with_and_without_gradients(kind):
    layer = DecoderLayer(tiny_target(kind).config).double()
    x = torch.randn(2, 5, layer.config.hidden_size, dtype=torch.float64)
    positions = torch.arange(5).expand(2, -1)

    def twice() -> torch.Tensor:
        cache = DynamicCache()
        return layer(layer(x, positions, None, cache), positions + 1, None, cache)

    found = twice()
    with torch.no_grad():
        wanted = twice()
    assert found.requires_grad
    assert torch.allclose(found, wanted, atol=1e-12)
    assert layer.config._attn_implementation == "sdpa"
