"""The most probable columns: native code against PyTorch."""

import pytest
import torch

from specframe.native.argmax import likely, rank
from specframe.native.build import load_native


@pytest.mark.parametrize("width", [1, 5, 16, 127, 128, 129, 4096, 49_152])
@pytest.mark.parametrize("count", [1, 4, 10])
def test_native_code_ranks_as_pytorch_does(width, count):
    logits = 5 * torch.randn(2, 3, width, generator=torch.Generator().manual_seed(width))
    values, columns = rank(logits, min(count, width))
    best = logits.log_softmax(-1).topk(min(count, width))
    assert torch.equal(columns, best.indices)
    torch.testing.assert_close(values, best.values, atol=2e-6, rtol=2e-6)


def test_of_equal_columns_the_earlier_comes_first():
    _, columns = rank(torch.zeros(2, 300), 5)
    assert torch.equal(columns, torch.arange(5).expand(2, -1))


def test_columns_without_probability_come_last():
    logits = torch.full((1, 200), -torch.inf)
    logits[0, [150, 7]] = torch.tensor([2.0, 1.0])
    values, columns = rank(logits, 4)
    assert columns[0, :2].tolist() == [150, 7]
    torch.testing.assert_close(values[0].exp().sum(), torch.tensor(1.0))
    assert values[0, 2:].tolist() == [-torch.inf, -torch.inf]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_other_logits_are_ranked_by_pytorch(dtype):
    load_native()
    logits = torch.randn(3, 2, 40, generator=torch.Generator().manual_seed(1)).to(dtype)
    for given in (logits, logits[..., ::2]):
        values, columns = likely(given, 3)
        exact = given.double().log_softmax(-1).topk(3)
        assert values.dtype == torch.promote_types(dtype, torch.float32)
        assert torch.equal(given.gather(-1, columns), given.gather(-1, exact.indices))
        torch.testing.assert_close(values.double(), exact.values, atol=1e-6, rtol=1e-6)
