"""Students and teachers whose logits are made when they are first read, or of some positions alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from specframe.kernel.predictions import Student, Teacher

if TYPE_CHECKING:
    from torch import Tensor

Read = Callable[["Tensor"], "Tensor"]
"""A frozen LM head: hidden states [.., H] -> logits [.., v], each position by itself."""


class LazyStudent(Student):
    """A student that keeps what its frozen LM head reads, so that a loss can have the logits of a few predictions.

    `logits` are those of all predictions, made when they are first read. A copy by `dataclasses.replace` has them.
    """

    def __init__(
        self,
        *,
        position: Tensor,
        mask: Tensor,
        level: Tensor,
        hidden: Tensor,
        read: Read | None = None,
        logits: Tensor | None = None,
        features: Tensor | None = None,
        confidence: Tensor | None = None,
        support: Tensor | None = None,
        tap: str = "last",
    ) -> None:
        self.__dict__.update(position=position, mask=mask, level=level, hidden=hidden, read=read)
        self.__dict__.update(features=features, confidence=confidence, support=support, tap=tap)
        if logits is not None:
            self.__dict__["logits"] = logits

    @cached_property
    def logits(self) -> Tensor:
        """All predictions' logits, [B, M, v]."""
        logits: Tensor = self.__dict__["read"](self.hidden)
        return logits

    @cached_property
    def argmax(self) -> Tensor:
        """The most probable token: [B, M] int64. Logits that it makes are not kept."""
        logits = self.logits if self.unread is None or self.hidden is None else self.unread(self.hidden.detach())
        best = logits.argmax(-1)
        return best if self.support is None else self.support[best]

    @property
    def unread(self) -> Read | None:
        """The LM head, as long as the logits have not been made."""
        read: Read | None = None if "logits" in self.__dict__ else self.__dict__["read"]
        return read

    def part(self, chosen: Tensor, position: Tensor, hidden: Tensor) -> LazyStudent:
        """Some predictions in one row, [1, m], given where they stand in their teacher and what the head reads there.

        `chosen` are their numbers in [B M], int64 [m]; all of them count.
        """
        levels = self.level[chosen % self.mask.shape[1]]
        features = None if self.features is None else self.features.flatten(0, 1)[chosen][None]
        return LazyStudent(
            position=position[None],
            mask=self.mask.flatten()[chosen][None],
            level=levels,
            hidden=hidden[None],
            read=self.__dict__["read"],
            features=features,
            support=self.support,
            tap=self.tap,
        )


class LazyTeacher(Teacher):
    """A teacher that keeps the features of the tap `last`, of which the target's LM head makes logits where needed."""

    def __init__(
        self,
        tokens: Tensor,
        mask: Tensor,
        features: Mapping[str, Tensor],
        read: Read,
        support: Tensor | None = None,
        normaliser: Tensor | None = None,
        best: Tensor | None = None,
    ) -> None:
        self.__dict__.update(tokens=tokens, mask=mask, features=features, read=read, drafts=None)
        self.__dict__.update(support=support, normaliser=normaliser, best=best)

    @cached_property
    def logits(self) -> Tensor:
        """The law after each position, [B, L, v]."""
        logits: Tensor = self.__dict__["read"](self.features["last"])
        return logits

    def part(self, places: Tensor) -> LazyTeacher:
        """Some positions of the texts in one row, [1, m], given their numbers in [B L], int64 [m]."""

        def take(values: Tensor) -> Tensor:
            return values.flatten(0, 1)[places][None]

        teacher = LazyTeacher(
            take(self.tokens),
            take(self.mask),
            {tap: take(values) for tap, values in self.features.items()},
            self.__dict__["read"],
            self.support,
            None if self.normaliser is None else take(self.normaliser),
            None if self.best is None else take(self.best),
        )
        teacher.__dict__["following"] = take(self.following)
        return teacher
