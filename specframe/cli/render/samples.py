"""Training samples as text: what of them is given, and what a drafter learns."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from rich.text import Text

from specframe.files.text import counted
from specframe.training import documents
from specframe.training.encoding import Encoded, encode

if TYPE_CHECKING:
    from rich.console import Console

    from specframe.training.settings import TrainSettings

NAMES = {False: "given  ", True: "learnt "}
COLOURS = {False: "dim", True: "green"}


def samples(settings: TrainSettings, tokenizer: Any) -> Iterator[tuple[str, Encoded]]:
    """Each sample of the documents of `train.data` with its origin."""
    for document in documents.read(settings.data):
        for sample in encode(document, tokenizer, settings.chat_template_kwargs or {}):
            yield document.origin, sample


def print_samples(console: Console, settings: TrainSettings, tokenizer: Any, count: int) -> None:
    """Prints the first samples, a line for each run of tokens that are given, or learnt."""
    for origin, (ids, answer) in islice(samples(settings, tokenizer), count):
        console.print(f"{origin}: {counted(len(ids), 'token')}, {sum(answer):,} learnt", soft_wrap=True)
        for learnt, run in groupby(zip(ids, answer, strict=True), key=lambda pair: pair[1]):
            words = tokenizer.decode([token for token, _ in run])
            console.print(Text(NAMES[learnt] + repr(words)[1:-1], style=COLOURS[learnt]), soft_wrap=True)
