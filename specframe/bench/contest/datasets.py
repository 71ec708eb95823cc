"""Prompt sets by name, by path or from the Hub, and samples of them spread over their tasks.

The answers of the set `edits` are its prompts, lightly changed: functions of Python's standard library with misspelt
keywords. They are generated on demand from the sources of the running interpreter (PSF licence); none comes with
specframe, and another version of Python gives other prompts.
"""

from __future__ import annotations

import ast
import os
import random
import re
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from specframe.files.prompts import PromptRecord, read_records
from specframe.kernel.errors import InputError, first_line, needs_extra
from specframe.recipes.registry import suggest

SHIPPED = "specframe"
"""The set that comes with the package."""
EDITS = "edits"
"""The set that is made of Python's standard library."""
HUB = "hub:"
FOLDER = "SPECFRAME_DATA"
"""The environment variable that names the folder of the published sets."""

CHECKED = {"gsm8k": "number", "humaneval": "tests", "mbpp": "tests", EDITS: "similar"}
"""The checks of sets whose answers are known."""

PUBLISHED = {
    "spec_bench": ("mixed", "spec_bench/question.jsonl"),
    "mt_bench": ("dialogue", "mt_bench/question.jsonl"),
    "vicuna_bench": ("dialogue", "vicuna_bench/question.jsonl"),
    "humaneval": ("code", "humaneval/HumanEval.jsonl.gz"),
    "mbpp": ("code", "mbpp/mbpp.jsonl"),
    "gsm8k": ("math", "gsm8k/test.jsonl"),
    "alpaca": ("instructions", "eagle/alpaca/question.jsonl"),
    "cnn_dm": ("summarization", "eagle/sum/question.jsonl"),
    "qa": ("qa", "eagle/qa/question.jsonl"),
    "long-1000": ("long", "long/long-1000.jsonl"),
    "long-4000": ("long", "long/long-4000.jsonl"),
    "long-7500": ("long", "long/long-7500.jsonl"),
}
"""Published sets, each with its task where a record names none, and its file below the folder or its `bench`.

alpaca, cnn_dm and qa are the subsets of 80 prompts that EAGLE's authors publish; their name for cnn_dm is sum. The long
ones are made of published texts by `research/analysis/long_prompts.py`.
"""


@dataclass(frozen=True)
class Question:
    """One prompt of a set."""

    id: str
    """The set's name and the prompt's number in it: `humaneval/0`."""
    set: str
    task: str
    turns: tuple[str, ...]
    """The user's messages, turn by turn."""
    check: str | None = None
    """The name of the check of its last answer; None: its quality is not measured."""
    reference: str = ""
    """Text that the check compares the answer with."""
    image: str | None = None
    """The file of a picture in front of the first message."""


@dataclass(frozen=True)
class SetWord:
    """A requested prompt set: `gsm8k`, `gsm8k=24` or, for one task of a published set, `spec_bench/qa=12`."""

    name: str
    task: str | None = None
    count: int | None = None
    """The number of prompts to decode; None: all."""

    @classmethod
    def read(cls, word: str) -> SetWord:
        """The parts of a word. Raises InputError for an invalid count."""
        name, equals, count = word.rpartition("=")
        if not equals or not count.isdecimal():
            name, count = word, ""
        published, slash, task = name.partition("/")
        if count and not int(count):
            raise InputError(f"{word} decodes nothing; use 1 prompt or more")
        if slash and published in PUBLISHED:
            return cls(published, task, int(count) if count else None)
        return cls(name, None, int(count) if count else None)

    def overlaps(self, other: SetWord) -> bool:
        """True if both mean some of the same prompts."""
        return self.name == other.name and (self.task == other.task or None in (self.task, other.task))


@dataclass(frozen=True)
class PromptSet:
    """The prompts of a set, or of one of its tasks."""

    questions: tuple[Question, ...]
    count: int | None
    """The number of them to decode; None: all."""


def read_sets(words: Sequence[str], check: str | None = None) -> list[PromptSet]:
    """Reads sets by name, path or hub:owner/name:split:column, `=N` after it for N of its prompts.

    `check` is that of all sets, in place of the published ones' own. Raises InputError for a set that is unknown,
    missing, broken, empty or given twice, and for a check of prompts without references.
    """
    found: list[PromptSet] = []
    titles: dict[str, str] = {}
    asked = [SetWord.read(word) for word in words]
    for word in asked:
        if sum(word.overlaps(other) for other in asked) > 1:  # itself is one
            raise InputError(f"the prompt set {word.name} is given twice")
        title, task, records = _find(word.name)
        title = word.name if titles.setdefault(title, word.name) != word.name else title  # two question.jsonl
        questions = [_question(word.name, title, number, record, task, check) for number, record in enumerate(records)]
        chosen = tuple(question for question in questions if word.task in (None, question.task))
        if not chosen:
            tasks = sorted({question.task for question in questions})
            raise InputError(
                f"{word.name} has no task '{word.task}'{suggest(word.task or '', tasks)} (tasks: {', '.join(tasks)})"
            )
        found.append(PromptSet(chosen, word.count))
    return found


def read_questions(words: Sequence[str], check: str | None = None) -> list[Question]:
    """The prompts of all sets, one after the other; `read_sets` has the errors."""
    return [question for each in read_sets(words, check) for question in each.questions]


