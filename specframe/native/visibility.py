"""Slots of a memory that the positions of one forward pass see, and the slots of their own entries."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Causal:
    """Texts, or their rest: a token sees its own slot and those before it. Slots are positions."""

    start: int  # the slot of every row's first token
    lengths: Sequence[int]  # number of tokens of each row; padding follows

    @property
    def end(self) -> int:
        """The first slot that no position sees."""
        return self.start + max(self.lengths)

    @property
    def slots(self) -> int:
        """The slot of the first entry; the others follow it, in every row."""
        return self.start


@dataclass(frozen=True)
class Tree:
    """The N nodes of each row's tree, which see the committed slots and each other."""

    sees: Tensor  # [B, N, N] bool; none sees a later one
    length: Tensor  # [B] int64: number of a row's first slots, which all nodes see
    base: int  # the slot of the first node; the others follow it
    even: bool = False  # True if every row's length is known to be `base`

    @property
    def end(self) -> int:
        """The first slot that no position sees."""
        return self.base + self.sees.shape[1]

    @property
    def slots(self) -> int:
        """The slot of the first entry; the others follow it, in every row."""
        return self.base


@dataclass(frozen=True)
class Mask:
    """N positions of each row that see any slots, and whose own entries go to any slots."""

    visible: Tensor  # [B, N, S] bool
    slots: Tensor  # [B, N] int64, of their own entries
    drafted: Tensor | None = None  # [B, M] int64: positions of the last M slots; before them, a slot is a position
    base: int = 0  # the first slot without a committed token, if a memory keeps those in another form

    @property
    def end(self) -> int:
        """The first slot that no position sees."""
        return self.visible.shape[2]


@dataclass(frozen=True)
class Listed:
    """N nodes of each row's draft that see common listed slots and, of the draft's M slots, their own paths.

    The listed slots are ascending. A row has equally many for all layers and heads; -1 follows them.
    """

    listed: Tensor  # [layers or 1, B, key heads or 1, K] int64
    path: Tensor  # [B, N, M] bool
    slots: Tensor  # [B, N] int64, of their own entries
    base: int  # the first of the draft's slots; the listed ones are below it
    upper: bool = False  # True if only the upper halves of split int8 are read

    @property
    def end(self) -> int:
        """The first slot that no position sees."""
        return self.base + self.path.shape[2]


Visibility = Causal | Tree | Mask | Listed
