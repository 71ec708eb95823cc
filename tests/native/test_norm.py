"""The native norm gives Llama's own numbers: in float32 up to rounding, in bfloat16 rounded in the same places."""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from specframe.native.modules import NativeNorm


def both(dtype, width=96):
    """The native norm and transformers', and rows of very different sizes."""
    noise = torch.Generator().manual_seed(1)
    norm = LlamaRMSNorm(width, eps=1e-5)
    norm.weight.data = 1 + torch.randn(width, generator=noise)
    x = torch.randn(7, 3, width, generator=noise) * torch.logspace(-4, 3, 7)[:, None, None]
    return NativeNorm(norm.weight.to(dtype), 1e-5), norm.to(dtype), x.to(dtype)


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-6), (torch.bfloat16, 0.0)])
def test_the_native_norm_is_llamas(dtype, close):
    native, norm, x = both(dtype)
    found, wanted = native(x), norm(x)
    assert found.dtype == dtype
    off = ((found - wanted).abs() > close * wanted.abs()).float().mean()
    assert off < (0.002 if close == 0 else 1e-9)  # a sum in another order moves few numbers to a neighbour


def test_with_gradients_it_is_the_same_norm():
    native, norm, x = both(torch.float32)
    torch.testing.assert_close(native(x.requires_grad_()), norm(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_several_norms_side_by_side_are_each_their_own(dtype):
    noise = torch.Generator().manual_seed(2)
    weights = 1 + torch.randn(3, 64, generator=noise)
    x = (torch.randn(2, 5, 192, generator=noise) * 10).to(dtype)
    found = NativeNorm(weights.to(dtype), 1e-5)(x)
    parts = [NativeNorm(weight.to(dtype), 1e-5)(part) for weight, part in zip(weights, x.chunk(3, -1), strict=True)]
    assert torch.equal(found, torch.cat(parts, -1))
    with_gradients = NativeNorm(weights.to(dtype), 1e-5)(x.clone().requires_grad_())
    torch.testing.assert_close(with_gradients.detach(), found, rtol=0.02, atol=1e-6)
