"""`specframe train RECIPE`: trains the recipe's drafter; the same command resumes an interrupted run."""

from __future__ import annotations

import json
from contextlib import nullcontext
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import asked_recipe, json_option, recipe_command
from specframe.files.text import counted, printable
from specframe.kernel.build import Part, Plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from specframe.decoding.pipeline import Pipeline

EVALUATION_TOKENS = 48
"""New tokens per prompt when a validation decodes the recipe's prompts."""


@recipe_command
@click.option("--warm-start", is_flag=True, help="start from the recipe's drafter.weights, not from new weights")
@click.option(
    "--profile-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="print where the time of N steps goes; nothing is saved",
)
@json_option("print the outcome as one JSON object on the last line")
def train(plan: Plan, warm_start: bool, profile_steps: int | None, as_json: bool) -> int:
    """Train the recipe's drafter; the same command resumes an interrupted run."""
    from specframe.kernel.errors import InputError

    settings = plan.settings.get("train")
    if settings is None:
        raise InputError(f"{asked_recipe()}: there is no train section; it needs at least data and a rollout")
    if warm_start:
        settings = replace(settings, fit=0)
    else:
        plan.parts["drafter"] = _afresh(plan.parts["drafter"])

    import torch

    from specframe.decoding.pipeline import Pipeline
    from specframe.files.folders import writing
    from specframe.training.processes import join, keep_freed
    from specframe.training.progress import watch
    from specframe.training.train import REMEDY, prepared
    from specframe.training.train import profile_steps as profiled
    from specframe.training.train import train as train_drafter

    main = join()
    torch.manual_seed(settings.seed)
    keep_freed()
    with writing(settings.out, REMEDY) if main else nullcontext():  # before models load, too
        pipeline = Pipeline.build(plan)
        target: Any = pipeline.parts.target  # training checks, and names what would fit
        drafter: Any = pipeline.parts.drafter
        losses = [(part.build(), weight, part.entry.name) for part, weight in plan.losses]
        if profile_steps is not None:
            with prepared(target, drafter, losses, settings) as trainer:
                print(printable(str(profiled(trainer, profile_steps))))
            return 0
        report = train_drafter(
            target,
            drafter,
            losses,
            settings,
            watcher=watch(),
            evaluate=_decode_prompts(pipeline) if pipeline.run.prompts else None,
        )
    trained = ".".join(["drafter", *_trained(plan.parts["drafter"])])
    weights = f"{trained}.weights={report.folder}"
    if as_json:
        print(json.dumps({**asdict(report), "folder": str(report.folder), "override": weights}))
        return 0
    best = f", best tau {report.best:.2f}" if report.best is not None else ""
    print(printable(f"{counted(report.steps, 'step')} in {report.seconds:.0f} s{best}; checkpoint in {report.folder}"))
    print(printable(f"run it: specframe run {asked_recipe()} {weights}"))
    return 0


def _trained(drafter: Part) -> list[str]:
    """The option path to the trained part: the drafter's head, the drafter that it wraps, or itself (empty)."""
    for option in ("head", "drafter"):
        inner = drafter.options.get(option)
        if isinstance(inner, Part) and hasattr(inner.component, "module"):
            return [option, *_trained(inner)]
    return []


def _afresh(part: Part) -> Part:
    """The drafter without the weights of the part to be trained."""
    if path := _trained(part):
        return replace(part, options=part.options | {path[0]: _afresh(part.options[path[0]])})
    return replace(part, options={name: value for name, value in part.options.items() if name != "weights"})


def _decode_prompts(pipeline: Pipeline) -> Callable[[], dict[str, float]]:
    """A validation that decodes the recipe's prompts: its tau is the one a user will see."""

    from specframe.kernel.training import learning_in

    def evaluate() -> dict[str, float]:
        module = learning_in(pipeline.parts.drafter).module
        was_training = module.training
        module.eval()
        result = pipeline.generate(pipeline.run.prompts, max_new_tokens=EVALUATION_TOKENS)
        module.train(was_training)
        return {"tau": result.acceptance.tau}

    return evaluate
