"""`specframe chat RECIPE`: a conversation in the terminal that shows which tokens were drafted."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from specframe.cli.arguments import local_code_allowed, recipe_command
from specframe.files.text import counted, printable

if TYPE_CHECKING:
    from rich.console import Console

    from specframe.decoding.pipeline import Pipeline
    from specframe.decoding.requests import Entry
    from specframe.kernel.build import Plan
    from specframe.kernel.types import Cycle

NEW = "/new"
"""Command that begins another conversation."""
NO_TEMPLATE = "this target cannot chat: its tokenizer has no chat template; use `specframe run`"
HALVES = ("\ufffd", "\r")
"""Endings of a text whose last character or line end is still incomplete."""


@recipe_command
@click.option("--system", metavar="TEXT", help="the system message that the conversation begins with")
def chat(plan: Plan, system: str | None) -> int:
    """Chat with the recipe's target in the terminal, with drafted tokens in colour."""
    from specframe.cli.target import choose_target, describe_target, has_template
    from specframe.decoding.pipeline import Pipeline
    from specframe.files.text import open_console
    from specframe.kernel.errors import InputError

    plan, target = choose_target(plan, local_code_allowed())
    console = open_console()
    console.print(describe_target(target))
    if has_template(str(plan.parts["target"].options.get("model", "zoo://"))) is False:
        raise InputError(NO_TEMPLATE)
    pipeline = Pipeline.build(plan)
    if not getattr(pipeline.tokenizer, "chat_template", None):
        raise InputError(NO_TEMPLATE)
    console.print(f"Drafted tokens are green, the target's own are plain. {NEW} begins anew, Ctrl-D ends.", style="dim")
    first = [{"role": "system", "content": system}] if system else []
    turns = list(first)
    while (question := _ask(console)) is not None:
        if question == NEW:
            turns = list(first)
        elif question:
            turns.append({"role": "user", "content": question})
            try:
                turns.append({"role": "assistant", "content": answer(pipeline, turns, console)})
            except InputError as error:  # too long a conversation
                turns.pop()
                console.print(f"{error}; {NEW} begins anew", style="red")
    return 0


def _ask(console: Console) -> str | None:
    try:
        question = console.input("\n> ").strip()
    except EOFError:
        console.print()
        return None
    if not sys.stdin.isatty():  # a terminal echoes typed text, a pipe does not
        console.out(printable(question), highlight=False)
    return question


def answer(pipeline: Pipeline, turns: list[dict[str, str]], console: Console) -> str:
    """The answer to the last turn, printed as it comes; Ctrl-C ends it early. Raises InputError without room for it."""
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
    return printed.text


class Printed:
    """An answer as it is printed: accepted drafts green, the target's own tokens plain."""

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
        """Prints the rest, half characters included."""
        self._print(self._pipeline.decode(self.tokens), None)
        self._console.print()

    def _add(self, tokens: Sequence[int], style: str | None) -> None:
        self.tokens += tokens
        text = self._pipeline.decode(self.tokens)
        if tokens and not text.endswith(HALVES):
            self._print(text, style)

    def _print(self, text: str, style: str | None) -> None:
        from specframe.files.text import printable

        new = printable(text)[len(printable(self.text)) :]
        self.text = text
        self._console.print(new, end="", style=style, soft_wrap=True)
