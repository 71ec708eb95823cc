"""Diagnosis of how a drafter reads its target's features: its own configuration compared with common mistakes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from specframe.components.rollouts.teacher_forced import TeacherForced
from specframe.decoding.pipeline import Pipeline, Prompt
from specframe.files.provenance import claimed, trained_steps
from specframe.files.text import counted
from specframe.inspect.doctor_variants import BETTER, TargetReading, attempts, better, compare
from specframe.kernel.errors import CompositionError
from specframe.kernel.interfaces import NeuralTarget, text_of
from specframe.kernel.training import FeatureDrafter
from specframe.kernel.types import Teacher
from specframe.training.validation import measure

TOKENS = 96
"""Number of new tokens generated for each prompt."""
SEEN = 256
"""Maximum number of prompt tokens used to compare readings; evaluating several levels at once takes memory."""
SHORT = 0.5
"""Agreement below this share of the recorded value is too low to be explained by different texts."""
MORE = ": train it for more steps, or with a higher train.lr"
LEARNT = 50
"""Minimum number of training steps before a drafter's agreement is meaningful."""
FEWEST = 100
"""Minimum number of text positions, more than one prompt has, before agreement is meaningful."""
ENOUGH = 30
"""Minimum number of chains that must reach a depth before it is compared with the training record."""


@dataclass(frozen=True)
class Diagnosis:
    """The result of decoding a few prompts."""

    alpha: list[float]
    """Share of cycles accepted to each depth, decoded with the recipe's own tree."""
    tau: float
    chance: float
    """Share of the most frequent token: the accuracy of a constant guess."""
    positions: int
    """Number of target tokens that were predicted."""
    readings: list[TargetReading]
    """Measured readings, the drafter's own first; empty for a drafter that reads no features."""
    chain: list[float] = field(default_factory=list)
    """Share of first choices that equal the target's, by depth of a chain drafted along the same text."""
    recorded: list[float] = field(default_factory=list)
    """Shares on held-out texts that training recorded, as in `chain`; empty without a record."""
    steps: int | None = None
    """Number of training steps; None if not recorded."""

    @property
    def better(self) -> list[TargetReading]:
        """Returns the readings that fit these weights better than the drafter's own, best first; empty if none does."""
        return better(self.readings)

    @property
    def doubt(self) -> str | None:
        """Returns why there is no verdict, in one sentence; None if the evidence suffices for one."""
        if self.steps is not None and self.steps < LEARNT:
            return f"no verdict after {counted(self.steps, 'step')} of training: at least {LEARNT} are needed"
        if self.readings and self.positions < FEWEST:
            return f"no verdict from {self.positions} positions of text: give more prompts, for at least {FEWEST}"
        return None

    @property
    def finding(self) -> str | None:
        """Returns the finding with its remedy in one sentence; None if nothing was found."""
        if self.doubt:
            return None
        if self.better:
            best, *others = self.better
            also = f" (about as good: {'; '.join(other.name for other in others)})" if others else ""
            return f"these weights fit another reading of the target better, {best.name}: {best.remedy}{also}"
        if not self.readings:
            first = self.alpha[0] if self.alpha else 0.0
            return "no more is accepted than by chance" if first <= self.chance else None
        if self.readings[0].depths[0] <= self.chance + BETTER:
            cause = ", with every reading: it is untrained, or for another target" if len(self.readings) > 1 else MORE
            return f"it agrees with the target hardly more than by chance{cause}"
        if (depth := self._short()) is None:
            return None
        measured, recorded = self.chain[depth], self.recorded[depth]
        if depth == 0:
            return (
                f"its training recorded an agreement of {recorded:.2f}, but here it is {measured:.2f}: use prompts "
                "like those of its training, or train it on prompts like these"
            )
        return (
            f"it agrees as recorded at depth {depth}, but {measured:.2f} instead of {recorded:.2f} at depth "
            f"{depth + 1}: its own predictions are fed back differently than in training; compare its "
            "config.json with its trainer's"
        )

    def _short(self) -> int | None:
        """Returns the first depth, counted from 0, at which the drafter agrees far less than recorded in training."""
        reaching = self.positions / self.tau  # there are about as many chains as cycles
        for depth, (measured, recorded) in enumerate(zip(self.chain, self.recorded, strict=False)):
            if reaching < ENOUGH:
                return None
            if measured < SHORT * recorded:
                return depth
            reaching *= measured
        return None


def examine(pipeline: Pipeline, prompts: Sequence[Prompt], *, others: bool = True) -> Diagnosis:
    """Diagnoses a pipeline's drafter from its drafts for these prompts and the target's continuations.

    Without `others`, only the drafter's own reading is measured; that is enough for a drafter that was just trained.
    """
    result = pipeline.generate(prompts, max_new_tokens=TOKENS)
    rows = [pipeline.encode(prompt) for prompt in prompts]
    written = torch.tensor([token for row in result.tokens for token in row])
    chance = float(written.bincount().max()) / len(written) if len(written) else 0.0
    alpha, tau = result.acceptance.alpha, result.acceptance.tau
    target, drafter = pipeline.parts.target, pipeline.parts.drafter
    if not isinstance(drafter, FeatureDrafter) or not isinstance(target, NeuralTarget):
        return Diagnosis(alpha, tau, chance, 0, [])
    tried = list(attempts(drafter, getattr(target.config, "num_hidden_layers", None)))
    tried = tried if others else tried[:1]
    target.request(frozenset(tap for attempt in tried for tap in attempt.reading.taps))
    teachers = [_teach(target, row, list(new)) for row, new in zip(rows, result.tokens, strict=True) if len(new) > 1]
    readings = compare(tried, teachers)
    positions = sum(int(teacher.mask.sum()) for teacher in teachers)
    figures = measure(drafter, teachers, [], TeacherForced(noise=0.0)) if readings else {}
    chain = [share for name, share in figures.items() if name.startswith("accuracy.")]
    weights = getattr(drafter, "weights", None)
    return Diagnosis(alpha, tau, chance, positions, readings, chain, claimed(weights), trained_steps(weights))


def _teach(target: NeuralTarget, prompt: Sequence[int], new: list[int]) -> Teacher:
    """Returns the target's outputs for one text; only generated tokens count, and a long prompt loses its start."""
    tokens = torch.tensor([[*prompt, *new]], device=text_of(target).device)
    mask = torch.arange(tokens.shape[1], device=tokens.device)[None] >= len(prompt) - 1
    whole, seen = target.teach(tokens, mask), slice(max(0, len(prompt) - SEEN), None)
    return Teacher(
        tokens=whole.tokens[:, seen],
        mask=whole.mask[:, seen],
        features={tap: feature[:, seen] for tap, feature in whole.features.items()},
        logits=whole.logits[:, seen],
    )


def require_draft(pipeline: Pipeline) -> None:
    """Raises CompositionError for a recipe that drafts nothing."""
    if pipeline.parts.nodes < 2:
        raise CompositionError("this recipe drafts nothing; give it a drafter and a tree")
