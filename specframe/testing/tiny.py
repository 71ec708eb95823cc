"""Tiny random targets, their texts and teachers, and a few steps of training, enough to see a loss fall."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from specframe.components.targets.hf import HFTarget
from specframe.components.targets.table import TableTarget
from specframe.components.targets.tiny import random_model
from specframe.kernel.interfaces import NeuralTarget
from specframe.kernel.training import Loss, Rollout, Trainable
from specframe.kernel.types import Student, Teacher


def tiny_target(
    kind: str = "llama",
    *,
    vocab: int = 11,
    size: int = 8,
    layers: int = 2,
    seed: int = 5,
    dtype: torch.dtype = torch.float64,
) -> HFTarget:
    """A random causal language model as a target, with the tap `last` and laws far from uniform.

    `kind` is an architecture like Llama's: llama, mistral, qwen2, qwen3, ...; `size` is its hidden size, with two
    query heads that share one of keys. The same arguments give the same weights, in every dtype up to rounding.
    """
    target = HFTarget.from_model(random_model(kind, vocab=vocab, size=size, layers=layers, seed=seed).to(dtype))
    target.request(frozenset({"last"}))
    return target


def random_teacher(target: NeuralTarget, batch: int, length: int, *, seed: int = 0) -> Teacher:
    """The target's outputs for random texts [B, L]; the first two tokens and a fifth of the others do not count."""
    chance = torch.Generator().manual_seed(seed)
    tokens = torch.randint(target.vocab_size, (batch, length), generator=chance)
    mask = torch.rand(batch, length, generator=chance) < 0.8
    mask[:, :2] = False
    return target.teach(tokens, mask)


def greedy_texts(target: TableTarget, batch: int, length: int, *, seed: int = 1) -> Tensor:
    """The target's own greedy continuations of random prompts of two tokens, [B, length]."""
    tokens = torch.randint(target.vocab_size, (batch, 2), generator=torch.Generator().manual_seed(seed))
    while tokens.shape[1] < length:
        tokens = torch.cat([tokens, target.logits_after(tokens).argmax(-1, keepdim=True)], 1)
    return tokens


@torch.no_grad()
def shake(module: nn.Module, *, by: float = 1 / 3, seed: int = 1) -> None:
    """Adds normal noise of the deviation `by` to all weights, so that every part of a fresh module matters.

    Freshly made drafters have norms of one, biases of zero and heads that copy the target's: errors in them would not
    show. The noise depends on the seed and the shapes alone, in every dtype up to rounding.
    """
    chance = torch.Generator().manual_seed(seed)
    for weight in module.parameters():
        weight.copy_(weight + by * torch.randn(weight.shape, generator=chance, dtype=torch.float64))


def fit(
    drafter: Trainable,
    teachers: Sequence[Teacher],
    unroll: Rollout,
    losses: Sequence[tuple[Loss, float]],
    *,
    steps: int,
    rate: float = 1e-2,
) -> list[float]:
    """The weighted loss at each step of AdamW, cycling through the teachers."""
    optimizer = torch.optim.AdamW(drafter.module.parameters(), lr=rate, weight_decay=0.0)
    drafter.module.train()
    values = []
    for step in range(steps):
        teacher = teachers[step % len(teachers)]
        student = unroll(drafter, teacher, step / steps)
        assert isinstance(student, Student), "a rollout that gives its predictions in chunks is not fitted here"
        loss = torch.stack([weight * loss(student, teacher) for loss, weight in losses]).sum()
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        values.append(loss.item())
    drafter.module.eval()
    return values
