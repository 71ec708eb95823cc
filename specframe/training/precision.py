"""Precision: float32 master weights, with products in the dtype of the settings."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

import torch
from torch import nn

from specframe.kernel.errors import InputError
from specframe.kernel.interfaces import NeuralTarget
from specframe.training.settings import TrainSettings

log = logging.getLogger(__name__)


def chosen(settings: TrainSettings, target: NeuralTarget) -> TrainSettings:
    """The settings with precision `auto` resolved for this target and device."""
    if settings.precision != "auto":
        return settings
    fast = multiplies_bfloat16() if target.device.type == "cpu" else torch.cuda.is_bf16_supported()
    return replace(settings, precision="bf16" if fast or target.dtype.itemsize < 4 else "float32")


def check(settings: TrainSettings, target: NeuralTarget) -> None:
    """Raises InputError for a half-precision target with training in full precision; warns if bf16 is slow."""
    if target.dtype.itemsize < 4 and settings.precision != "bf16":
        raise InputError(
            f"the target computes in {str(target.dtype).removeprefix('torch.')}: "
            "set train.precision to bf16, or the target's dtype to float32"
        )
    if settings.precision == "bf16" and target.device.type == "cpu" and not multiplies_bfloat16():
        log.warning(
            "train: this processor has no bfloat16 products (AVX-512 BF16, AMX), and without them bf16 is several "
            "times slower than float32: train.precision=float32 target.dtype=float32"
        )


def multiplies_bfloat16() -> bool:
    """True if the processor has instructions for bfloat16 products; oneDNN emulates them on others."""
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def autocast(settings: TrainSettings, device: torch.device) -> AbstractContextManager[object]:
    """Returns the autocast context of forward passes and losses, without weight cache, which no_grad would corrupt."""
    if settings.precision != "bf16":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=False)


@contextmanager
def prepared(settings: TrainSettings, module: nn.Module) -> Iterator[None]:
    """The module in float32 or better and in training mode, with TF32 by the settings; restores both at the end."""
    matmul = torch.backends.cuda.matmul
    tf32, training = matmul.allow_tf32, module.training
    before = {name: p.dtype for name, p in module.named_parameters()}
    master = torch.promote_types(torch.float32, max(before.values(), key=lambda dtype: dtype.itemsize))
    matmul.allow_tf32 = settings.precision != "float32"
    module.to(master)
    try:
        yield
    finally:
        matmul.allow_tf32 = tf32
        module.train(training)
        for name, p in module.named_parameters():
            p.data = p.data.to(before[name])
            p.grad = None
