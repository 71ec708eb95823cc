"""Write questions for a target to answer: ``python questions.py --data FOLDER --out FILE``.

Instructions of GPTeacher, HaluEval, Self-instruct, OASST and T0, GSM8K's training set, functions of the standard
library, and passages to summarise, translate and answer from. ``FOLDER`` is laid out as ``SPECFRAME_DATA``. Nothing is
taken that is in a benchmark or shares ten words in a row with one. Each line of the file is a chat with its source.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import sources
import sources_technical
from corpora import benchmark_shingles, shingles
from mixture import benchmarks, key, lines

SHORTEST, LONGEST = 8, 1800
"""Characters of a question; of one with a passage, twice as many at most."""
MOST = {"t0": 9_000, "passages": 6_000, "stdlib": 4_000}
"""Questions of a source that is larger."""
PASSAGE = (40, 260)
"""Words of a passage."""
WRITTEN = (
    "Write a short story that begins with: {0}",
    "Write an essay about {0}.",
    "Explain {0} to a child.",
    "Give me five facts about {0}.",
    "What is {0}?",
    "Write a blog post with the title: {0}",
    "Compare {0} and {1}.",
    "Draft an email to a colleague about {0}.",
)
"""Questions about the title of an article, or of two."""
READ = (
    "Summarize: {0}\n\n{1}",
    "Summarize the following article in a few sentences.\n\n{1}",
    "Translate to German: {2}",
    "Translate German to English: {2}",
    "Answer from the passage: what is known about {0}?\n\n{1}",
    "{1}\n\nWhat is this text about?",
    "Rewrite this in simpler words: {2}",
    "List the names in this text.\n\n{1}",
)
"""Questions about a title {0}, a passage {1} or its first sentence {2}."""

Found = Iterator[tuple[str, str]]


def instructions(data: Path) -> Found:
    """Yield the questions of sets of instructions, each with its source."""
    for name in ("codegen-instruct", "roleplay-simple-deduped-roleplay-instruct", "toolformer-dedupe-only-dataset"):
        for record in json.loads((data / "instruct" / "gpteacher" / f"{name}.json").read_text()):
            source = "gpteacher_codegen" if name.startswith("codegen") else "gpteacher"
            yield source, f"{record['instruction']}\n{record['input']}"
    for record in lines(data / "instruct" / "halueval" / "general_data.json"):
        yield "halueval", str(record["user_query"])
    for record in lines(data / "instruct" / "self_instruct" / "seed_tasks.jsonl"):
        yield "self_instruct", f"{record['instruction']}\n{record['instances'][0]['input']}"
    for record in lines(data / "instruct" / "self_instruct" / "user_oriented_instructions.jsonl"):
        yield "self_instruct", f"{record['instruction']}\n{record['instances'][0]['input']}"
    for record in lines(data / "bench" / "gsm8k" / "train.jsonl"):
        yield "gsm8k_train", str(record["question"])


def conversations(data: Path) -> Found:
    """Yield the first question of each of OASST's conversations."""
    with tarfile.open(data / "instruct" / "qlora_generations.tar.gz") as archive:
        handle = archive.extractfile("eval/generations/oa/gpt-3.5-oa-generations.jsonl")
        assert handle is not None
        for line in handle:
            turns = [turn.strip() for turn in re.split(r"###\s*(?:Human|Assistant):\s*", json.loads(line)["input"])]
            yield from (("oasst", turn) for turn in turns[1::2])


def templates(data: Path) -> Found:
    """Yield T0's prompts, without those of CNN/DailyMail, which summaries are measured on."""
    with tarfile.open(data / "instruct" / "t0_50k_per_template.tar.gz") as archive:
        for member in sorted(archive.getmembers(), key=lambda item: item.name):
            handle = archive.extractfile(member) if member.name.endswith(".jsonl") else None
            if handle is not None and "cnn" not in member.name:
                for line in handle:
                    yield "t0", json.loads(line)["prompt"]


def functions(data: Path) -> Found:
    """Yield signatures with docstrings to complete, and requests for functions, of the standard library."""
    for document in sources_technical.standard_library(data):
        if document.messages:
            yield "stdlib", document.messages[0][1]
        elif document.text and re.match(r'def \w+\(.*\).*:\n    """', document.text):
            yield "stdlib", document.text[: document.text.index('"""', document.text.index('"""') + 3) + 3]


def passages(data: Path, dice: random.Random) -> Found:
    """Yield questions about articles, by the templates above."""
    title = "the sea"
    for document in (*sources.wikinews(data), *sources.wikipedia(data)):
        assert document.text is not None
        before, (title, _, body) = title, document.text.partition("\n\n")
        body = body.split("\n\n")[0].strip()
        if not PASSAGE[0] <= len(body.split()) <= PASSAGE[1] or len(title) > 60:
            continue
        if dice.random() < 0.5:
            yield "passages", dice.choice(WRITTEN).format(title, before)
        else:
            yield "passages", dice.choice(READ).format(title, body, re.split(r"(?<=[.!?])\s", body)[0])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that SPECFRAME_DATA names")
    parser.add_argument("--out", type=Path, required=True, help="a JSONL file of messages")
    options = parser.parse_args()
    held, measured, dice = benchmarks(options.data), benchmark_shingles(options.data), random.Random(11)
    found: dict[str, tuple[str, str]] = {}
    for reader in (instructions, conversations, templates, functions, lambda data: passages(data, random.Random(5))):
        for source, text in reader(options.data):
            question = text.strip()
            longest = 2 * LONGEST if source == "passages" else LONGEST
            if SHORTEST <= len(question) <= longest and key(question):
                found.setdefault(key(question), (source, question))
    chosen = list(found.values())
    dice.shuffle(chosen)
    counts: Counter[str] = Counter()
    with options.out.open("w") as file:
        for source, question in chosen:
            if counts[source] >= MOST.get(source, len(chosen)):
                continue
            if key(question) in held or not measured.isdisjoint(shingles(question)):
                continue
            counts[source] += 1
            file.write(json.dumps({"messages": [{"role": "user", "content": question}], "source": source}) + "\n")
    print(f"{counts.total():,} questions: {dict(counts)}")


if __name__ == "__main__":
    main()
