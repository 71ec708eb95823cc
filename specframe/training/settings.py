"""The recipe's `train` section."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from specframe.kernel.training import Rollout, Watcher
    from specframe.recipes.build import Plan


@dataclass(frozen=True)
class Mixture:
    """Further texts, and the share of a step's texts that they are: it changes linearly from step to step."""

    data: list[str]
    begin: float = 0.0
    end: float = 1.0

    @classmethod
    def read(cls, given: dict[str, Any]) -> Mixture:
        """The mixture of a recipe's `train.mixture`. Raises InputError for one that cannot be used."""
        known = {"data": None, "from": 0.0, "to": 1.0}
        if unknown := given.keys() - known.keys():
            raise InputError(f"train.mixture has no option {min(unknown)}; it has {', '.join(known)}")
        values = known | given
        data, shares = values["data"], (values["from"], values["to"])
        if not isinstance(data, list) or not data or not all(isinstance(source, str) for source in data):
            raise InputError("train.mixture.data must be a list of JSONL files or names of data sets")
        if not all(isinstance(share, int | float) and 0 <= share <= 1 for share in shares):
            raise InputError(f"train.mixture: from and to are shares, from 0 to 1, not {shares[0]} and {shares[1]}")
        return cls(data, *map(float, shares))


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The `train` section.

    Args:
        data: JSONL files or globs of them, "text" or "messages" in each line, or as ShareGPT, Alpaca and TRL write
            them; `zoo://NAME`, texts of a plugin; or Hub data sets, name[:split].
        chat_template_kwargs: variables of the chat template, such as `{enable_thinking: false}`, where a record has
            none of its own; none: those of the section `run`.
        skip: leave out texts that the chat template refuses, and say how many; false: the first of them is an error,
            as it is in any case where most are refused.
        mixture: further texts, {data: [..], from: 0, to: 1}: their share of a step's texts goes linearly from the first
            step's to the last one's.
        rollout: how the drafter is unrolled.
        out: the folder of the best checkpoint, the training state and train.json; a run resumes from it.
        epochs: how often every text is seen.
        steps: how many optimizer steps, whatever `epochs` is.
        minutes: so many steps as take this long here, whatever `epochs` is, by the time of the first; train.json has
            their number.
        batch: texts of one forward, per process.
        length: tokens of a text at most; longer ones are cut into several.
        pack: fill rows of `length` with text after text instead of padding each text.
        lr: the learning rate after the warm-up. The default trains small drafters from nothing in some thousand steps;
            authors of drafters for large models, with a hundred times the data, take 3e-5.
        schedule: how the learning rate falls to 0 after the warm-up.
        cooldown: with the schedule constant, how a run ends: over the last `share` of its steps, 0.15 where it is not
            given, the rate falls to 0 in a line, and the drafter is kept as it is then. `at` are numbers of tokens,
            counted as in train.json, each of them an end: the run branches off in time, and the branch lies in
            `tokens-N` in `out`, the same bit by bit as a run of so many tokens alone. The largest number ends the run
            itself, in place of `epochs` and `steps`.
        warmup: steps of linear warm-up; below 1, a share of all steps.
        betas: of AdamW; (0.9, 0.95) in EAGLE and Falcon.
        weight_decay: of AdamW.
        clip: the largest norm a gradient may have; 0 clips nothing.
        accumulate: forwards per optimizer step; each weighs the same, however much of its texts counts.
        precision: of products, weights being float32: float32, tf32 (GPUs only), bf16 (autocast), or auto: bf16 where
            the processor has instructions for it or the target is in half precision, and float32 elsewhere.
        seed: seeds the order of the texts and all randomness of a step.
        validation: the share of documents held back for validation, 128 at most; 0 validates nothing.
        validate_every: steps between validations; none: once an epoch.
        save_every: steps between saves of the training state.
        log_every: steps between reports of the losses.
        fit: how many texts the map that fuses token and feature is fitted to, by least squares, before the first step
            of a new drafter of EAGLE's kind; 0: it starts random.
        cache: a folder that keeps the target's features, so that later epochs need no target forward.
        log: trackers that get the figures, by Accelerate's names: tensorboard, wandb, mlflow, ...
        watcher: a component that receives the training's events.
        stages: settings of this section that replace those above, for one training after the other: each begins with
            the weights that the one before it ends in, which are kept in `stage-N` in `out`.
    """

    data: list[str]
    rollout: Rollout
    chat_template_kwargs: dict[str, Any] | None = None
    skip: bool = True
    out: Path = Path("trained")
    epochs: int = 20
    steps: int | None = None
    minutes: float | None = None
    batch: int = 8
    length: int = 512
    pack: bool = False
    lr: float = 1e-3
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    cooldown: dict[str, list[int] | float] | None = None
    warmup: float = 0.01
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.01
    clip: float = 0.5
    accumulate: int = 1
    precision: Literal["auto", "float32", "tf32", "bf16"] = "float32"
    seed: int = 0
    validation: float = 0.05
    validate_every: int | None = None
    save_every: int = 500
    log_every: int = 20
    fit: int = 0
    mixture: dict[str, Any] | None = None
    cache: Path | None = None
    log: list[str] | None = None
    watcher: Watcher | None = None
    stages: list[dict[str, Any]] | None = None

    def __post_init__(self) -> None:
        if not self.data:
            raise InputError("train.data is empty; give JSONL files or the names of Hub data sets")
        if self.mixed is not None and self.pack:
            raise InputError("train.pack: texts of a mixture are not packed; leave it out")
        if self.mixture is not None and self.cooldown is not None:
            raise InputError("train.mixture: its shares depend on the last step; leave train.cooldown out")
        at_least = {"epochs": 1, "steps": 1, "batch": 1, "length": 8, "accumulate": 1, "save_every": 1}
        for name, least in {**at_least, "log_every": 1, "validate_every": 1}.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise InputError(f"train.{name} is {value}; it must be {least} or more")
        for name in ("lr", "warmup", "weight_decay", "clip", "fit"):
            if not getattr(self, name) >= 0:
                raise InputError(f"train.{name} is {getattr(self, name)}; it must not be negative")
        if not 0 <= self.validation < 1:
            raise InputError(f"train.validation is {self.validation}; it is a share, from 0 to below 1")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"train.betas are {list(self.betas)}; both must lie in [0, 1)")
        if self.stages is not None and not self.stages:
            raise InputError("train.stages is empty; give the settings of each stage, or leave it out")
        if self.minutes is not None and not 0 < self.minutes < float("inf"):
            raise InputError(f"train.minutes is {self.minutes}; it must be a positive number")
        if self.minutes is not None and self.steps is not None:
            raise InputError("train.minutes and train.steps are both an end; give one of them")
        if self.cooldown is not None:
            self._check_cooldown(self.cooldown)

    def _check_cooldown(self, cooldown: dict[str, list[int] | float]) -> None:
        if self.minutes is not None and cooldown.get("at"):
            raise InputError("train.minutes and train.cooldown.at are both an end; give one of them")
        if unknown := sorted(set(cooldown) - {"at", "share"}):
            raise InputError(f"train.cooldown: it has `at` and `share`, and no {unknown[0]}")
        if self.schedule != "constant":
            raise InputError(f"train.cooldown: the schedule {self.schedule} falls by itself; take constant")
        marks, share = cooldown.get("at", []), cooldown.get("share", 0.15)
        if isinstance(share, list) or not 0 < share < 1:
            raise InputError(f"train.cooldown.share is {share}; it is a share of the steps, between 0 and 1")
        if not isinstance(marks, list) or any(mark < 1 for mark in marks) or len(set(marks)) < len(marks):
            raise InputError(f"train.cooldown.at is {marks}; it is a list of different numbers of tokens")
        if len(marks) > 1 and 0 < self.warmup < 1:
            raise InputError("train.warmup must be in steps where train.cooldown.at has several ends")

    @property
    def mixed(self) -> Mixture | None:
        """The mixture, read."""
        return None if self.mixture is None else Mixture.read(self.mixture)


def settings_of(plan: Plan) -> TrainSettings | None:
    """A plan's `train` section, if any, with the template's variables of `run` where it has none of its own."""
    settings = plan.settings.get("train")
    if not isinstance(settings, TrainSettings):
        return None
    if settings.chat_template_kwargs is not None:
        return settings
    return replace(settings, chat_template_kwargs=plan.settings["run"].chat_template_kwargs)
