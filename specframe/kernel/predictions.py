"""The values of training: the target's answers, and a drafter's predictions of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

Read = Callable[["Tensor"], "Tensor"]
"""A frozen LM head: hidden states [.., H] -> logits [.., v], each position by itself."""

IMAGES = "images"
"""The tap of the first layer's inputs at tokens that stand for parts of an image, 0 elsewhere."""


@dataclass(frozen=True)
class PairSpec:
    """Features that a neural drafter pairs with a token, and the use of its predictions.

    A drafter that predicts features has an input (token i + 1, features i) for every position i. `taps` are the
    target's features that it reads there, one or several concatenated. `imitates` is the tap that its predictions are
    compared with in training; None: no tap. `feeds`: a prediction replaces the features one level further down.
    `side_by_side`: versions of a text may share one forward pass, separated by a mask. `given` are further taps,
    concatenated after `taps`, that no prediction replaces: training adds no noise to them.
    """

    taps: tuple[str, ...] = ("last",)
    imitates: str | None = "last"
    feeds: bool = True
    side_by_side: bool = True
    given: tuple[str, ...] = ()

    @property
    def reads(self) -> tuple[str, ...]:
        """All taps that it reads, in the order of concatenation."""
        return *self.taps, *self.given


@dataclass(frozen=True)
class Predicted:
    """A drafter's predictions at n entries, K of each: entries of texts in training, frontier nodes in decoding."""

    hidden: Tensor  # [B, n, K, H], the head's input
    features: Tensor | None = None  # [B, n, K, D], fed back, and compared with the imitated tap
    read: Callable[[Tensor], Tensor] | None = None  # [B, m, K, H] -> [B, m, K, v], of a drafter with its own LM heads
    confidence: Tensor | None = None  # [B, n, K], the network's own estimate that a level is accepted

    def last(self, count: int) -> Predicted:
        """The predictions at the last `count` entries."""
        return self.part(slice(-count, None))

    def part(self, entries: slice) -> Predicted:
        """The predictions at some of the entries."""
        features = None if self.features is None else self.features[:, entries]
        confidence = None if self.confidence is None else self.confidence[:, entries]
        return Predicted(self.hidden[:, entries], features, self.read, confidence)


@dataclass(frozen=True)
class Drafts:
    """Drafts appended to a batch of texts: a chain of `levels` tokens below each of K roots, stored level by level.

    The token `level` levels below root k stands at `length` + (level - 1) K + k. It sees the text up to its root, the
    earlier tokens of its chain, and itself (`specframe.neural.visible_drafts`).
    """

    length: int  # L, of the texts
    roots: Tensor  # [B, K] int64, positions in the texts of the last token before each draft
    levels: int

    @property
    def count(self) -> int:
        """Number of tokens of all drafts of a row."""
        return self.levels * self.roots.shape[1]


@dataclass(frozen=True)
class Teacher:
    """The target's answers for a batch of training texts.

    With a `support` the logits are those of its tokens alone, and `normaliser` and `best` cover the other tokens.
    `drafts` follow the texts along the length of every tensor, so the next position does not always hold the next
    token: a loss or rollout that reads along a text refuses them.
    """

    tokens: Tensor  # [B, L] int64
    mask: Tensor  # [B, L] bool, positions whose *next-token law* counts (answer tokens, no padding)
    features: Mapping[str, Tensor]  # tap -> [B, L, D]
    logits: Tensor  # [B, L, v], the law after each position
    support: Tensor | None = None  # [v] int64, the tokens of the logits' columns; None: the whole vocabulary
    normaliser: Tensor | None = None  # [B, L] float32, log of the sum of exp over the whole vocabulary's logits
    best: Tensor | None = None  # [B, L] int64, the most probable token of the whole vocabulary
    drafts: Drafts | None = None  # drafts after the texts, included in L

    @cached_property
    def log_law(self) -> Tensor:
        """The log-probabilities of the logits' columns, [B, L, v], in float32 or better: half precision loses the tail.

        Those of a support do not add up to 1: the probability of all other tokens is missing.
        """
        wide = _wide(self.logits)
        return wide.log_softmax(-1) if self.normaliser is None else wide - self.normaliser[..., None]

    @cached_property
    def following(self) -> Tensor:
        """The text's token after each position, [B, L] int64; -1 where none follows, at the end of the row."""
        following = self.tokens.roll(-1, 1)
        following[:, -1] = -1
        return following

    @cached_property
    def argmax(self) -> Tensor:
        """The most probable token of the whole vocabulary: [B, L] int64."""
        return self.logits.argmax(-1) if self.best is None else self.best


