"""`specframe distill-data RECIPE`: the recipe's target answers prompts, and the dialogues are training data."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import click

from specframe import InputError, SpecframeError, recipe_command
from specframe.plugin import UserPath, counted, data_file, printable

if TYPE_CHECKING:
    from specframe import Pipeline
    from specframe.plugin import Plan
    from specframe_distill.decoding import Decoding
    from specframe_distill.dialogue import Dialogue
    from specframe_distill.store import AnswerStore

MANY = 32
"""Minimum number of prompts for which the search for the fastest settings saves more time than it takes."""


class TextsPath(UserPath):
    """A path, or `zoo://NAME` for texts that a plugin registers."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the texts' file; texts that no plugin has are an invalid value."""
        if not str(value).startswith("zoo://"):
            return super().convert(value, param, ctx)
        try:
            return data_file(str(value))
        except SpecframeError as error:
            self.fail(str(error), param, ctx)


@recipe_command
@click.option(
    "--prompts",
    type=TextsPath(),
    required=True,
    metavar="FILE",
    help="chats, questions or texts, as JSONL or as lines of text; or zoo://NAME, texts of a plugin",
)
@click.option("--out", type=UserPath(), metavar="DIR", help="where answers.jsonl goes (default: runs/RECIPE-data)")
@click.option("--limit", type=int, metavar="N", help="only the first N prompts of the file")
@click.option("--seed", type=int, metavar="N", help="seed of all sampling (default: the recipe's run.seed)")
@click.option("--finished-only", is_flag=True, help="drop answers that were cut off at the token budget")
@click.option("--endpoint", metavar="URL", help="ask an OpenAI-compatible server, such as http://localhost:8000/v1")
@click.option("--model", metavar="NAME", help="the target's name at the endpoint")
@click.option("--concurrency", default=8, metavar="N", help="conversations answered at the same time")
@click.option("--timeout", default=600.0, metavar="SECONDS", help="time limit for one answer of the endpoint")
@click.option("--json", "as_json", is_flag=True, help="print the figures as one JSON object on the last line")
def distill_data(
    plan: Plan,
    prompts: Path,
    out: Path | None,
    limit: int | None,
    seed: int | None,
    finished_only: bool,
    endpoint: str | None,
    model: str | None,
    concurrency: int,
    timeout: float,
    as_json: bool,
) -> int:
    """Let the recipe's target answer prompts, as data to train drafters on; an interrupted run resumes."""
    from specframe.plugin import describe_run, writing
    from specframe_distill.dialogue import fingerprint, read_dialogues
    from specframe_distill.store import AnswerStore

    _check(plan, endpoint, model, limit)
    sampling, run = plan.settings["sampling"], plan.settings["run"]
    seed = run.seed if seed is None else seed
    dialogues = read_dialogues(prompts, chat=run.chat, limit=limit, finished_only=finished_only)
    template = {"chat_template_kwargs": run.chat_template_kwargs} if run.chat and run.chat_template_kwargs else {}
    settings = {  # everything that determines the answers, except their order
        "target": model or plan.recipe.data["target"],
        "sampling": vars(sampling),
        "chat": run.chat,
        "seed": seed,
        "prompts": fingerprint(prompts),
        "finished_only": finished_only,
        **template,
    }
    folder = out or Path("runs") / f"{plan.recipe.path.stem}-data"
    with writing(folder):
        store = AnswerStore.open(folder, settings)
        left = [dialogue for dialogue in dialogues if dialogue.line not in store.done]
        if len(left) < len(dialogues):
            print(f"{len(dialogues) - len(left)} of {len(dialogues)} prompts are done already", file=sys.stderr)
        rate = None
        if left:
            about = {"model": model or _name_target(plan), "temperature": sampling.temperature, **template}
            if endpoint is None or model is None:
                answer = _decoding(plan, seed, left).answer
            else:
                from specframe_distill.endpoint import Endpoint, read_key

                answered = store.tally.conversations > 0
                server = Endpoint(
                    url=endpoint,
                    model=model,
                    sampling=sampling,
                    seed=seed,
                    concurrency=concurrency,
                    timeout=timeout,
                    key=read_key(os.environ),
                    answered=answered,
                    template=template,
                )
                server.check()
                answer = server.answer
            rate = _answer(answer, left, store, about)
        if left or not store.described:
            store.describe(describe_run(plan, vars(store.tally) | {"tokens_per_second": rate}))
    if as_json:
        print(json.dumps({"answers": str(store.answers), **vars(store.tally), "tokens_per_second": rate}))
    else:
        asked = click.get_current_context().params["recipe"] if plan.settings.get("train") is not None else None
        print(printable("\n".join(show(store, asked, rate))))
    return 0


