"""Training a drafter on its target: features and laws from the target, losses by weight, AdamW."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from specframe.files.folders import writing
from specframe.kernel.errors import CompositionError, InputError
from specframe.kernel.interfaces import NeuralTarget, text_of
from specframe.kernel.training import (
    FeatureDrafter,
    RolloutMethods,
    Trainable,
    Watcher,
    learning_in,
    translation_of,
)
from specframe.neural.heads import support_of
from specframe.neural.weights.checkpoint import remove_parts
from specframe.training import precision, state, texts
from specframe.training.processes import Processes
from specframe.training.progress import Silent, Together
from specframe.training.report import Report
from specframe.training.schedule import borrowed_generators
from specframe.training.settings import TrainSettings
from specframe.training.start import fit
from specframe.training.teaching import (
    Cached,
    OnlineTeachers,
    SupportTeachers,
    Teaching,
    TranslatedTeachers,
    taught_by,
)
from specframe.training.timing import steps_within
from specframe.training.trackers import Trackers, require_trackers
from specframe.training.trainer import LAST, Evaluate, TaughtTexts, Trainer
from specframe.training.validation import Losses

REMEDY = "give another train.out"
"""Remedy for a folder that cannot be written to, or is another process's."""


def train(
    target: NeuralTarget,
    drafter: Trainable,
    losses: Losses,
    settings: TrainSettings,
    *,
    tokenizer: Any = None,
    watcher: Watcher | None = None,
    evaluate: Evaluate | None = None,
) -> Report:
    """Trains the drafter, bound to its target, in place; the report names the checkpoints.

    `settings.out` gets the best checkpoint by validation (without validation the last), `last/` the last
    one, `train.json` the record, and `state.safetensors` the training state: the same call resumes from
    it, and on a CPU gives weights bitwise equal to those of an uninterrupted run.

    Args:
        target: the teacher; its parameters get no gradients.
        drafter: the drafter to train, with its `module` on the target's device; for a drafter that translates for one
            of another vocabulary, the inner one.
        losses: each with its weight and name; their weighted sum is minimised.
        settings: the recipe's `train` section.
        tokenizer: a transformers tokenizer; None: the target's own.
        watcher: receives progress; None: no progress is reported.
        evaluate: further validation figures, such as tau by decoding; its `tau` replaces the simulated one in
            choosing the best checkpoint.

    Raises KeyboardInterrupt at Ctrl-C or SIGTERM, after saving the state; WeightsError if checkpoint or state cannot be
    written (earlier files are kept); InputError for unusable data and CompositionError for incompatible parts.
    """
    with prepared(
        target, drafter, losses, settings, tokenizer=tokenizer, watcher=watcher, evaluate=evaluate
    ) as trainer:
        return trainer.run()


@contextmanager
def prepared(
    target: NeuralTarget,
    drafter: Trainable,
    losses: Losses,
    settings: TrainSettings,
    *,
    tokenizer: Any = None,
    watcher: Watcher | None = None,
    evaluate: Evaluate | None = None,
) -> Iterator[Trainer]:
    """The trainer for `train`, before the first step or at the step where it was interrupted.

    The folder is locked inside the with block. Arguments and errors as for `train`.
    """
    tokenizer = tokenizer or text_of(target).tokenizer
    settings = precision.chosen(settings, target)
    translate = translation_of(drafter)
    drafter = learning_in(drafter)
    _check(target, drafter, losses, settings, tokenizer, translate is not None)
    processes = Processes(target.device)
    with (
        _locked(settings.out, processes),
        borrowed_generators(target.device),
        precision.prepared(settings, drafter.module),
    ):
        reader = text_of(target).processor if text_of(target).image_tokens else None
        parts = [part.to(target.device) for part in texts.load(settings, tokenizer, target.vocab_size, reader)]
        sources = [_teaching(target, drafter, part, settings, processes) for part in parts]
        if translate is not None:
            sources = [TranslatedTeachers(source, translate) for source in sources]
        taught, validation = (TaughtTexts(*each) for each in zip(parts, sources, strict=True))
        if settings.fit and not (settings.out / state.FILE).exists():
            fit(drafter, target, taught.texts, taught.teaching, settings.fit)
        if RolloutMethods.of(settings.rollout).teaches:
            taught = replace(taught, teaching=taught_by(settings.rollout, target, taught.texts, drafter))
        rest = (
            taught,
            validation,
            processes,
            _watching(watcher, settings) if processes.main else Silent(),
            evaluate,
            target.device,
        )
        if settings.minutes is not None:
            steps = state.steps_of(settings.out) or steps_within(
                Trainer(drafter, losses, settings, *rest), settings.minutes
            )
            settings = replace(settings, steps=steps, minutes=None)
        yield Trainer(drafter, losses, settings, *rest)


def _watching(watcher: Watcher | None, settings: TrainSettings) -> Watcher:
    """All watchers of a training: the caller's, the recipe's, and its trackers."""
    watchers = [each for each in (watcher, settings.watcher) if each is not None]
    if settings.log:
        config = {name: str(value) for name, value in vars(settings).items()}
        watchers.append(Trackers(settings.log, settings.out, config))
    return Together(watchers)


@contextmanager
def _locked(folder: Path, processes: Processes) -> Iterator[None]:
    """The folder, locked for all processes that train together, without unfinished files of killed runs."""
    if not processes.main:
        yield
        return
    with writing(folder, REMEDY):
        remove_parts(folder)
        remove_parts(folder / LAST)
        yield


def _teaching(
    target: NeuralTarget, drafter: Trainable, part: texts.Texts, settings: TrainSettings, processes: Processes
) -> Teaching:
    if not len(part):
        return OnlineTeachers(target, part)
    if settings.cache is None:
        reads = isinstance(drafter, FeatureDrafter)  # a language model's losses may need nothing of the target
        return SupportTeachers(target, part, support_of(drafter)) if reads else OnlineTeachers(target, part)
    taps = getattr(drafter, "taps", frozenset({"last"}))
    return Cached(target, taps, part, settings.cache, processes, support_of(drafter))


def _check(
    target: NeuralTarget,
    drafter: Trainable,
    losses: Losses,
    settings: TrainSettings,
    tokenizer: Any,
    translated: bool,
) -> None:
    """Raises all errors that can be detected before the first forward pass."""
    if not isinstance(target, NeuralTarget):
        raise CompositionError(f"{type(target).__name__} cannot teach a drafter; use the target 'hf'")
    if not isinstance(drafter, Trainable):
        raise CompositionError(f"{type(drafter).__name__} has nothing to train")
    parameters = [p for p in drafter.module.parameters() if p.requires_grad]
    if not parameters:
        raise CompositionError(f"{type(drafter).__name__} has no trainable parameters")
    if not losses:
        raise InputError("there is no loss to minimise; give the recipe a `loss` section")
    if tokenizer is None:
        raise InputError("the target has no tokenizer, so its training data cannot be read")
    teaches = RolloutMethods.of(settings.rollout).teaches
    if settings.cache is not None and teaches:
        raise CompositionError(
            "a rollout that rewrites the texts cannot use features of the old ones: remove train.cache"
        )
    if translated and teaches:
        raise CompositionError(
            "a drafter of another vocabulary learns along texts as they are: take the rollout `text`"
        )
    require_trackers(settings.log or [])
    if settings.length > target.context:
        raise InputError(f"train.length {settings.length} exceeds the target's context of {target.context}")
    if any(p.device != torch.empty(0, device=target.device).device for p in parameters):
        raise CompositionError(f"the drafter must lie on the target's device, {target.device}")
    precision.check(settings, target)
