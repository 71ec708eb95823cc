"""`specframe chat RECIPE`: a conversation in the terminal that shows which tokens were drafted."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.arguments import local_code_allowed, recipe_command
from specframe.files.text import counted, printable
from specframe.kernel.errors import InputError
from specframe.recipes.registry import suggest

if TYPE_CHECKING:
    from rich.console import Console

    from specframe.decoding.pipeline import Pipeline
    from specframe.decoding.requests import Entry
    from specframe.kernel.types import Cycle
    from specframe.recipes.build import Plan

HELP = {
    "/new": "begin anew; so does /reset",
    "/system TEXT": "begin anew with this system message, or with none",
    "/image FILE": "a picture that the next question is about",
    "/save FILE": "add the conversation to a file that train.data reads",
    "/help": "this list",
}
"""Commands of a conversation as typed, and their effects."""
COMMANDS = (*(usage.split()[0] for usage in HELP), "/reset")
OF_FILES = ("/image", "/save")
COMMAND = re.compile("/[a-z]+")
NO_TEMPLATE = "this target cannot chat: its tokenizer has no chat template; use `specframe run`"
HALVES = ("\ufffd", "\r")
"""Endings of a text whose last character or line end is incomplete."""


@recipe_command
@click.option("--system", metavar="TEXT", help="the system message that the conversation begins with")
def chat(plan: Plan, system: str | None) -> int:
    """Chat with the recipe's target in the terminal, with drafted tokens in colour."""
    from specframe.cli.questions import PipedQuestions, TypedQuestions
    from specframe.cli.target import choose_target, describe_target
    from specframe.decoding.models import has_template
    from specframe.decoding.pipeline import Pipeline
    from specframe.files.text import open_console

    plan, target = choose_target(plan, local_code_allowed())
    console = open_console()
    console.print(describe_target(target))
    if has_template(str(plan.parts["target"].options.get("model", "zoo://"))) is False:
        raise InputError(NO_TEMPLATE)
    pipeline = Pipeline.build(plan)
    if not getattr(pipeline.tokenizer, "chat_template", None):
        raise InputError(NO_TEMPLATE)
    console.print("Drafted tokens are green, the target's own plain. /help lists commands, Ctrl-D ends.", style="dim")
    conversation = Conversation(pipeline, console, system)
    typed = sys.stdin.isatty()
    questions = TypedQuestions(COMMANDS, OF_FILES) if typed else PipedQuestions(console)
    while (question := questions.ask()) is not None:
        try:
            conversation.take(question)
        except InputError as error:
            console.print(str(error), style="red", markup=False)
    return 0


class Conversation:
    """The turns so far, and the handling of input lines: questions are answered, commands executed."""

    def __init__(self, pipeline: Pipeline, console: Console, system: str | None) -> None:
        self.system = system
        self.turns: list[dict[str, Any]] = []
        self.images: list[Path] = []
        """Pictures for the next question."""
        self._pipeline, self._console = pipeline, console
        self.begin()

    def begin(self) -> None:
        """Starts a new conversation, with the system message alone."""
        self.turns = [{"role": "system", "content": self.system}] if self.system else []
        self.images = []

    def take(self, line: str) -> None:
        """Answers a question or executes a command; raises InputError for an invalid line."""
        name, _, rest = line.partition(" ")
        if name in COMMANDS:
            self._obey(name, rest.strip())
        elif COMMAND.fullmatch(name):
            raise InputError(f"there is no command {name}{suggest(name, COMMANDS)}; /help lists them")
        elif line:
            self.answer(line)

    def answer(self, question: str) -> None:
        """Answers a question. Raises InputError, and drops the question, if the context has no room for it."""
        parts = [*({"type": "image", "image": file} for file in self.images), {"type": "text", "text": question}]
        self.turns.append({"role": "user", "content": parts if self.images else question})
        try:
            text = answer(self._pipeline, self.turns, self._console)
        except InputError as error:  # the conversation is too long, or a picture cannot be read
            self.turns.pop()
            raise InputError(f"{error}; /new begins anew") from error
        self.turns.append({"role": "assistant", "content": text})
        self.images = []

    def _obey(self, name: str, rest: str) -> None:
        if name in OF_FILES and not rest:
            raise InputError(f"{name} needs a file")
        if name == "/help":
            for usage, about in HELP.items():
                self._console.print(f"{usage:14}{about}", style="dim", highlight=False, markup=False)
        elif name == "/image":
            self._look_at(Path(rest).expanduser())
        elif name == "/save":
            self._save(Path(rest).expanduser())
        else:
            if name == "/system":
                self.system = rest or None
            self.begin()
            self._console.print("a new conversation", style="dim")

    def _look_at(self, file: Path) -> None:
        from specframe.components.targets.image_processor import BLIND, open_image
        from specframe.kernel.interfaces import text_of

        if not text_of(self._pipeline.parts.target).image_tokens:
            raise InputError(BLIND)
        open_image(file)
        self.images.append(file)
        self._console.print(f"the next question is about {counted(len(self.images), 'picture')}", style="dim")

    def _save(self, file: Path) -> None:
        """Appends the conversation to a file that `train.data` reads; raises InputError if it cannot be written."""
        if not any(turn["role"] == "assistant" for turn in self.turns):
            raise InputError("there is no answer to save yet")
        if any(not isinstance(turn["content"], str) for turn in self.turns):
            raise InputError("a conversation about pictures cannot be saved")
        try:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps({"messages": self.turns}, ensure_ascii=False) + "\n")
        except OSError as error:
            raise InputError(f"{file} cannot be written to: {error.strerror or error}") from error
        self._console.print(f"added to {file}", style="dim", highlight=False)


