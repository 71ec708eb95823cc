"""`specframe train RECIPE`: trains the recipe's drafter; the same command resumes an interrupted run."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import PATH, asked_recipe, json_option, local_code_allowed, recipe_command, replanned
from specframe.files.text import counted, open_console, printable

if TYPE_CHECKING:
    from specframe.recipes.build import Plan
    from specframe.training.recipe import Training
    from specframe.training.settings import TrainSettings

DIAGNOSED = 4
"""Prompts that the doctor decodes after a training."""
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
@json_option("print the outcome as one JSON object on the last line")
def train(
    plan: Plan,
    warm_start: bool,
    profile_steps: int | None,
    count_tokens: Path | None,
    show: int | None,
    as_json: bool,
) -> int:
    """Train the recipe's drafter; the same command resumes an interrupted run."""
    from specframe.training.progress import watch
    from specframe.training.recipe import last_training_of, stages_of, trained_option, training_of
    from specframe.training.timing import profile_steps as profiled
    from specframe.training.token_counts import data_of, write_counts
    from specframe.training.train import prepared

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
        report = training.run(watcher)
        weights = f"{trained_option(plan)}={report.folder}"
        if as_json:
            print(json.dumps({**asdict(report), "folder": str(report.folder), "override": weights}))
            return 0
        best = f", best tau {report.best:.2f}" if report.best is not None else ""
        done = f"{counted(report.steps, 'step')} in {report.seconds:.0f} s{best}; checkpoint in {report.folder}"
        print(printable(done))
        if training.is_main and (finding := _diagnose(training, weights)):
            print(printable(f"specframe doctor: {finding}"))
    print(printable(f"run it: specframe run {asked_recipe()} {weights}"))
    return 0


def _diagnose(training: Training, weights: str) -> str:
    """The doctor's finding about the checkpoint, or the agreement it measures; empty without prompts to decode."""
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
    """Prints the first samples of `train.data`, a line for each run of tokens that are given, or learnt."""
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
