"""Readers of plain text and dialogue corpora; each yields :class:`documents.Document`."""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from documents import Document, chat, clean, is_english

ARTICLE_LIMIT = 20_000
"""Characters kept of an encyclopedia article: openings are fluent prose, later parts are lists and
references."""

_TURN = re.compile(r"###\s*(?:Human|Assistant):\s*")
_PERSONA_LINE = re.compile(r"^User [12]:\s*(.*)$")


def _tar_texts(path: Path, suffix: str) -> Iterator[tuple[str, str]]:
    """Yield (member name, text) of the files in a tar archive whose names end in ``suffix``, in order of
    name."""
    with tarfile.open(path) as archive:
        for member in sorted(archive.getmembers(), key=lambda item: item.name):
            handle = archive.extractfile(member) if member.name.endswith(suffix) else None
            if handle is not None:
                yield member.name, handle.read().decode("utf-8", "replace")


def _json_lines(text: str) -> Iterator[dict[str, Any]]:
    for line in text.splitlines():
        if line.strip():
            yield json.loads(line)


def _articles(path: Path) -> Iterator[str]:
    """Yield the articles of a dump: a title and a body, told apart by a blank line on either side of the
    title.

    In these dumps a blank line follows the title and another ends the article, so blocks come in pairs.
    """
    with lzma.open(path, "rt", encoding="utf-8", errors="replace") as handle:
        blocks = [block.strip() for block in handle.read().split("\n\n")]
    title = ""
    for block in blocks:
        if not block:
            continue
        if "\n" not in block and len(block) < 120 and not block.endswith("."):
            title = block
        elif title:
            yield f"{title}\n\n{block}"
            title = ""


def wikipedia(root: Path) -> Iterator[Document]:
    """English Wikipedia articles, cut to their openings; formula-laden and stub articles are left out."""
    for path in sorted((root / "corpus/wikipedia_en").glob("*.xz")):
        for article in _articles(path):
            if article.count("formula_") > 2 or article.count("<") > 5:
                continue
            # The dump dropped pronunciations and left their brackets.
            text = clean(article.replace(" ()", "").replace("(; ", "("))
            if len(text) > ARTICLE_LIMIT:
                text = text[: text.rfind("\n", 0, ARTICLE_LIMIT)]
            if len(text) > 500 and is_english(text):
                yield Document("text", "wikipedia_en", text=text)


def wikinews(root: Path) -> Iterator[Document]:
    """English Wikinews stories. The dump lost its links, so stories with many emptied brackets are left
    out."""
    for path in sorted((root / "corpus/wikinews_en").glob("*.xz")):
        for article in _articles(path):
            holes = article.count("()") + article.count(" ,") + article.count("the of") + article.count(" .")
            text = clean(article)
            if 400 < len(text) < 8000 and holes * 400 < len(text) and is_english(text):
                yield Document("text", "wikinews_en", text=text)


def tinystories(root: Path) -> Iterator[Document]:
    """Children's stories. The files overlap: `corpora` drops repeats. The lower-cased file is left out."""
    for path in sorted((root / "corpus/tinystories").glob("*.txt")):
        if path.name.startswith("arnoochka"):
            continue
        raw = path.read_text("utf-8", "replace").replace("<|endoftext|>", "\n\n")
        story: list[str] = []
        for line in raw.split("\n"):
            # No separator is common to all files, but nearly every story opens in one of these ways.
            if re.match(r"(Once upon a time|One day,|Once there|Once,)", line) and len("\n".join(story)) > 300:
                yield Document("text", "tinystories", text=clean("\n".join(story)))
                story = []
            story.append(line)


