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
    """Additional texts and their share of each step's texts, which changes linearly over the run."""

    data: list[str]
    begin: float = 0.0
    end: float = 1.0

    @classmethod
    def read(cls, given: dict[str, Any]) -> Mixture:
        """The mixture of a recipe's `train.mixture`. Raises InputError for an invalid one."""
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
        data: JSONL files or globs of them, "text" or "messages" in each line, or in the formats of ShareGPT, Alpaca
            and TRL; `zoo://NAME`, texts of a plugin; or Hub data sets, name[:split].
        chat_template_kwargs: variables of the chat template, such as `{enable_thinking: false}`, for records without
            their own; none: those of the section `run`.
        skip: skip texts that the chat template refuses, and report their number; false: the first of them is an error.
            If most are refused, it is always an error.
        mixture: additional texts, {data: [..], from: 0, to: 1}: their share of a step's texts changes linearly from the
            first step to the last.
        rollout: how the drafter is unrolled.
        out: the folder of the best checkpoint, the training state and train.json; a run resumes from it.
        epochs: number of passes over the texts.
        steps: number of optimizer steps; overrides `epochs`.
        minutes: training time; overrides `epochs`. The number of steps is estimated from the first ones and recorded
            in train.json.
        batch: texts per forward pass and process.
        length: largest number of tokens of a text; longer ones are cut into several.
        pack: pack several texts into rows of `length` instead of padding each text.
        lr: the learning rate after the warm-up. The default trains new small drafters in a few thousand steps;
            authors of drafters for large models, with a hundred times the data, use 3e-5.
        schedule: how the learning rate falls to 0 after the warm-up.
        cooldown: decay at the end of a run with constant schedule: over the last `share` of its steps (default 0.15)
            the rate falls linearly to 0, and the final drafter is kept. `at` lists numbers of tokens, counted as in
            train.json, at which a run ends: a branch with its own decay is written to `tokens-N` in `out`, bitwise
            equal to a separate run of that many tokens. The largest number ends the run itself, in place of `epochs`
            and `steps`.
        warmup: steps of linear warm-up; below 1, a share of all steps.
        betas: of AdamW; (0.9, 0.95) in EAGLE and Falcon.
        weight_decay: of AdamW.
        clip: the largest gradient norm; 0: no clipping.
        accumulate: forward passes per optimizer step, with equal weights regardless of their number of positions.
        precision: of products, with float32 weights: float32, tf32 (GPUs only), bf16 (autocast), or auto: bf16 if
            the processor has instructions for it or the target is in half precision, else float32.
        seed: seeds the order of the texts and all randomness of a step.
        validation: the share of documents held back for validation, at most 128 documents; 0: no validation.
        validate_every: steps between validations; none: once an epoch.
        save_every: steps between saves of the training state.
        log_every: steps between reports of the losses.
        fit: number of texts to which the layer that fuses token and feature is fitted by least squares before the first
            step of a new drafter of EAGLE's family; 0: random initialisation.
        cache: a folder for the target's features, so that later epochs need no forward pass of the target.
        log: trackers for the figures, by Accelerate's names: tensorboard, wandb, mlflow, ...
        watcher: a component that receives the training's events.
        stages: settings that override this section, one entry per stage: each stage starts from the final weights of
            the previous one, which are kept in `stage-N` in `out`.
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
    """A plan's `train` section, if any; template variables default to those of `run`."""
    settings = plan.settings.get("train")
    if not isinstance(settings, TrainSettings):
        return None
    if settings.chat_template_kwargs is not None:
        return settings
    return replace(settings, chat_template_kwargs=plan.settings["run"].chat_template_kwargs)
