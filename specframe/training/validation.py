"""Validation of a drafter on held-back texts, without decoding: accuracy per level, and tau of a chain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

import torch
import torch.nn.functional as F
from torch import Tensor

from specframe.components.losses.scored import gather_positions, students
from specframe.components.rollouts.multi_step import MultiStep
from specframe.kernel.training import FeatureDrafter, LanguageModelDrafter, Loss, Rollout, Trainable
from specframe.kernel.types import Chunks, Student, Teacher
from specframe.neural.features import gather
from specframe.neural.heads import support_of

Losses = Sequence[tuple[Loss, float, str]]
"""Losses with their weights and names."""

LEVELS = 8
"""Largest depth of the simulated chain."""
UNROLLED = 32
"""Largest number of texts unrolled for the simulated tau: it costs their length squared."""


@torch.no_grad()
def measure(drafter: Trainable, teachers: Iterable[Teacher], losses: Losses, rollout: Rollout) -> dict[str, float]:
    """The weighted `loss`, each loss by name, `accuracy.N` per level and the simulated `tau`.

    Accuracy is the frequency with which the drafter's argmax equals the target's in cycles of greedy decoding, assuming
    that the text is its output. Drafters that feed predicted features back decode chains along the text (`chains`); for
    others the cycles are simulated from the rollout's predictions (`agreement`), and with `block` 0 as those of a
    language model. Tau is 1 plus the sum of the running products of the accuracies. Losses are means over all teachers;
    chains stop after the batch that reaches `UNROLLED` texts. For several students with equal targets, such as a
    model's exits, accuracies are those of the last one, `tau.N` is that of each one and tau their mean.
    """
    totals, scored, unrolled = [0.0] * len(losses), 0.0, 0
    counts = torch.zeros(2, 0)
    exits: list[Tensor] = []
    for teacher in teachers:
        feeds = isinstance(drafter, FeatureDrafter) and drafter.spec.feeds and drafter.levels == 1
        guesses: list[Guesses] = []
        made = rollout(drafter, teacher, 1.0)
        for student, share in students(made):
            count = share * int(student.mask.sum())
            for index, (loss, _, _) in enumerate(losses):
                totals[index] += float(loss(student, teacher)) * count
            scored += count
            if isinstance(drafter, LanguageModelDrafter) and int(student.level.max()) == 1:
                guesses.append(Guesses.of_texts(student, teacher))
            elif not feeds and student.logits.shape[-1] == _width(student, teacher):  # a router's are of groups
                alike = isinstance(drafter, FeatureDrafter) and drafter.block == 0
                guesses.append((Guesses.of_texts if alike else Guesses.of)(student, teacher))
        if feeds and unrolled < UNROLLED:
            assert isinstance(drafter, FeatureDrafter)
            counts = _add(counts, chains(drafter, teacher))
            unrolled += len(teacher.tokens)
        elif isinstance(made, Chunks) and made.weights is not None:  # they predict the same, each its own
            found = [one.counted() for one in guesses]
            exits = [_add(old, new) for old, new in zip(exits or [counts] * len(found), found, strict=True)]
        elif guesses:
            counts = _add(counts, Guesses.joined(guesses).counted())
    means = [total / max(1, scored) for total in totals]
    figures = {"loss": sum(w * mean for (_, w, _), mean in zip(losses, means, strict=True))}
    figures |= {name: mean for (_, _, name), mean in zip(losses, means, strict=True)}
    shares = _shares(exits[-1] if exits else counts)
    figures |= {f"accuracy.{level}": share for level, share in enumerate(shares, 1)}
    if not exits:
        return figures | {"tau": _tau(shares)}
    taus = [_tau(_shares(each)) for each in exits]
    return figures | {f"tau.{number}": tau for number, tau in enumerate(taus, 1)} | {"tau": sum(taus) / len(taus)}


def simulated_tau(drafter: Trainable, teachers: Iterable[Teacher], rollout: Rollout) -> float:
    """Tokens per cycle of a chain along the texts, assumed to be the target's greedy answers; see `measure`."""
    return measure(drafter, teachers, [], rollout)["tau"]


@dataclass(frozen=True)
class Guesses:
    """Predictions from every position of texts, by level: [B, L, levels] each, in numbers of predictions."""

    predicted: Tensor
    right: Tensor

    @classmethod
    def of(cls, student: Student, teacher: Teacher) -> Guesses:
        """A student's predictions, and the mask of those that agree with the target's."""
        same = student.argmax == gather_positions(teacher.argmax, student.position)  # [B, M]
        origin = (student.position - student.level).clamp(min=0)  # [B, M], whose true feature was the last one seen
        rows = torch.arange(len(same), device=same.device)[:, None].expand_as(origin)
        place = (rows, origin, (student.level - 1).expand_as(origin))
        levels = int(student.level.max()) if student.level.numel() else 0
        empty = torch.zeros(*teacher.tokens.shape, levels, dtype=torch.int64, device=same.device)
        return cls(
            predicted=empty.index_put(place, student.mask.long(), accumulate=True),
            right=empty.index_put(place, (same & student.mask).long(), accumulate=True),
        )

    @classmethod
    def of_texts(cls, student: Student, teacher: Teacher) -> Guesses:
        """Guesses of a language model, whose chain is correct as long as its predictions along the text are."""
        same = (
            student.argmax == gather_positions(teacher.argmax, student.position)
        ) & student.mask  # [B, L], by position
        right, predicted = (F.pad(each.long(), (0, LEVELS - 1)).unfold(1, LEVELS, 1) for each in (same, student.mask))
        predicted = predicted.cumprod(-1)
        return cls(predicted, right * predicted)

    @classmethod
    def joined(cls, parts: Sequence[Guesses]) -> Guesses:
        """Joins the guesses of several parts of a student."""
        return cls(*(torch.stack([getattr(part, name) for part in parts]).sum(0) for name in ("predicted", "right")))

    def counted(self) -> Tensor:
        """Returns the numbers of correct and of all guesses in the cycles of greedy decoding: [2, levels]."""
        predicted, right = self.predicted, self.right
        alive = ((right == predicted) & (predicted > 0)).long().cumprod(-1)
        starts = cycles(alive.sum(-1), (predicted[..., :1] > 0).any(-1))  # [B, L]
        reached = torch.cat([torch.ones_like(alive[..., :1]), alive[..., :-1]], -1)[..., : predicted.shape[-1]]
        return torch.stack([alive[starts].sum(0), (reached * (predicted > 0))[starts].sum(0)]).float().cpu()


