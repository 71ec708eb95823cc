"""The interfaces of training: drafters that learn, losses, and rollouts."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Protocol, Self, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from torch import Tensor, nn

    from specframe.kernel.interfaces import NeuralTarget
    from specframe.kernel.predictions import Chunks, Drafts, PairSpec, Predicted, Student, Teacher


@runtime_checkable
class Trainable(Protocol):
    """A drafter with weights that `specframe train` can train."""

    @property
    def module(self) -> nn.Module:
        """Module that is trained and saved: the drafter's own parameters, none of the target's."""

    def save(self, folder: Path) -> None:
        """Writes config.json and model.safetensors, which `weights: folder` loads again."""


@runtime_checkable
class LanguageModelDrafter(Trainable, Protocol):
    """A trainable drafter that is a language model: it reads only tokens."""

    def read_text(self, tokens: Tensor, drafts: Drafts | None = None) -> Tensor:
        """The logits after every token of texts [B, L], causal, [B, L, V]; `drafts` lists the drafts they end in.

        Gradients reach the module.
        """

    def continue_text(self, tokens: Tensor, start: Tensor, temperature: float) -> Tensor:
        """The texts [B, L] with the drafter's own samples in place of the tokens from `start` [B] on, [B, L]."""


@runtime_checkable
class FeatureDrafter(Trainable, Protocol):
    """A trainable drafter that reads features, as rollouts unroll it along texts.

    Entry i is (features i, token i + 1); the first of its `levels` predictions is of position i + `block`. Blocks of
    `block` entries are counted back from the text's end; an entry sees its own block and all earlier ones.

    A drafter whose draft nodes have the target's own features, such as those of its first layers, has a `block` of 0:
    it predicts from the feature of the same position, and all levels of a draft are alike. Its chains are right if
    its predictions along the text are.
    """

    spec: PairSpec  # the features it reads, and the use of its predictions
    block: int
    levels: int  # K

    def fuse(self, features: Tensor) -> Tensor:
        """Fuses the taps' concatenated features into those paired with the tokens: [B, n, A D] -> [B, n, D]."""

    def unroll(
        self, features: Tensor, tokens: Tensor, positions: Tensor | None = None, mask: Tensor | None = None
    ) -> Predicted:
        """The predictions of n entries, given the tokens' paired features [B, n, D], and tokens [B, n + K - 1].

        Level k may see the tokens up to i + k. Gradients reach the module and the features. With `positions` [B, n] and
        `mask` [B or 1, 1, n, n], True where an entry sees another, the entries may be several versions of a text.
        """

    def read(self, predicted: Predicted) -> Tensor:
        """The logits of predictions, [B, n, K, v]."""


class Loss(Protocol):
    """Loss that training minimises; several are summed by weight.

    `rowwise = False`: it compares the rows of a batch. `detaches = True`: it has weights computed from the
    predictions, and no gradient flows through them.
    """

    def __call__(self, student: Student, teacher: Teacher) -> Tensor:
        """A scalar, the mean over the student's masked predictions."""


class Rollout(Protocol):
    """Way in which training unrolls a drafter. It may also have the methods of `RolloutMethods`."""

    def __call__(self, drafter: Trainable, teacher: Teacher, progress: float) -> Student | Chunks:
        """The predictions to be scored; progress runs from 0 (start of training) to 1 (its end).

        In validation the teachers are of the unchanged texts.
        """


@dataclass(frozen=True)
class RolloutMethods:
    """Optional methods of a rollout, each under its name; None for a missing one."""

    begin: Callable[[int, int], None] | None
    """Receives the number of the coming step, from 0 on, and their total, before the rollout is called in the step.

    The behaviour of such a rollout depends on the step alone, so that runs can resume.
    """
    rewrite: Callable[[Trainable, Tensor, Tensor], tuple[Tensor, Tensor]] | None
    """Returns the texts that the target teaches for this drafter in place of tokens [B, L], and the mask of their
    positions that count, given mask [B, L]."""
    ask: Callable[[NeuralTarget, Trainable, Tensor, Tensor], Teacher] | None
    """Returns the target's answers for this drafter, for example to its own drafts, given texts [B, L] and the mask
    [B, L] of their positions that count."""

    @classmethod
    def of(cls, rollout: Rollout | None) -> Self:
        """The optional methods of a rollout."""
        return cls(*(getattr(rollout, each.name, None) for each in fields(cls)))

    @property
    def teaches(self) -> bool:
        """True if the rollout decides what the target is asked."""
        return self.rewrite is not None or self.ask is not None


def translation_of(drafter: object) -> Callable[[Teacher, Tensor], Teacher] | None:
    """The method `translate` of a wrapper whose `drafter` has another vocabulary and is trained in its place.

    Given a teacher and `answers` [B, L], it returns the target's answers in the drafter's tokens, one text for each
    answer: a run of positions whose next token the target wrote. None for any other drafter.
    """
    return getattr(drafter, "translate", None) if hasattr(drafter, "drafter") else None


def learning_in(drafter: Any) -> Any:
    """The drafter that is trained: the given one, or the one of another vocabulary that it translates for."""
    return drafter if translation_of(drafter) is None else drafter.drafter


class Watcher(Protocol):
    """Receives the events of a training run, in its main process: for logs, alerts and progress displays."""

    def start(self, done: int, total: int, note: str) -> None:
        """Training starts or resumes after `done` of `total` steps."""
        ...

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """The losses since the last report, the learning rate and the speed."""
        ...

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """A validation's figures."""
        ...

    def finish(self, note: str) -> None:
        """Training is over, or interrupted."""
        ...
