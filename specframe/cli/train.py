"""`specframe train RECIPE`: trains the recipe's drafter; the same command resumes an interrupted run."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import PATH, asked_recipe, json_option, local_code_allowed, recipe_command, replanned
from specframe.decoding.models import names_model
from specframe.files.text import counted, open_console, printable
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from specframe.recipes.build import Plan
    from specframe.training.recipe import Training
    from specframe.training.settings import TrainSettings

DIAGNOSED = 4
"""Number of prompts that the doctor decodes after a training."""
NAMES = {False: "given  ", True: "learnt "}
COLOURS = {False: "dim", True: "green"}


@recipe_command
@click.option("--warm-start", is_flag=True, help="start from the recipe's drafter.weights, not from new weights")
@click.option(
    "--profile-steps",
    type=click.IntRange(min=1),
    metavar="N",
    help="print where the time of N steps goes; nothing is saved",
)
@click.option(
    "--count-tokens",
    type=PATH,
    metavar="FILE",
    help="write how often each token occurs in the answers of train.data, for the head trimmed; nothing is trained",
)
@click.option(
    "--show",
    type=click.IntRange(min=1),
    metavar="N",
    help="print N samples of train.data as the drafter gets them, given and learnt tokens apart; nothing is trained",
)
@click.option(
    "--auto",
    is_flag=True,
    help="for a model in place of the recipe: let it answer prompts, train and bench a drafter, write its recipe",
)
@click.option("--prompts", type=PATH, metavar="FILE", help="prompts of a JSON, JSONL or text file, for --auto")
@click.option("--minutes", type=float, metavar="N", help="the time that --auto has, about")
@click.option("--out", type=PATH, metavar="DIR", help="where --auto works (default: runs/auto/MODEL)")
@json_option("print the outcome as one JSON object on the last line")
def train(
    plan: Plan,
    warm_start: bool,
    profile_steps: int | None,
    count_tokens: Path | None,
    show: int | None,
    auto: bool,
    prompts: Path | None,
    minutes: float | None,
    out: Path | None,
    as_json: bool,
) -> int:
    """Train the recipe's drafter; the same command resumes an interrupted run."""
    from specframe.training.progress import watch
    from specframe.training.recipe import last_training_of, stages_of, trained_option, training_of
    from specframe.training.timing import profile_steps as profiled
    from specframe.training.token_counts import data_of, write_counts
    from specframe.training.train import prepared

    if auto:
        if warm_start or (profile_steps, count_tokens, show) != (None, None, None):
            raise InputError("--auto begins a drafter: give no --warm-start, --profile-steps, --count-tokens, --show")
        return _make_recipe(plan, prompts, minutes, out, as_json=as_json)
    if (prompts, minutes, out) != (None, None, None):
        raise InputError(
            "--prompts, --minutes and --out belong to --auto; a recipe has them as train.data, train.out, .."
        )
    if show is not None:
        _print_samples(*data_of(plan), show)
        return 0
    if count_tokens is not None:
        counts = write_counts(plan, count_tokens)
        print(printable(f"{counts.total():,} tokens, {len(counts):,} different ones, in {count_tokens}"))
        return 0
    if profile_steps is not None:
        first = stages_of(plan, local_code_allowed())[0]
        with (
            training_of(first, warm_start) as training,
            prepared(training.target, training.drafter, training.losses, training.settings) as trainer,
        ):
            print(printable(str(profiled(trainer, profile_steps))))
        return 0
    watcher = watch()
    with last_training_of(plan, watcher, warm_start, local_code_allowed()) as training:
        try:
            report = training.run(watcher)
        except KeyboardInterrupt:
            if training.is_main:
                raise
            return 130  # only one of the processes that train together reports
        if not training.is_main:
            return 0
        weights = f"{trained_option(plan)}={report.folder}"
        if as_json:
            print(json.dumps({**asdict(report), "folder": str(report.folder), "override": weights}))
            return 0
        best = f", best tau {report.best:.2f}" if report.best is not None else ""
        done = f"{counted(report.steps, 'step')} in {report.seconds:.0f} s{best}; checkpoint in {report.folder}"
        print(printable(done))
        if finding := _diagnose(training, weights):
            print(printable(f"specframe doctor: {finding}"))
    print(printable(f"run it: specframe run {asked_recipe()} {weights}"))
    return 0


def _make_recipe(plan: Plan, prompts: Path | None, minutes: float | None, out: Path | None, *, as_json: bool) -> int:
    """Trains a drafter for a model, and prints the recipe that decodes with it."""
    from specframe.recipes.discovery import discover

    if not names_model(model := asked_recipe()):
        raise InputError(f"--auto makes the recipe: give a model in place of {model}, a folder, GGUF file or Hub name")
    auto = discover().extension("auto", "specframe train --auto", "specframe-distill")
    given = click.get_current_context().params
    recipe = auto(plan, model, given["overrides"], prompts, minutes, out, local_code_allowed())
    print(json.dumps({"recipe": str(recipe)}) if as_json else printable(f"run it: specframe run {recipe}"))
    return 0


def _diagnose(training: Training, weights: str) -> str:
    """Returns the doctor's finding about the checkpoint, or the measured agreement; empty without prompts to decode."""
    from specframe.decoding.pipeline import Pipeline
    from specframe.inspect.doctor import examine
    from specframe.kernel.errors import SpecframeError

    prompts = training.pipeline.run.prompts[:DIAGNOSED]
    if not prompts:
        return ""
    try:
        found = examine(Pipeline.build(replanned([weights]), training.target), prompts, others=False)
    except SpecframeError as error:
        return str(error)
    agreement = f", first choice the target's {found.readings[0].depths[0]:.2f} of the time" if found.readings else ""
    outcome = found.doubt or "nothing is wrong"
    return found.finding or f"tau {found.tau:.2f} on {counted(len(prompts), 'prompt')}{agreement}; {outcome}"


def _print_samples(settings: TrainSettings, tokenizer: Any, count: int) -> None:
    """Prints the first samples of `train.data`, a line for each run of given or learnt tokens."""
    from rich.text import Text

    from specframe.training import documents
    from specframe.training.encoding import encode

    console, variables = open_console(), settings.chat_template_kwargs or {}
    texts = documents.read(settings.data)
    samples = ((text.origin, sample) for text in texts for sample in encode(text, tokenizer, variables))
    for origin, (ids, answer) in islice(samples, count):
        console.print(f"{origin}: {counted(len(ids), 'token')}, {sum(answer):,} learnt", soft_wrap=True)
        for learnt, run in groupby(zip(ids, answer, strict=True), key=lambda pair: pair[1]):
            words = tokenizer.decode([token for token, _ in run])
            console.print(Text(NAMES[learnt] + repr(words)[1:-1], style=COLOURS[learnt]), soft_wrap=True)
