"""Training by recipe: its drafter, trained by the settings of its `train` section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from specframe.decoding.models import read_recipe
from specframe.decoding.pipeline import Pipeline
from specframe.files.folders import writing
from specframe.kernel.errors import InputError, RecipeError
from specframe.kernel.training import Watcher, learning_in
from specframe.recipes.build import Part, Plan, plan
from specframe.recipes.discovery import discover
from specframe.training.processes import join, keep_freed
from specframe.training.progress import watch
from specframe.training.report import Report
from specframe.training.settings import TrainSettings, settings_of
from specframe.training.train import REMEDY
from specframe.training.train import train as train_drafter
from specframe.training.validation import Losses

EVALUATION_TOKENS = 48
"""New tokens per prompt when a validation decodes the recipe's prompts."""


def train(
    recipe: str | Path,
    *,
    overrides: Sequence[str] = (),
    warm_start: bool = False,
    watcher: Watcher | None = None,
    local_code: bool = True,
) -> Report:
    """Trains a recipe's drafter as `specframe train` does; the same call resumes an interrupted run.

    Args:
        recipe: a file, or the name of a recipe that comes with specframe.
        overrides: `key=value` texts that replace values of the recipe.
        warm_start: start from the recipe's `drafter.weights` instead of new weights.
        watcher: receives progress; None: it is shown on standard error.
        local_code: allow components from `./file.py:Name`.

    Returns the report, whose `folder` has the trained weights. Raises RecipeError for an invalid recipe, InputError for
    one without a `train` section or for unusable data, CompositionError for parts that cannot be trained.
    """
    asked = plan(read_recipe(recipe, overrides), discover(), local_code)
    watcher = watcher or watch()
    with last_training_of(asked, watcher, warm_start, local_code) as training:
        return training.run(watcher)


@dataclass(frozen=True)
class Training:
    """A plan's parts, ready to be trained."""

    pipeline: Pipeline
    losses: Losses
    settings: TrainSettings
    is_main: bool
    """True in the main process, which reports."""

    @property
    def target(self) -> Any:
        """The teacher; training checks that it can teach."""
        return self.pipeline.parts.target

    @property
    def drafter(self) -> Any:
        """The drafter to train; training checks that it can learn."""
        return self.pipeline.parts.drafter

    def run(self, watcher: Watcher) -> Report:
        """Trains to the end; validations decode the recipe's prompts, if there are any."""
        evaluate = _decode_prompts(self.pipeline) if self.pipeline.run.prompts else None
        return train_drafter(self.target, self.drafter, self.losses, self.settings, watcher=watcher, evaluate=evaluate)


@contextmanager
def last_training_of(
    asked: Plan, watcher: Watcher, warm_start: bool = False, local_code: bool = True
) -> Iterator[Training]:
    """The training of a plan's last stage, after running the earlier ones; without stages the plan's own.

    Raises RecipeError for invalid settings of any stage, before the first begins.
    """
    *before, last = stages_of(asked, local_code)
    for stage in before:
        with training_of(stage, warm_start) as training:
            training.run(watcher)
        warm_start = True
    with training_of(last, warm_start) as training:
        yield training


def stages_of(asked: Plan, local_code: bool = True) -> list[Plan]:
    """The plans of `train.stages`, each starting from the previous one's weights; without stages the plan itself."""
    settings = asked.settings.get("train")
    if settings is None or settings.stages is None:
        return [asked]
    found: list[Plan] = []
    for number, changes in enumerate(settings.stages, 1):
        recipe = deepcopy(asked.recipe)
        stage = {name: value for name, value in recipe.data["train"].items() if name != "stages"}
        stage |= {"out": str(settings.out / f"stage-{number}")} if number < len(settings.stages) else {}
        recipe.data["train"] = stage | changes
        recipe.origins |= {("train", name): recipe.origin(("train", "stages", number - 1, name)) for name in changes}
        if inner := changes.keys() & {"out", "stages"}:
            raise RecipeError(f"{recipe.origin(('train', 'stages'))}: a stage of train.stages has no {min(inner)}")
        made = plan(recipe, discover(), local_code)
        if found:
            drafter = _with_weights(made.parts["drafter"], found[-1].settings["train"].out)
            made = replace(made, parts=made.parts | {"drafter": drafter})
        found.append(made)
    return found


@contextmanager
def training_of(plan: Plan, warm_start: bool = False) -> Iterator[Training]:
    """The training of a plan: its models are loaded, its folder is held, torch's generator is seeded.

    Raises InputError for a plan without a `train` section, before anything is loaded.
    """
    settings = settings_of(plan)
    if settings is None:
        drafter = plan.parts["drafter"]
        if not learns(drafter):
            raise InputError(f"the drafter {drafter.entry.name} is not trained: there is nothing to train")
        raise InputError(f"{plan.recipe.path}: there is no train section; it needs at least data and a rollout")
    if warm_start:
        settings = replace(settings, fit=0)
    else:
        plan = replace(plan, parts=plan.parts | {"drafter": _afresh(plan.parts["drafter"])})
    if not plan.settings["run"].prompts:  # nothing is decoded: costs need not be timed
        plan = replace(plan, settings=plan.settings | {"run": replace(plan.settings["run"], costs=None)})
    is_main = join()
    keep_freed()
    with torch.random.fork_rng(devices=[]), writing(settings.out, REMEDY) if is_main else nullcontext():
        torch.manual_seed(settings.seed)
        losses = [(part.build(), weight, part.entry.name) for part, weight in plan.losses]
        yield Training(Pipeline.build(plan), losses, settings, is_main)


def trained_option(plan: Plan) -> str:
    """The option for the weights of the part that a plan trains: `drafter.weights`, `drafter.head.weights`, ..."""
    return ".".join(["drafter", *_trained(plan.parts["drafter"]), "weights"])


def learns(drafter: Part) -> bool:
    """Returns whether a drafter, its head, or the drafter that it wraps has trainable weights."""
    return bool(_trained(drafter)) or hasattr(drafter.component, "module")


def _trained(drafter: Part) -> list[str]:
    """The option path to the trained part: the drafter's head, the drafter that it wraps, or itself (empty)."""
    for option in ("head", "drafter"):
        inner = drafter.options.get(option)
        if isinstance(inner, Part) and hasattr(inner.component, "module"):
            return [option, *_trained(inner)]
    return []


def _with_weights(part: Part, weights: Path) -> Part:
    """The drafter with these weights in the part to be trained."""
    if path := _trained(part):
        return replace(part, options=part.options | {path[0]: _with_weights(part.options[path[0]], weights)})
    return replace(part, options=part.options | {"weights": weights})


def _afresh(part: Part) -> Part:
    """The drafter without the weights of the part to be trained."""
    if path := _trained(part):
        return replace(part, options=part.options | {path[0]: _afresh(part.options[path[0]])})
    return replace(part, options={name: value for name, value in part.options.items() if name != "weights"})


def _decode_prompts(pipeline: Pipeline) -> Callable[[], dict[str, float]]:
    """A validation that decodes the recipe's prompts and measures the actual tau."""

    def evaluate() -> dict[str, float]:
        module = learning_in(pipeline.parts.drafter).module
        was_training = module.training
        module.eval()
        result = pipeline.generate(pipeline.run.prompts, max_new_tokens=EVALUATION_TOKENS)
        module.train(was_training)
        return {"tau": result.acceptance.tau}

    return evaluate
