"""Plan of a block drafter: the layers it reads, the block length, and the windows of its own layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specframe import InputError

if TYPE_CHECKING:
    from torch import Tensor

KIND = "qwen3"
"""The type of a drafter's layers, as published."""


@dataclass(frozen=True)
class BlockPlan:
    """Choices in which published block drafters differ."""

    taps: tuple[int, ...]
    """The target's layers whose outputs are read, counted from 0."""
    size: int
    """Rows of a block, including the root's."""
    mask: int
    """The token whose embedding marks positions to be predicted."""
    from_anchor: bool = False
    """True if the root's row predicts the first draft; otherwise the next row does, and the root's predicts nothing."""
    causal: bool = False
    """True if a row sees only the rows before it in its block, as in JetSpec."""
    windows: tuple[int | None, ...] = ()
    """Number of newest context features that each layer sees, None for all; empty: every layer sees all."""
    causal_windows: bool = False
    """True if layers with a window are causal in the block, as speculators trains them by default.

    That is without `sliding_window_non_causal`.
    """

    @property
    def sliding(self) -> dict[str, Any]:
        """Returns the windows for a config.json; empty if no layer has one."""
        widths = [window for window in self.windows if window is not None]
        kinds = ["full_attention" if window is None else "sliding_attention" for window in self.windows]
        if not widths:
            return {}
        found: dict[str, Any] = {"layer_types": kinds, "sliding_window": widths[0], "use_sliding_window": True}
        return found | {"sliding_window_non_causal": not self.causal_windows}

    def view(self, layer: int) -> tuple[int | None, bool]:
        """Returns the window of a layer, and whether it is causal in the block."""
        window = self.windows[layer] if self.windows else None
        return window, self.causal or (self.causal_windows and window is not None)

    @property
    def levels(self) -> int:
        """Number of tokens that a block drafts."""
        return self.size if self.from_anchor else self.size - 1


@dataclass(frozen=True)
class OwnHead:
    """An LM head stored with a checkpoint."""

    rows: int
    tokens: Tensor | None = None
    """The draft vocabulary of its rows, int64 [rows]; None: the target's vocabulary."""
    listed: bool = False
    """True if the checkpoint also marks these tokens in `t2d`."""


def check_plan(name: str, size: int, from_anchor: bool, layers: int, taps: list[int] | None) -> None:
    """Raises InputError for choices from which no drafter can be built."""
    least = 1 if from_anchor else 2
    if size < least:
        raise InputError(f"{name}: block_size must be at least {least}, not {size}: the root takes a row of it")
    if layers < 1:
        raise InputError(f"{name}: layers must be at least 1, not {layers}")
    if taps is not None and (not taps or min(taps) < 0 or len(set(taps)) < len(taps)):
        raise InputError(f"{name}: taps must be different layers, counted from 0, not {taps}")


def published_taps(layers: int, count: int) -> tuple[int, ...]:
    """Returns the target's layers that a drafter of `count` layers reads, counted from 0.

    They are evenly spaced from layer 1 to layer L - 3; a drafter of one layer reads the middle. A small target gives
    fewer.
    """
    if count == 1:
        return (layers // 2,)
    last = max(layers - 4, 0)
    spread = (round(1 + place * last / (count - 1)) for place in range(count))
    return tuple(sorted({min(layer, layers - 1) for layer in spread}))