def _question(name: str, title: str, number: int, record: PromptRecord, task: str, check: str | None) -> Question:
    """A record of a set. Raises InputError for one without the answer that its check needs."""
    if check is not None and record.reference is None:
        raise InputError(f"{title}/{number} has no answer to check: give it a field `answer`")
    known = check or (CHECKED.get(name) if record.reference is not None else None)
    image = str(record.image) if record.image is not None else None
    found = Question(f"{title}/{number}", title, record.task or task, record.turns, image=image)
    return found if known is None else replace(found, check=known, reference=record.reference or "")


def spread(questions: Sequence[Question], seed: int) -> list[Question]:
    """The prompts shuffled so that every prefix of the list is spread evenly over sets and tasks."""
    shuffler = random.Random(seed)
    groups: dict[tuple[str, str], list[Question]] = {}
    for question in questions:
        groups.setdefault((question.set, question.task), []).append(question)
    shuffled = list(groups.values())
    shuffler.shuffle(shuffled)
    for group in shuffled:
        shuffler.shuffle(group)
    return [question for layer in zip_longest(*shuffled) for question in layer if question is not None]


def _find(name: str) -> tuple[str, str, Iterable[PromptRecord]]:
    """The set's title, the task of records that name none, and its records."""
    if name.startswith(HUB):
        return name, name, _read_hub(name)
    if name == SHIPPED:
        return name, name, read_records(Path(__file__).parent / f"{SHIPPED}.jsonl")
    if name == EDITS:
        return name, "editing", [PromptRecord((edit.prompt,), reference=edit.answer) for edit in edits()]
    folder = os.environ.get(FOLDER)
    if name in PUBLISHED:
        task, place = PUBLISHED[name]
        if folder is None:
            raise InputError(f"the prompt set {name} is found below the folder that {FOLDER} names; set {FOLDER}")
        home = Path(os.path.expanduser(folder))
        roots = (home / "bench", home)
        root = next((root for root in roots if (root / place).is_file()), None)
        if root is None:
            raise InputError(f"the prompt set {name} is not below {FOLDER}={folder}; expected {place} there")
        return name, task, read_records(root / place)
    path = Path(os.path.expanduser(name))
    if path.is_file():
        title = path.name.partition(".")[0]
        return title, title, read_records(path)
    raise InputError(
        f"no prompt set named '{name}', and no such file{suggest(name, [SHIPPED, EDITS, *PUBLISHED])} "
        f"(sets: {SHIPPED}, {EDITS}, {', '.join(PUBLISHED)}; or a path, or hub:owner/name:split:column)"
    )


def _read_hub(name: str) -> list[PromptRecord]:
    parts = name.removeprefix(HUB).split(":")
    if len(parts) != 3 or not all(parts):
        raise InputError(f"'{name}' is not of the form hub:owner/name:split:column or hub:owner/name/part:split:column")
    with needs_extra("data", name):
        import datasets
    place, split, column = parts
    owner, _, title = place.partition("/")
    title, _, part = title.partition("/")
    try:
        rows: Any = datasets.load_dataset(f"{owner}/{title}" if title else owner, *filter(None, [part]), split=split)
    except Exception as error:  # it raises many kinds: not found, no network, no such split
        raise InputError(f"{name} cannot be loaded: {first_line(error)}") from error
    if column not in rows.column_names:
        columns = ", ".join(rows.column_names)
        raise InputError(f"{name}: no column '{column}'{suggest(column, rows.column_names)} (columns: {columns})")
    texts = [text for text in rows[column] if isinstance(text, str) and text.strip()]
    if not texts:
        raise InputError(f"{name}: there is no text in that column")
    return [PromptRecord((text,)) for text in texts]


LINES = range(12, 41)
"""Length of a function in lines."""
MISSPELT = {"return": "retrun", "else": "esle", "for": "fro", "while": "whlie"}
"""Misspellings of keywords; the first occurrence in a function is misspelt."""
REQUEST = "Correct the spelling mistakes in this code and repeat the rest word for word:\n\n```python\n{code}\n```"


class Edit(NamedTuple):
    """A request for a changed copy, and the copy."""

    module: str
    """The module's name, without its folder."""
    answer: str
    """The function as it stands in the standard library."""

    @property
    def prompt(self) -> str:
        """The request, with the function misspelt."""
        code = self.answer
        for word, misspelt in MISSPELT.items():
            code = re.sub(rf"\b{word}\b", misspelt, code, count=1)
        return REQUEST.format(code=code)


def edits() -> Iterator[Edit]:
    """One function of each module that has a fitting one, in order of the modules' names.

    Fitting are functions without a docstring, so that everything in them is code, with two of the keywords at least.
    """
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("[a-z]*.py")):
        source = path.read_text(encoding="utf-8", errors="replace")
        found = next((code for code in _functions(source) if _fits(code)), None)
        if found is not None:
            yield Edit(path.stem, found)


def _functions(source: str) -> Iterator[str]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is None:
            yield ast.get_source_segment(source, node) or ""


def _fits(code: str) -> bool:
    known = sum(re.search(rf"\b{word}\b", code) is not None for word in MISSPELT)
    return known >= 2 and len(code.splitlines()) in LINES and code.isascii()
