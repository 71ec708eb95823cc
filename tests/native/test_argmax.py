"""The likeliest token by a copy in 8 bits: the head's own largest logit, bit for bit, whatever the rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from specframe.native.argmax import BoundedHead, can_bound
from specframe.native.blocks import Floats, round_to_blocks
from specframe.native.linear import QuantizedLinear
from specframe.sampling.laws import first_argmax

DTYPES = [torch.bfloat16, torch.float32]


def made(weight: torch.Tensor) -> tuple[QuantizedLinear, BoundedHead]:
    head = QuantizedLinear(Floats(weight))
    assert can_bound(head)
    return head, BoundedHead(head)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("outputs", "inputs"), [(5000, 576), (50, 64), (16, 32), (1, 32), (17_000, 64)])
def test_it_is_the_first_largest_logit(dtype, threads, outputs, inputs):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        head, bounded = made(noise(outputs, inputs).to(dtype))
        for rows in (1, 2, 9, 12, 13, 40):
            states = noise(2, rows, inputs, seed=rows).to(dtype)
            assert torch.equal(bounded.argmax(states), first_argmax(head.product(states)))
    finally:
        torch.set_num_threads(before)


@given(
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from(DTYPES),
    outputs=st.integers(1, 400),
    blocks=st.integers(1, 5),
    near=st.sampled_from([0.0, 1e-7, 1e-3, 1.0]),
    spread=st.sampled_from([0.0, 2.0, 6.0]),
)
def test_of_outputs_that_are_nearly_alike_the_largest_is_found(seed, dtype, outputs, blocks, near, spread):
    """Rows of the weight are one row and a little noise, some columns of it and of the states many times the others."""
    inputs = 32 * blocks
    scale = torch.exp(spread * noise(inputs, seed=seed + 1))
    weight = ((noise(1, inputs, seed=seed) + near * noise(outputs, inputs, seed=seed + 2)) * scale).to(dtype)
    if weight.abs().amax() > 1e3:
        weight = weight / weight.abs().amax()
    head, bounded = made(weight)
    states = (noise(7, inputs, seed=seed + 3) * torch.exp(spread * noise(inputs, seed=seed + 4))).to(dtype)
    assert torch.equal(bounded.argmax(states), first_argmax(head.product(states)))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_copy_alone_would_be_wrong(dtype):
    weight = (noise(1, 576) + 0.02 * noise(3000, 576, seed=1)).to(dtype)
    head, bounded = made(weight)
    states = noise(64, 576, seed=2).to(dtype)
    exact = first_argmax(head.product(states))
    assert (first_argmax(bounded.copy.product(states)) != exact).any()
    assert torch.equal(bounded.argmax(states), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_errors_keep_to_their_bounds(dtype):
    """The bounds hold for a weight whose blocks differ by a factor of a million, and by far not with room to spare."""
    scale = 10.0 ** (torch.arange(18) % 7 - 4).repeat_interleave(32)
    for weight in (noise(500, 576), noise(500, 576) * scale):
        head, bounded = made(weight.to(dtype))
        states = noise(40, 576, seed=1).to(dtype).float()
        off = bounded.bounds(states).double()
        error = (bounded.copy.product(states).double() - head.product(states).double()).abs()
        assert (error <= off * (1 + 1e-4)).all()
        assert (error / off).amax() > 0.05


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_equal_logits_the_first_counts(dtype):
    _, bounded = made(noise(1, 64).expand(9000, -1).to(dtype).contiguous())
    assert bounded.argmax(noise(3, 64, seed=1).to(dtype)).tolist() == [0, 0, 0]
    _, bounded = made(torch.zeros(40, 64, dtype=dtype))
    assert bounded.argmax(torch.zeros(2, 64, dtype=dtype)).tolist() == [0, 0]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_states_that_are_not_numbers_have_none(value):
    head, bounded = made(noise(300, 64).bfloat16())
    states = noise(3, 64, seed=1).bfloat16()
    states[1, 5] = value
    found = bounded.argmax(states)
    assert found.tolist()[::2] == first_argmax(head.product(states)).tolist()[::2]
    best = head.product(states)[1].max()
    assert found[1] == (-1 if best.isnan() else first_argmax(head.product(states))[1])


def test_states_too_large_for_sums_are_compared_whole():
    head, bounded = made(noise(300, 64))
    states = noise(3, 64, seed=1) * torch.tensor([[1e18], [1e-30], [0.0]])
    assert torch.equal(bounded.argmax(states), first_argmax(head.product(states)))


def test_other_heads_are_left_alone():
    assert not can_bound(QuantizedLinear(round_to_blocks(noise(64, 64), 8)))
    assert not can_bound(QuantizedLinear(Floats(noise(64, 64)), noise(64)))
    assert not can_bound(torch.nn.Linear(64, 64))
    for value in (torch.nan, torch.inf, 1e5):
        weight = noise(64, 64)
        weight[3, 3] = value
        assert not can_bound(QuantizedLinear(Floats(weight)))


def test_states_of_another_width_are_refused():
    _, bounded = made(noise(64, 64))
    with pytest.raises(ValueError, match="takes 64 numbers a state, not 32"):
        bounded.argmax(noise(2, 32))
