"""Build the training and held-out splits: ``python corpora.py --out DIR``.

Reads the corpora below the folder that SPECFRAME_DATA names, cleans and de-duplicates them, leaves out
whatever shares a passage with a benchmark prompt, and writes ``train/KIND.jsonl`` and ``heldout/KIND.jsonl``
in a seeded order.
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import os
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import sources
import sources_technical
from documents import KINDS, Document, stable_fraction

HELD_OUT = {"text": 0.004, "dialogue": 0.02, "maths": 0.02, "code": 0.02}
"""Share of each kind that is held out. Plain text is plentiful, so a small share is enough to measure on."""

SHINGLE = 10
"""Length in words of the passages that no training document may share with a benchmark prompt."""

_WORD = re.compile(r"[a-z0-9]+")
# gsm8k/train.jsonl is a training set; the other files below bench/ are what the project measures itself on.
_TRAINABLE = {"bench/gsm8k/train.jsonl"}


def _strings(value: Any) -> Iterator[str]:
    """Yield every string inside a JSON value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def shingles(text: str) -> Iterator[int]:
    """Yield the hashes of all passages of `SHINGLE` words; comparable within one process only."""
    words = _WORD.findall(text.lower())
    for start in range(len(words) - SHINGLE + 1):
        yield hash(tuple(words[start : start + SHINGLE]))


def benchmark_shingles(root: Path) -> set[int]:
    """Return the word sequences of all benchmark material; hashes are comparable within one process only."""
    seen: set[int] = set()
    for path in sorted((root / "bench").rglob("*.jsonl*")):
        if path.relative_to(root).as_posix() in _TRAINABLE:
            continue
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt", encoding="utf-8") as handle:
            for line in handle:
                for text in _strings(json.loads(line)) if line.strip() else ():
                    seen.update(shingles(text))
    return seen


def documents(root: Path) -> Iterator[Document]:
    """Yield all documents of all corpora, repeats and benchmark material included."""
    for reader in (*sources.READERS, *sources_technical.READERS):
        yield from reader(root)


SIMPLE = frozenset(
    {
        "tinystories",
        "self_dialogue",
        "synthetic_persona_chat",
        "gpteacher_roleplay",
        "halueval",
        "gsm8k_train",
        "mawps",
        "word_problems",
        "gpteacher_codegen",
        "tldr",
        "python_stdlib",
    }
)
"""The corpora a small budget suffices for: everyday language, without encyclopedia, news and long answers."""


def build(root: Path, out: Path, seed: int, chosen: frozenset[str] | None = None) -> None:
    """Write the splits of the chosen corpora (None: all) below ``out`` and print a table of what went in."""
    forbidden = benchmark_shingles(root)
    splits: dict[tuple[str, str], list[dict[str, Any]]] = collections.defaultdict(list)
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    seen: set[str] = set()
    for document in documents(root):
        count, body = counts[f"{document.kind}/{document.source}"], document.body()
        fingerprint = " ".join(_WORD.findall(body.lower()))[:2000]
        if fingerprint in seen:
            count["repeated"] += 1
            continue
        seen.add(fingerprint)
        if not forbidden.isdisjoint(shingles(body)):
            count["in a benchmark"] += 1
            continue
        held = stable_fraction(document.key()) < HELD_OUT[document.kind]
        splits["heldout" if held else "train", document.kind].append(document.record())
        count["held out" if held else "kept"] += 1
        count["bytes"] += len(body.encode())
    for name in sorted(counts):
        print(name, dict(counts[name]))
    for split in ("train", "heldout"):
        (out / split).mkdir(parents=True, exist_ok=True)
        for kind in KINDS:
            records = splits[split, kind]
            random.Random(seed).shuffle(records)
            if chosen is not None:  # after the shuffle: a choice leaves the order of the others as it is
                records = [record for record in records if record["source"] in chosen]
            with (out / split / f"{kind}.jsonl").open("w", encoding="utf-8") as handle:
                for record in records:
                    handle.write(json.dumps(record, ensure_ascii=False) + "\n")


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder to write train/ and heldout/ to")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--simple", action="store_true", help="only the corpora that a small budget suffices for")
    arguments = parser.parse_args()
    root = os.environ.get("SPECFRAME_DATA")
    if not root:
        parser.error("set SPECFRAME_DATA to the folder with the corpora (see README.md)")
    build(Path(root), arguments.out, arguments.seed, SIMPLE if arguments.simple else None)


if __name__ == "__main__":
    main()
