"""Write what a drafter is trained on: ``python mixture.py --data FOLDER --out FILE``.

The target's own answers, for SmolLM2 those published with the data and those of the package specframe-zoo, for others
the files of ``--answers``, and ``--others`` of other writers to questions that it has not answered. ``FOLDER`` is laid
out as ``SPECFRAME_DATA``. No question of a benchmark is taken, and nothing that shares ten words in a row with one.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from corpora import benchmark_shingles, shingles

from specframe.recipes.zoo import data_file

OWN, MORE = (data_file(f"zoo://smollm2-135m-{name}") for name in ("answers", "more-answers"))
"""Answers that were made later, for stages of training after the first."""
OTHERS = 3_600
LONGEST_QUESTION, LONGEST_ANSWER = 900, 1600
"""Characters."""
TRAINABLE = "train.jsonl"
"""The file among the benchmarks' that may be trained on, GSM8K's."""


def key(text: str) -> str:
    """Return the text's words alone, so that two writings of a question are equal."""
    return re.sub(r"\W+", " ", text.lower()).strip()


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a file's lines, packed or not."""
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as file:
        for line in file:
            try:
                found = json.loads(line)
            except ValueError:
                continue  # a benchmark's file that is one JSON document
            if isinstance(found, dict):
                yield found


def benchmarks(data: Path) -> set[str]:
    """Return the keys of all texts of the benchmarks."""
    held = set()
    for path in sorted((data / "bench").rglob("*.json*")):
        if path.name != TRAINABLE:
            for record in lines(path):
                for value in record.values():
                    held |= {key(text) for text in (value if isinstance(value, list) else [value]) if type(text) is str}
    return held


def own(files: Iterable[Path], shortest: int) -> Iterator[tuple[str, str]]:
    """Yield the target's own answers with their questions; those of fewer words than ``shortest`` are left out."""
    for path in files:
        for record in lines(path):
            question, answer = (message["content"] for message in record["messages"])
            if len(answer.split()) >= shortest:
                yield question, answer


def others(data: Path) -> Iterator[tuple[str, str]]:
    """Yield answers by people and by other models."""
    for record in lines(data / "bench" / "gsm8k" / "train.jsonl"):
        yield str(record["question"]), re.sub(r"<<.*?>>", "", str(record["answer"]))
    for name in ("codegen-instruct.json", "roleplay-simple-deduped-roleplay-instruct.json"):
        for record in json.loads((data / "instruct" / "gpteacher" / name).read_text()):
            yield f"{record['instruction']}\n{record['input']}".strip(), record["response"]
    for record in lines(data / "instruct" / "halueval" / "general_data.json"):
        yield str(record["user_query"]), str(record["chatgpt_response"])


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder that SPECFRAME_DATA names")
    parser.add_argument("--out", type=Path, required=True, help="a JSONL file of messages")
    parser.add_argument("--more", action="store_true", help="with the answers that were made later")
    parser.add_argument("--answers", type=Path, nargs="+", help="another target's, as `specframe distill-data` writes")
    parser.add_argument("--shortest", type=int, default=0, help="words of an answer of its own, at least")
    parser.add_argument("--others", type=int, default=OTHERS, help="answers of other writers, at most")
    options = parser.parse_args()
    held, passages, chance = benchmarks(options.data), benchmark_shingles(options.data), random.Random(7)

    files = options.answers or [options.data / "smollm2" / "answers.jsonl.gz", OWN, *([MORE] if options.more else [])]

    def clean(pair: tuple[str, str]) -> bool:
        return key(pair[0]) not in held and passages.isdisjoint(shingles("\n".join(pair)))

    chosen = [pair for pair in own(files, options.shortest) if clean(pair)]
    count, seen, more = len(chosen), {key(question) for question, _ in chosen}, []
    for question, answer in others(options.data):
        if key(question) not in seen and answer.strip() and len(question) <= LONGEST_QUESTION:
            seen.add(key(question))
            more.append((question, answer.strip()[:LONGEST_ANSWER]))
    chance.shuffle(more)
    chosen += [pair for pair in more[: options.others] if clean(pair)]
    chance.shuffle(chosen)
    with options.out.open("w") as file:
        for question, answer in chosen:
            turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": turns}) + "\n")
    print(f"{count} answers of its own, {len(chosen) - count} of others")


if __name__ == "__main__":
    main()
