"""`specframe distill-data RECIPE`: the recipe's target answers prompts; the dialogues are training data."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from specframe.files.text import counted, open_console, printable

if TYPE_CHECKING:
    from specframe.decoding.pipeline import Pipeline
    from specframe.kernel.build import Plan
    from specframe.training.distill.decoding import Decoding
    from specframe.training.distill.dialogue import Answerer, Dialogue
    from specframe.training.distill.store import AnswerStore

MANY = 32
"""For fewer prompts, finding the fastest way would take longer than it saves."""
SUMMARY = "let the recipe's target answer prompts, as data to train drafters on; an interrupted run resumes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from specframe.cli.main import add_recipe_arguments, as_path

    add_recipe_arguments(parser)
    parser.add_argument(
        "--prompts",
        type=as_path,
        required=True,
        metavar="FILE",
        help="chats, questions or texts, as JSONL or as lines of text",
    )
    parser.add_argument(
        "--out", type=as_path, metavar="DIR", help="where answers.jsonl goes (default: runs/RECIPE-data)"
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts of the file")
    parser.add_argument("--seed", type=int, metavar="N", help="seed of all sampling (default: the recipe's run.seed)")
    parser.add_argument(
        "--finished-only", action="store_true", help="drop answers that were cut off at the token budget"
    )
    parser.add_argument(
        "--endpoint", metavar="URL", help="ask an OpenAI-compatible server, such as http://localhost:8000/v1"
    )
    parser.add_argument("--model", metavar="NAME", help="the target's name at the endpoint")
    parser.add_argument(
        "--concurrency", type=int, default=8, metavar="N", help="conversations answered at the same time (default: 8)"
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=600.0,
        metavar="SECONDS",
        help="time limit for one answer of the endpoint (default: 600)",
    )
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object on the last line")


def execute(options: argparse.Namespace) -> int:
    """Answers what is not yet answered, and prints the figures."""
    from specframe.cli.main import read_plan
    from specframe.files.folders import writing
    from specframe.files.provenance import describe_run
    from specframe.training.distill.dialogue import read_dialogues
    from specframe.training.distill.store import AnswerStore

    valid = read_plan(options)
    _check(options, valid)
    sampling, run = valid.settings["sampling"], valid.settings["run"]
    seed = run.seed if options.seed is None else options.seed
    dialogues = read_dialogues(options.prompts, chat=run.chat, limit=options.limit, finished_only=options.finished_only)
    out = options.out or Path("runs") / f"{valid.recipe.path.stem}-data"
    with writing(out):
        store = AnswerStore.open(out, _settings(options, valid, seed))
        left = [dialogue for dialogue in dialogues if dialogue.line not in store.done]
        if len(left) < len(dialogues):
            print(f"{len(dialogues) - len(left)} of {len(dialogues)} prompts are done already", file=sys.stderr)
        rate = None
        if left:
            about = {"model": options.model or _name_target(valid), "temperature": sampling.temperature}
            rate = _answer(
                _find_answerer(options, valid, seed, left, store.tally.conversations > 0), left, store, about
            )
        if left or not store.described:
            store.describe(describe_run(valid, vars(store.tally) | {"tokens_per_second": rate}))
    if options.json:
        print(json.dumps({"answers": str(store.answers), **vars(store.tally), "tokens_per_second": rate}))
    else:
        print(printable("\n".join(show(store, options.recipe, rate))))
    return 0


def _answer(answerer: Answerer, left: list[Dialogue], store: AnswerStore, about: dict[str, Any]) -> float:
    """Tokens per second of having the dialogues answered; each is kept as soon as it is done."""
    before, started = store.tally.tokens, perf_counter()

    def rate() -> float:
        return (store.tally.tokens - before) / (perf_counter() - started)

    try:
        with progress(len(left)) as step:
            for dialogue in answerer.answer(left):
                store.add(dialogue, about)
                step(f"{rate():.0f} tokens/s")
    except KeyboardInterrupt:
        raise KeyboardInterrupt(
            f"interrupted; {store.answers} keeps {store.tally.conversations} conversations, "
            "and the same command goes on"
        ) from None
    return rate()


def show(store: AnswerStore, recipe: str, rate: float | None) -> list[str]:
    """The figures as lines of text, and the command that trains on the answers."""
    from specframe.training.distill.store import DROPPED

    tally = store.tally
    dropped = ", ".join(f"{count} {reason}" for reason, count in sorted(tally.dropped.items()))
    return [
        f"{counted(tally.conversations, 'conversation')} ({tally.unfinished} unfinished), "
        f"{counted(tally.tokens, 'token')}" + (f", {rate:.0f} tokens/s" if rate is not None else ""),
        *([f"left out: {dropped} (the reasons: {store.folder / DROPPED})"] if dropped else []),
        *([f"train on them: specframe train {recipe} 'train.data=[{store.answers}]'"] if tally.conversations else []),
    ]


def _check(options: argparse.Namespace, valid: Plan) -> None:
    """Raises InputError for options that do not go together."""
    from specframe.kernel.errors import InputError

    if (options.endpoint is None) != (options.model is None):
        raise InputError("--endpoint URL and --model NAME belong together")
    if options.limit is not None and options.limit < 1:
        raise InputError(f"--limit {options.limit} answers nothing; use 1 or more")
    verifier = valid.parts["verifier"]
    if options.endpoint is None and not verifier.build().lossless:
        raise InputError(
            f"the verifier {verifier.entry.name} is lossy: its texts are not distributed as the target's; "
            "add verifier.use=match"
        )


def _settings(options: argparse.Namespace, valid: Plan, seed: int) -> dict[str, Any]:
    """What decides the answers, up to the order in which they come."""
    from specframe.training.distill.dialogue import fingerprint

    return {
        "target": options.model or valid.recipe.data["target"],
        "sampling": vars(valid.settings["sampling"]),
        "chat": valid.settings["run"].chat,
        "seed": seed,
        "prompts": fingerprint(options.prompts),
        "finished_only": options.finished_only,
    }


def _find_answerer(
    options: argparse.Namespace, valid: Plan, seed: int, left: Sequence[Dialogue], answered: bool
) -> Answerer:
    if options.endpoint is None:
        from specframe.decoding.pipeline import Pipeline
        from specframe.training.distill.decoding import Decoding

        decoding = Decoding(Pipeline.build(valid), seed)
        if "batch" in (valid.recipe.data.get("run") or {}) or len(left) < MANY:
            return decoding
        return Decoding(_fastest(decoding, left), seed)

    from specframe.training.distill.endpoint import Endpoint, read_key

    endpoint = Endpoint(
        url=options.endpoint,
        model=options.model,
        sampling=valid.settings["sampling"],
        seed=seed,
        concurrency=options.concurrency,
        timeout=options.timeout,
        key=read_key(os.environ),
        answered=answered,
    )
    endpoint.check()
    return endpoint


def _fastest(decoding: Decoding, left: Sequence[Dialogue]) -> Pipeline:
    """The pipeline that answers fastest here; prints what was tried."""
    from specframe.training.distill.decoding import SIZES, fastest

    context = decoding.pipeline.parts.target.context
    prompts = [prompt for dialogue in left[: max(SIZES)] if len(prompt := decoding.encode(dialogue)) < context]
    trials = fastest(decoding.pipeline, prompts)
    for trial in trials:
        print(trial, file=sys.stderr)
    return trials[0].pipeline


def _name_target(valid: Plan) -> str:
    """The target's model as the recipe has it, or the target's name where it has none."""
    target = valid.parts["target"]
    return str(target.options.get("model", target.entry.name))


@contextmanager
def progress(total: int) -> Iterator[Callable[[str], None]]:
    """A step to be called after every dialogue: it moves a bar on standard error, where that is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.fields[note]}"))
    console = open_console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("answers", total=total, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