@dataclass(frozen=True)
class Student:
    """A drafter's predictions, each with the teacher's position that it imitates.

    Prediction m guesses the target's feature at, and law after, position `position[:, m]`, made
    `level[m]` levels below the last position whose true feature it saw.
    """

    logits: Tensor  # [B, M, v]
    position: Tensor  # [B, M] int64
    mask: Tensor  # [B, M] bool
    level: Tensor  # [M] int64, 1 = the first drafted token
    features: Tensor | None = None  # [B, M, D], of drafters that predict features
    confidence: Tensor | None = None  # [B, M], the drafter's own estimate that its token is accepted
    support: Tensor | None = None  # [v] int64, the tokens of the logits' columns; None: the whole vocabulary
    hidden: Tensor | None = None  # [B, M, H], the head's input for the logits
    tap: str = "last"  # the tap that `features` imitate

    @cached_property
    def log_law(self) -> Tensor:
        """The log-probabilities of the logits' columns, [B, M, v], in float32 or better."""
        return _wide(self.logits).log_softmax(-1)

    @cached_property
    def argmax(self) -> Tensor:
        """The most probable token: [B, M] int64."""
        best = self.logits.argmax(-1)
        return best if self.support is None else self.support[best]


@dataclass(frozen=True)
class Chunks:
    """Predictions in parts that are computed and scored one by one, because all logits together would not fit.

    Each part is a function that computes it; all have the same levels. The total loss is the mean of the parts' losses,
    weighted by their numbers of masked predictions. With `weights` the parts are the same predictions by several
    students, such as the exits of one model, and the total loss is the mean by these weights.
    """

    parts: Sequence[Callable[[], Student]]
    weights: Sequence[float] | None = None  # above 0, one for each part


class LazyStudent(Student):
    """A student that keeps the inputs of its frozen LM head, so that a loss can compute a few predictions' logits.

    `logits` are those of all predictions, computed at the first access; a loss over a few hundred predictions at a time
    never holds them all, the largest tensor of a training step. A copy by `dataclasses.replace` has them.
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
        """The most probable token: [B, M] int64. Logits computed for it are not kept."""
        logits = self.logits if self.unread is None or self.hidden is None else self.unread(self.hidden.detach())
        best = logits.argmax(-1)
        return best if self.support is None else self.support[best]

    @property
    def unread(self) -> Read | None:
        """The LM head; None once the logits have been computed."""
        read: Read | None = None if "logits" in self.__dict__ else self.__dict__["read"]
        return read

    def part(self, chosen: Tensor, position: Tensor, hidden: Tensor) -> LazyStudent:
        """Some predictions as one row, [1, m], given their positions in a teacher and the head's inputs there.

        `chosen` are their indices in [B M], int64 [m]; all of them count.
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
    """A teacher that keeps the features of the tap `last`, and computes logits with the target's LM head on demand.

    A loss in parts reads those of the student's positions alone. A copy by `dataclasses.replace` has all logits.
    """

    def __init__(
        self,
        tokens: Tensor,
        mask: Tensor,
        features: Mapping[str, Tensor],
        read: Read | None = None,
        support: Tensor | None = None,
        normaliser: Tensor | None = None,
        best: Tensor | None = None,
        *,
        logits: Tensor | None = None,
        drafts: Drafts | None = None,
    ) -> None:
        self.__dict__.update(tokens=tokens, mask=mask, features=features, read=read, drafts=drafts)
        self.__dict__.update(support=support, normaliser=normaliser, best=best)
        if logits is not None:
            self.__dict__["logits"] = logits

    @cached_property
    def logits(self) -> Tensor:
        """The law after each position, [B, L, v]."""
        logits: Tensor = self.__dict__["read"](self.features["last"])
        return logits

    def part(self, places: Tensor) -> LazyTeacher:
        """Some positions of the texts as one row, [1, m], given their indices in [B L], int64 [m]."""

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
            logits=take(self.logits) if self.__dict__["read"] is None else None,
        )
        teacher.__dict__["following"] = take(self.following)
        return teacher


def _wide(logits: Tensor) -> Tensor:
    """The logits in float32, or unchanged if they are float64."""
    return logits if logits.element_size() == 8 else logits.float()
