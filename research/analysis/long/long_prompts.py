"""Write the prompt set `long`: prompts of 1,000, 4,000 and 7,500 tokens, made from published texts.

    python research/analysis/long/long_prompts.py --out "$SPECFRAME_DATA/long"

``SPECFRAME_DATA`` is the folder that the bench reads its published sets from. Four tasks: summaries of articles of the
English Wikipedia, one of Spec-Bench's questions over many of its passages, modules of Python's standard library with
one class to rewrite, and several stories of Wikinews. The text of one length begins the text of the next (passages
aside, which stand in one order throughout), so that lengths are compared on the same texts.
"""

from __future__ import annotations

import argparse
import ast
import json
import lzma
import os
import random
import re
import sysconfig
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

LENGTHS = (1000, 4000, 7500)
"""Tokens of a prompt at most. The last leaves room for 256 more and a chat template in a context of 8,192."""
SHORTEST = 0.8
"""Shortest prompt of a length, as a share of it: texts are cut at paragraphs only."""
GRAM = 8
"""Tokens of an n-gram whose repetition is counted."""
REPEATED = {"summary": 0.03, "passages": 0.15, "code": 0.25, "stories": 0.03}
"""Largest share of a prompt's 8-grams that stood in it before, by task.

A prompt that repeats itself makes a small model repeat itself, and every draft on a part of it looks good.
"""
ARTICLE = 36_000
"""Characters of an article at least."""
CLASS_LINES = range(12, 46)
"""Length in lines of the class that is rewritten."""
LOST = re.compile(r" [,.]|^[,.]|\( *[,;)]|\"\"|\bthe (of|and|in|for)\b|formula_|codice_")
"""Where the plain text of a dump lost a link or a formula."""
SKIPPED = {"test", "tests", "idlelib", "lib2to3", "site-packages", "pydoc_data", "encodings", "turtledemo"}
"""Folders of the standard library without code that a person wrote to be read."""

Record = dict[str, Any]
"""A line of the set's file: task, prompt, source, tokens, repeated, and answers where there are some."""
Count = Callable[[str], int]
"""Returns the number of tokens of a text."""
Write = Callable[[Sequence[str]], str]
"""Returns the prompt that has these pieces of the text in it."""


@dataclass(frozen=True)
class Text:
    """A published text as pieces, and how a prompt is made of the first of them."""

    task: str
    source: str
    """The article, question, module or first story."""
    pieces: tuple[str, ...]
    write: Write
    answers: tuple[str, ...] = field(default=())
    """Reference answers, where the publisher has some."""


def fit(text: Text, length: int, count: Count) -> str | None:
    """Return the prompt with as many pieces as `length` tokens hold; None where it is below 80 % of that."""

    def tokens(pieces: int) -> int:
        return count(text.write(text.pieces[:pieces]))

    most = bisect_right(range(1, len(text.pieces) + 1), length, key=tokens)
    enough = most > 0 and tokens(most) >= SHORTEST * length
    return text.write(text.pieces[:most]) if enough else None


