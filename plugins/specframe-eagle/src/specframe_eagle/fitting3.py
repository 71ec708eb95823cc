"""Initial weights for EAGLE-3: a linear regression of the target's next feature, inserted into the network.

In EAGLE-3 a token reaches the next state through attention alone, so a network with random weights must first learn
that a position attends to itself. The regression of feature i + 1 on the taps at i and the embedding of token i + 1 has
a closed form. `fc` gets the coefficients of the taps. Attention's value and output maps get those of the embeddings, as
far as their rank allows; queries and keys are initialised so that an entry attends to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe import InputError
from specframe.neural import TapFusion
from specframe.plugin import Teacher
from specframe_eagle.wide import QUIET

if TYPE_CHECKING:
    from specframe.plugin import NeuralTarget
    from specframe_eagle.wide import Wide

RIDGE = 1e-3
"""Ridge added to the diagonal of the normal equations, relative to the diagonal."""
SAMPLE = 4096
"""Number of entries over which the mean state is computed."""
FAST = 3 / 8
"""Share of a head's rotary pairs, the fastest ones, that separate an entry from its neighbours."""
FOCUS = 22.0
"""Attention score of an entry with itself, before the division by the square root of the head size."""
CAUTION = 0.45
"""Length of a prediction relative to a feature: regressions shrink, and the norm would restore the full length."""


@torch.no_grad()
def fit(network: Wide, target: NeuralTarget, teachers: Iterable[Teacher]) -> float:
    """Inserts the regression's solution into the network; returns the explained share of the features' variance.

    Raises InputError if the texts are too short to fit.
    """
    size, taps = int(network.layer.config.hidden_size), len(network.spec.taps)
    total = (taps + 1) * size
    squares = torch.zeros(total, total, dtype=torch.float64, device=target.device)
    products = torch.zeros(total, size, dtype=torch.float64, device=target.device)
    lengths = torch.zeros(size, dtype=torch.float64, device=target.device)
    sample: list[Tensor] = []
    count = 0
    for given, wanted in _entries(network, target, teachers):
        squares += given.T @ given
        products += given.T @ wanted
        lengths += wanted.square().sum(0)
        count += len(given)
        if sum(map(len, sample)) < SAMPLE:
            sample.append(given)
    if count < total:
        raise InputError(
            f"train.fit: the texts have {count} positions that count, fewer than the {total} numbers to be fitted; "
            "raise it, or leave it out"
        )
    scale = (lengths / count).sqrt().clamp(min=1e-12)
    products /= scale
    solution = torch.linalg.solve(squares + torch.diag(RIDGE * squares.diagonal()), products)  # [(A + 1) H, H]
    states, tokens = solution.split([taps * size, size])
    norm: Any = network.norm
    norm.weight.copy_(CAUTION * scale)
    _last(network.fusion).weight.copy_(states.T)
    attention: Any = network.layer.layer.self_attn
    mean = _normed(torch.cat(sample)[:, : taps * size] @ states).mean(0)
    _carry(attention, tokens, squares[taps * size :, taps * size :] / count)
    _look_at_itself(attention, mean)
    mlp: Any = network.layer.layer.mlp
    mlp.down_proj.weight.mul_(QUIET)
    network.layer.quieten()
    left = count * size - 2 * (solution * products).sum() + (solution * (squares @ solution)).sum()
    return float(1 - left / (count * size))


def _entries(network: Wide, target: NeuralTarget, teachers: Iterable[Teacher]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields the regression's inputs [n, (A + 1) H] and the following features [n, H] at positions that count."""
    for teacher in teachers:
        parts = [teacher.features[tap][:, :-1].double() for tap in network.spec.taps]
        if isinstance(network.fusion, TapFusion):
            parts = [_normed(part) for part in parts]
        elif network.switches.norm_before_fc:
            parts = [_normed(torch.cat(parts, -1))]
        parts.append(_normed(target.embed(teacher.tokens[:, 1:]).double()))
        counted = teacher.mask[:, 1:]
        yield torch.cat(parts, -1)[counted], teacher.features["last"][:, 1:].double()[counted]


def _carry(attention: Any, tokens: Tensor, moments: Tensor) -> None:
    """Makes attention's value and output maps apply the embeddings' coefficients [H, H]; `moments` are their squares.

    The low rank of these maps drops the directions that matter least for the embeddings.
    """
    values, out = attention.v_proj.weight, attention.o_proj.weight  # [kv d, 2H], [H, heads d]
    rank, size = len(values), len(tokens)
    share, axes = torch.linalg.eigh(moments)
    root = axes * share.clamp(min=1e-8 * share.max()).sqrt()  # moments = root root'
    left, weight, right = torch.linalg.svd(root.T @ tokens, full_matrices=False)
    rank = min(rank, size)
    weight = weight[:rank].sqrt()
    values.mul_(QUIET)
    values[:rank, :size] = torch.linalg.solve(root.T, left[:, :rank] * weight).T
    repeated = out.shape[1] // len(values)
    groups = (right[:rank].T * weight).to(out.dtype)  # [H, kv d]
    groups = nn.functional.pad(groups, (0, len(values) - rank))
    parts = groups.unflatten(1, (-1, attention.head_dim)).repeat_interleave(repeated, 1) / repeated
    out.copy_(parts.flatten(1))


def _look_at_itself(attention: Any, mean: Tensor) -> None:
    """Aligns queries and keys in the fast rotary pairs with the direction [H] that all normed states share."""
    half, length = attention.head_dim // 2, mean.norm()
    fast = max(1, round(FAST * half))
    row = FOCUS**0.5 / length * mean / length
    for weight in (attention.q_proj.weight, attention.k_proj.weight):
        heads = weight.unflatten(0, (-1, 2, half))  # [heads, 2, d / 2, 2H], the two parts of every pair
        heads[:, :, :fast] = 0
        heads[:, 0, :fast, len(mean) :] = row.to(weight.dtype)


def _last(fusion: nn.Module) -> nn.Linear:
    """Returns the linear map of a fusion."""
    found = fusion.fc if isinstance(fusion, TapFusion) else list(fusion.children())[-1]
    assert isinstance(found, nn.Linear)
    return found


def _normed(x: Tensor) -> Tensor:
    """Divides by the root mean square, [.., D]."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