def answer(pipeline: Pipeline, turns: Sequence[Mapping[str, Any]], console: Console) -> str:
    """Returns the answer to the last turn, printed as it is generated; Ctrl-C ends it early.

    Raises InputError if there is no room for it.
    """
    from specframe.decoding.stats import Acceptance

    number = sum(turn["role"] == "assistant" for turn in turns)
    requests = pipeline.requests([pipeline.encode_turns(turns)], first=number)
    clock, acceptance = pipeline.clock(), Acceptance()
    printed = Printed(pipeline, console)

    def watch(cycle: Cycle) -> None:
        (entry,) = session.cycle_rows
        printed.show(entry, cycle.verdict.to_host(cycle.draft).paths[0])
        if cycle.committed.prompt is None:
            acceptance.add(cycle)

    with clock.phase("session"), pipeline.open_endless(1, watch=watch) as session:
        try:
            session.run(requests)
        except KeyboardInterrupt:
            console.print(" ...", style="dim")
    clock.settle()
    printed.finish()
    tau, count = acceptance.settle().tau, len(printed.tokens)
    console.print(
        f"{counted(count, 'token')}, {printed.drafted} drafted; tau {tau:.2f}; "
        f"{count / clock.seconds['session']:.1f} tokens/s",
        style="dim",
    )
    context = pipeline.parts.target.context
    if len(requests[0].tokens) + count >= context:
        console.print(f"the context of {context:,} tokens is full; /new begins anew", style="dim")
    return printed.text


class Printed:
    """Printing of an answer: accepted drafts in green, the target's own tokens plain."""

    def __init__(self, pipeline: Pipeline, console: Console) -> None:
        self.tokens: list[int] = []
        self.drafted = 0
        """Number of drafted tokens."""
        self.text = ""
        self._pipeline = pipeline
        self._console = console

    def show(self, entry: Entry, path: Sequence[int]) -> None:
        """Prints the tokens that a cycle added to the entry: the drafted ones of its path, then the target's own."""
        new = entry.tokens[len(self.tokens) :]
        drafted = new[: len(path)]
        self.drafted += len(drafted)
        self._add(drafted, "green")
        self._add(new[len(path) :], None)

    def finish(self) -> None:
        """Prints the rest, including incomplete characters."""
        self._print(self._pipeline.decode(self.tokens), None)
        self._console.print()

    def _add(self, tokens: Sequence[int], style: str | None) -> None:
        self.tokens += tokens
        text = self._pipeline.decode(self.tokens)
        if tokens and not text.endswith(HALVES):
            self._print(text, style)

    def _print(self, text: str, style: str | None) -> None:
        new = printable(text)[len(printable(self.text)) :]
        self.text = text
        self._console.print(new, end="", style=style, soft_wrap=True)
