"""Progress line of `train --auto`, and the tau that the scaling law predicts for its training."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from specframe.plugin import printable
from specframe_distill.auto.sections import BATCH, LENGTH

LAW = (-0.513, 0.364, 0.054)
"""Coefficients of tau by the logarithms of tokens and parameters: EAGLE on SmolLM2-135M, docs/methods/scaling.md."""
PARAMETERS = 4.2e6
"""Number of parameters of the drafter to which the law was fitted."""


class Expectation:
    """Watcher of a training that shows its steps, and the tau that the scaling law predicts for them."""

    def __init__(self, show: Callable[[str], None]) -> None:
        self.show, self.total, self.tokens, self.tau = show, 0, 0, 1.0

    def start(self, done: int, total: int, note: str) -> None:
        """Shows the prediction."""
        self.total, self.tokens = total, total * BATCH * LENGTH
        constant, by_tokens, by_parameters = LAW
        law = constant + by_tokens * math.log10(self.tokens) + by_parameters * math.log10(PARAMETERS)
        self.tau = max(1.0, law)
        self.report(done, {})

    def report(self, step: int, figures: Mapping[str, float]) -> None:
        """Shows the step."""
        self.show(f"training, step {step} of {self.total}: {self.tokens:,} tokens, tau {self.tau:.2f} expected")

    def validated(self, step: int, figures: Mapping[str, float]) -> None:
        """Leaves the line unchanged."""

    def finish(self, note: str) -> None:
        """Leaves the line unchanged."""


@contextmanager
def progress_line(minutes: float) -> Iterator[Callable[[str], None]]:
    """Yields a function that shows a step: one line with the time, or a line per step without a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    stream, shown = sys.stderr, ""  # the original stream, because standard error is replaced inside
    console = Console(file=stream, markup=False, emoji=False, highlight=False)
    texts = (TextColumn("{task.description}", markup=False), TimeElapsedColumn(), TextColumn(f"of {minutes:g} min"))
    with Progress(SpinnerColumn(), *texts, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task("")

        def show(text: str) -> None:
            nonlocal shown
            bar.update(task, description=printable(text))
            if not console.is_terminal and (kind := text.partition(", step")[0]) != shown:
                print(printable(text), file=stream, flush=True)
                shown = kind

        yield show