def self_dialogue(root: Path) -> Iterator[Document]:
    """Crowd-sourced conversations in which one person wrote both sides."""
    for _, raw in _tar_texts(root / "instruct/self_dialogue_csv.tar.gz", ".csv"):
        for row in csv.DictReader(io.StringIO(raw)):
            numbers = sorted(
                int(name.removeprefix("Answer.sentence")) for name in row if name and name.startswith("Answer.sentence")
            )
            turns = [(row[f"Answer.sentence{number}"] or "").strip() for number in numbers]
            turns = [turn for turn in turns if turn]
            if len(turns) >= 6 and len(set(turns)) > 0.8 * len(turns):
                document = chat("dialogue", "self_dialogue", turns)
                if document:
                    yield document


def persona_chat(root: Path) -> Iterator[Document]:
    """Synthetic persona chats; the assistant's persona becomes a system message now and then."""
    for path in sorted((root / "instruct/synthetic_persona_chat").glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as handle:
            for row in csv.DictReader(handle):
                found = (_PERSONA_LINE.match(line.strip()) for line in row["Best Generated Conversation"].split("\n"))
                turns = [match.group(1) for match in found if match]
                if len(turns) < 4 or "[User" in " ".join(turns):
                    continue
                document = chat("dialogue", "synthetic_persona_chat", turns)
                if document is None:
                    continue
                yield document
                persona = clean(row["user 2 personas"]).replace("\n", " ")
                if persona:
                    system = ("system", f"You are a person. {persona}")
                    yield Document("dialogue", document.source, messages=(system, *document.messages))


def gpteacher_roleplay(root: Path) -> Iterator[Document]:
    """Role play instructions and answers."""
    path = root / "instruct/gpteacher/roleplay-simple-deduped-roleplay-instruct.json"
    for row in json.loads(path.read_text("utf-8")):
        question = row["instruction"] + (f"\n{row['input']}" if row["input"] else "")
        document = chat("dialogue", "gpteacher_roleplay", [question, row["response"]])
        if document:
            yield document


def halueval(root: Path) -> Iterator[Document]:
    """User queries with answers; those marked as made up are left out."""
    for row in _json_lines((root / "instruct/halueval/general_data.json").read_text("utf-8")):
        turns = [row["user_query"], row["chatgpt_response"]]
        if row["hallucination"] == "no" and is_english(turns[1]):
            document = chat("dialogue", "halueval", turns)
            if document:
                yield document


def qlora(root: Path) -> Iterator[Document]:
    """English answers of several models, and the reference answers, to OASST conversations (no Vicuna
    prompts)."""
    for name, raw in _tar_texts(root / "instruct/qlora_generations.tar.gz", ".jsonl"):
        if "/oa/" not in name:
            continue
        for row in _json_lines(raw):
            if row.get("lang") != "en":
                continue
            history = [turn.strip() for turn in _TURN.split(row["input"]) if turn.strip()]
            if len(history) % 2 == 0:
                continue
            answers = [row["output"]] + ([row["generation"]] if "flan" not in name else [])
            for answer in answers:
                document = chat("dialogue", "qlora_generations", [*history, answer])
                if document and is_english(document.body()):
                    yield document


def arena_answers(root: Path) -> Iterator[Document]:
    """Answers of several models to the prompts of the arena-hard repository."""
    questions: dict[str, str] = {}
    answers: list[tuple[str, str]] = []
    for name, raw in _tar_texts(root / "instruct/arena_hard_answers.tar.gz", ".jsonl"):
        for row in _json_lines(raw):
            turns = row.get("turns") or (row["choices"][0]["turns"] if "choices" in row else [])
            content = turns[0]["content"] if turns and isinstance(turns[0], dict) else (turns[0] if turns else "")
            if name.endswith("question.jsonl"):
                questions[row["question_id"]] = content
            else:
                answers.append((row["question_id"], content))
    for identity, answer in answers:
        document = chat("dialogue", "arena_hard_answers", [questions.get(identity, ""), answer])
        if document and is_english(document.body()):
            yield document


READERS = (
    wikipedia,
    wikinews,
    tinystories,
    self_dialogue,
    persona_chat,
    gpteacher_roleplay,
    halueval,
    qlora,
    arena_answers,
)
"""Readers of this module, in the order they are run."""