def repeated(tokens: Sequence[Hashable], gram: int = GRAM) -> float:
    """Return the share of the n-grams that stood in the text before."""
    grams = [tuple(tokens[i : i + gram]) for i in range(len(tokens) - gram + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else 0.0


def articles(path: Path) -> Iterator[tuple[str, str]]:
    """Yield title and body of a dump's articles: a blank line follows the title, and another the body."""
    with lzma.open(path, "rt", encoding="utf-8") as file:
        blocks = [block.strip() for block in file.read().split("\n\n")]
    title = ""
    for block in filter(None, blocks):
        if "\n" not in block and len(block) < 120 and not block.endswith("."):
            title = block
        elif title:
            yield title, block
            title = ""


def summaries(path: Path, chance: random.Random) -> Iterator[Text]:
    """Yield long articles, to be summarised."""
    found = [(title, body) for title, body in articles(path) if len(body) >= ARTICLE and len(LOST.findall(body)) < 40]
    chance.shuffle(found)
    for title, body in found:
        lines = [line for line in body.split("\n") if len(line) > 60 and not LOST.search(line)]  # no headings, no holes

        def write(pieces: Sequence[str], title: str = title) -> str:
            return f"{title}\n\n" + "\n\n".join(pieces) + "\n\nSummarize the article above in a few paragraphs."

        yield Text("summary", title, tuple(lines), write)


def passages(path: Path, chance: random.Random) -> Iterator[Text]:
    """Yield Spec-Bench's questions, the passages of each in random places among those of other questions."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records = [record for record in records if record["category"] == "rag"]
    split = [record["turns"][0].strip().split("\n") for record in records]
    for own, record in zip(split, records, strict=True):
        others = [line for lines in split if lines is not own for line in lines[:-1] if len(line) > 300]
        chance.shuffle(others)
        pieces = ("\n\n".join(own[:-1]), *others)  # the question's own are in at every length
        keys = {piece: chance.random() for piece in (*own, *others)}

        def write(
            pieces: Sequence[str], keys: dict[str, float] = keys, own: Sequence[str] = own, title: str = own[-1]
        ) -> str:
            shown = sorted((*own[:-1], *pieces[1:]), key=keys.__getitem__)
            return "\n\n".join(shown) + f"\n\nAnswer from the passages above: {title}"

        answers = record.get("reference", [[]])[0]
        yield Text("passages", str(record["question_id"]), pieces, write, tuple(answers))


def modules(folder: Path, chance: random.Random, count: Count) -> Iterator[Text]:
    """Yield long modules, each with a request to rewrite one of the first classes in what is shown of it."""
    paths = [path for path in sorted(folder.rglob("*.py")) if SKIPPED.isdisjoint(path.relative_to(folder).parts)]
    chance.shuffle(paths)
    for path in paths:
        source = path.read_text(encoding="utf-8", errors="replace")
        if len(source) < ARTICLE or not source.isascii():
            continue
        for name, opening, rest in excerpts(source):
            if count(opening) < 0.75 * LENGTHS[0] and len(rest) > ARTICLE * 0.8:
                blocks = re.split(r"\n\n+(?=\S)|\n\n+(?=    \S)", rest.strip("\n"))

                def write(pieces: Sequence[str], name: str = name) -> str:
                    code = "\n\n".join(pieces)
                    return (
                        f"```python\n{code}\n```\n\nRewrite the class {name} of this module: give each of its methods "
                        "a docstring of one line, and repeat the rest of the class word for word."
                    )

                yield Text("code", f"{path.relative_to(folder)}:{name}", (opening, *blocks), write)
                break


def excerpts(source: str) -> Iterator[tuple[str, str, str]]:
    """Yield classes of a fitting size: the name, the module's text from just before it to its end, and the rest."""
    lines, body = source.splitlines(), ast.parse(source).body
    for before, node in zip([None, *body], body, strict=False):
        size = (node.end_lineno or 0) - node.lineno + 1
        if isinstance(node, ast.ClassDef) and size in CLASS_LINES:
            start = 0 if before is None else (before.end_lineno or 0)
            yield node.name, "\n".join(lines[start : node.end_lineno]).strip("\n"), "\n".join(lines[node.end_lineno :])


def stories(path: Path, chance: random.Random) -> Iterator[Text]:
    """Yield groups of stories, no story in two of them."""
    found = [(title, body) for title, body in articles(path) if 800 < len(body) < 4000 and not LOST.search(body)]
    chance.shuffle(found)
    rest = iter(found)

    def write(pieces: Sequence[str]) -> str:
        return "\n\n".join(pieces) + "\n\nWrite a short paragraph about each of the stories above."

    while group := list(islice(rest, 30)):
        pieces = [
            f"{title}\n\n{line}" if first else line
            for title, body in group
            for first, line in ((place == 0, line) for place, line in enumerate(body.split("\n")))
        ]
        yield Text("stories", group[0][0], tuple(pieces), write)


def choose(texts: Iterator[Text], count: Count, gram: Callable[[str], float], number: int) -> list[dict[int, Record]]:
    """Return records by length: the first `number` texts that fill every length and do not repeat themselves."""
    chosen: list[dict[int, Record]] = []
    for text in texts:
        if len(chosen) == number:
            break
        prompts = {length: fit(text, length, count) for length in LENGTHS}
        if all(prompt is not None and gram(prompt) <= REPEATED[text.task] for prompt in prompts.values()):
            chosen.append(
                {
                    length: {
                        "task": text.task,
                        "prompt": prompt,
                        "source": text.source,
                        "tokens": count(prompt),
                        "repeated": round(gram(prompt), 3),
                        **({"answers": text.answers} if text.answers else {}),
                    }
                    for length, prompt in prompts.items()
                    if prompt is not None
                }
            )
    return chosen


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("SPECFRAME_DATA"), help="default: SPECFRAME_DATA")
    parser.add_argument("--out", type=Path, required=True, help="a folder: long-1000.jsonl and so on are written there")
    parser.add_argument("--tokenizer", default="smollm2-135m", help="a name of the zoo, or a folder")
    parser.add_argument("--number", type=int, default=8, help="prompts of each task")
    options = parser.parse_args()
    if options.data is None:
        parser.error("give --data, the folder with bench/ and corpus/")
    records = make(options.data, options.tokenizer, options.number)
    options.out.mkdir(parents=True, exist_ok=True)
    for length in LENGTHS:
        with (options.out / f"long-{length}.jsonl").open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(record[length], ensure_ascii=False) + "\n" for record in records)
        for task in REPEATED:
            rows = [record[length] for record in records if record[length]["task"] == task]
            tokens, shares = [row["tokens"] for row in rows], [row["repeated"] for row in rows]
            print(f"{length} {task}: {len(rows)} prompts of {min(tokens)} to {max(tokens)} tokens, 8-grams repeated "
                  f"{sum(shares) / len(shares):.3f} (at most {max(shares):.3f})")  # fmt: skip


def make(data: Path, tokenizer: str, number: int) -> list[dict[int, Record]]:
    """Return `number` prompts of each task at each length; the same ones every time."""
    from transformers import AutoTokenizer

    import specframe

    folder = tokenizer if Path(tokenizer).is_dir() else str(specframe.model_folder(tokenizer))
    encode = AutoTokenizer.from_pretrained(folder).encode

    def count(text: str) -> int:
        return len(encode(text, add_special_tokens=False))

    def gram(text: str) -> float:
        return repeated(encode(text, add_special_tokens=False))

    wikipedia, wikinews = (data / "corpus" / name / "part00.txt.xz" for name in ("wikipedia_en", "wikinews_en"))
    sets = (
        summaries(wikipedia, random.Random(1)),
        passages(data / "bench" / "spec_bench" / "question.jsonl", random.Random(2)),
        modules(Path(sysconfig.get_path("stdlib")), random.Random(3), count),
        stories(wikinews, random.Random(4)),
    )
    return [record for texts in sets for record in choose(texts, count, gram, number)]


if __name__ == "__main__":
    main()