def agreement(student: Student, teacher: Teacher) -> Tensor:
    """Numbers of correct and of all argmax predictions per level: [2, levels], index 0 = level 1.

    The counts are over the cycles of greedy decoding, assuming that the text is its output: a cycle checks the levels
    predicted from one position until one is wrong, and the next cycle starts after the bonus. An average over all
    positions would be too high, because cycles pass quickly over easily predicted text.
    """
    return Guesses.of(student, teacher).counted()


def cycles(accepted: Tensor, possible: Tensor) -> Tensor:
    """Returns the positions where cycles start, [B, L] bool, given how many tokens each would accept, [B, L].

    `possible` [B, L] bool marks where a cycle can start. The next cycle starts at the last accepted token, whose
    feature is then the newest: the bonus is its root.
    """
    starts = torch.zeros_like(possible)
    due = torch.zeros_like(accepted[:, 0])
    for place in range(accepted.shape[1]):
        starts[:, place] = possible[:, place] & (due <= place)
        due = torch.where(starts[:, place], place + 1 + accepted[:, place], due)
    return starts


def chains(drafter: FeatureDrafter, teacher: Teacher) -> Tensor:
    """Acceptance of drafters that feed predicted features back, by greedy decoding of chains along the text.

    A cycle's first forward pass reads the true features up to the root, later ones also the predicted features;
    the tokens paired with them are the text's, since a chain continues only while they are correct. The next
    cycle's root is the bonus. A masked position ends the chain, and no cycle starts there.

    Drafters with one level per forward pass predict from all positions at once (`MultiStep`) if their networks
    support it; others cycle by cycle.
    """
    if drafter.block == 1 and drafter.spec.side_by_side:
        return agreement(MultiStep(steps=LEVELS, noise=0.0)(drafter, teacher, 1.0), teacher)
    length = teacher.tokens.shape[1]
    due = [drafter.block] * len(teacher.tokens)  # the root of each row's next cycle; a block is seen at least
    counted: list[list[bool]] = teacher.mask.tolist()
    total = torch.zeros(2, LEVELS // drafter.block * drafter.block)
    for root in range(min(due), length):
        rows = [row for row, place in enumerate(due) if place == root]
        accepted = iter(_chain(drafter, teacher, [row for row in rows if counted[row][root]], root, total))
        for row in rows:
            due[row] = root + 1 + (next(accepted) if counted[row][root] else 0)
    return total


def _chain(drafter: FeatureDrafter, teacher: Teacher, rows: list[int], root: int, total: Tensor) -> list[int]:
    """Returns the number of correct levels of a chain below the root per row; adds the checked levels to `total`."""
    k = drafter.block
    support = support_of(drafter)
    accepted = dict.fromkeys(rows, 0)
    true = {tap: teacher.features[tap][rows, :root] for tap in drafter.spec.reads}
    going, known = rows, drafter.fuse(gather(drafter.spec, true))
    for level in range(0, total.shape[1], k):
        place = root + level
        if not going or place + k > teacher.tokens.shape[1]:
            break
        predicted = drafter.unroll(known, teacher.tokens[going, 1 : place + 1]).last(k)
        assert predicted.features is not None
        best = drafter.read(predicted)[:, :, 0].argmax(-1)
        same = (best if support is None else support[best]) == teacher.argmax[going, place : place + k]
        asked = teacher.mask[going, place : place + k].long().cumprod(1)  # [R, k]
        right = (same & (asked > 0)).long().cumprod(1)
        asked[:, 1:] *= right[:, :-1]
        total[:, level : level + k] += torch.stack([right.sum(0), asked.sum(0)]).cpu()
        for row, count in zip(going, right.sum(1).tolist(), strict=True):
            accepted[row] += count
        on = right[:, -1] > 0
        known = torch.cat([known, predicted.features[:, :, 0].to(known.dtype)], 1)[on]
        going = [row for row, more in zip(going, on.tolist(), strict=True) if more]
    return list(accepted.values())


def _width(student: Student, teacher: Teacher) -> int:
    """Returns the number of columns of logits over tokens."""
    return teacher.logits.shape[-1] if student.support is None else len(student.support)


def _add(one: Tensor, two: Tensor) -> Tensor:
    """The sum of two counts [2, levels] that may differ in their levels."""
    width = max(one.shape[1], two.shape[1])
    return F.pad(one, (0, width - one.shape[1])) + F.pad(two, (0, width - two.shape[1]))


def _shares(counts: Tensor) -> list[float]:
    """Returns the share of correct predictions per level, from counts [2, levels], for levels with any."""
    return [right / asked for right, asked in takewhile(lambda pair: pair[1], counts.T.tolist())]


def _tau(shares: Sequence[float]) -> float:
    """1 + a1 + a1 a2 + ...: tokens per cycle of a chain, the bonus included."""
    product, tau = 1.0, 1.0
    for share in shares:
        product *= share
        tau += product
    return tau
