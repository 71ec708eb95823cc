"""Training samples as text: what of them is given, and what a drafter learns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any

from rich.text import Text

from specframe.files.text import counted
from specframe.training import documents
from specframe.training.encoding import Encoded, encode

if TYPE_CHECKING:
    from rich.console import Console

NAMES = {False: "given  ", True: "learnt "}
COLOURS = {False: "dim", True: "green"}


def samples(sources: Iterable[str], tokenizer: Any) -> Iterator[tuple[str, Encoded]]:
    """Each sample of the sources' documents with its origin."""
    for document in documents.read(sources):
        for sample in encode(document, tokenizer):
            yield document.origin, sample


def print_samples(console: Console, sources: Iterable[str], tokenizer: Any, count: int) -> None:
    """Prints the first samples, a line for each run of tokens that are given, or learnt."""
    for origin, (ids, answer) in islice(samples(sources, tokenizer), count):
        console.print(f"{origin}: {counted(len(ids), 'token')}, {sum(answer):,} learnt", soft_wrap=True)
        for learnt, run in groupby(zip(ids, answer, strict=True), key=lambda pair: pair[1]):
            words = tokenizer.decode([token for token, _ in run])
            console.print(Text(NAMES[learnt] + repr(words)[1:-1], style=COLOURS[learnt]), soft_wrap=True)