def _answer(
    answer: Callable[[Sequence[Dialogue]], Iterator[Dialogue]],
    left: list[Dialogue],
    store: AnswerStore,
    about: dict[str, Any],
) -> float:
    """Answers the dialogues and stores each when it is done; returns the tokens per second."""
    before, started = store.tally.tokens, perf_counter()

    def rate() -> float:
        return (store.tally.tokens - before) / (perf_counter() - started)

    try:
        with progress(len(left)) as step:
            for dialogue in answer(left):
                store.add(dialogue, about)
                step(f"{rate():.0f} tokens/s")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {store.answers} keeps {store.tally.conversations} conversations, "
            "and the same command goes on"
        ) from None
    return rate()


def show(store: AnswerStore, recipe: str | None, rate: float | None) -> list[str]:
    """Returns the statistics as lines of text, with the command that trains on the answers, unless `recipe` is None."""
    from specframe_distill.store import DROPPED

    tally = store.tally
    command = f"specframe train {recipe or 'RECIPE'} 'train.data=[{store.answers}]'"
    if recipe is None:
        command += ", by a recipe with a `train` section"
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.dropped.items()))
    return [
        f"{counted(tally.conversations, 'conversation')} ({tally.unfinished} unfinished), "
        f"{counted(tally.tokens, 'token')}" + (f", {rate:.0f} tokens/s" if rate is not None else ""),
        *([f"left out: {dropped} (the reasons: {store.folder / DROPPED})"] if dropped else []),
        *([f"train on them: {command}"] if tally.conversations else []),
    ]


def _check(plan: Plan, endpoint: str | None, model: str | None, limit: int | None) -> None:
    """Raises InputError for options that cannot be combined."""
    from specframe.plugin import will_approximate

    if (endpoint is None) != (model is None):
        raise InputError("--endpoint URL and --model NAME belong together")
    if limit is not None and limit < 1:
        raise InputError(f"--limit {limit} answers nothing; use 1 or more")
    verifier = plan.parts["verifier"]
    if endpoint is None and not verifier.build().lossless:
        raise InputError(
            f"the verifier {verifier.entry.name} is lossy: its texts are not distributed as the target's; "
            "add verifier.use=match"
        )
    if endpoint is None and will_approximate(plan.parts["target"]):
        option = "prompt" if plan.parts["target"].options.get("prompt") is not None else "keep"
        raise InputError(
            f"the target reads or keeps a part of long prompts (target.{option}): its texts are not distributed as its "
            f"model's; add target.{option}=null"
        )


def _decoding(plan: Plan, seed: int, left: Sequence[Dialogue]) -> Decoding:
    """Returns the recipe's own decoding, with the fastest batch size if there are many prompts."""
    from specframe import Pipeline
    from specframe_distill.decoding import Decoding

    decoding = Decoding(Pipeline.build(plan), seed)
    if "batch" in (plan.recipe.data.get("run") or {}) or len(left) < MANY:
        return decoding
    return Decoding(_fastest(decoding, left), seed)


def _fastest(decoding: Decoding, left: Sequence[Dialogue]) -> Pipeline:
    """Returns the pipeline that answers fastest on this machine; prints the trials."""
    from specframe_distill.decoding import SIZES, fastest

    context = decoding.pipeline.parts.target.context
    prompts = [prompt for dialogue in left[: max(SIZES)] if len(prompt := decoding.encode(dialogue)) < context]
    trials = fastest(decoding.pipeline, prompts)
    for trial in trials:
        print(trial, file=sys.stderr)
    return trials[0].pipeline


def _name_target(plan: Plan) -> str:
    """Returns the target's model in the recipe, or the target's name if there is no model."""
    target = plan.parts["target"]
    return str(target.options.get("model", target.entry.name))


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call after every dialogue; it advances a bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("answers", total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
