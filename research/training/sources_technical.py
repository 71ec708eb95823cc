"""Readers of mathematics and code corpora; each yields :class:`documents.Document`."""

from __future__ import annotations

import ast
import json
import random
import re
import sysconfig
import tarfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

from documents import Document, chat, clean, stable_fraction
from word_problems import problems

SYNTHETIC_PROBLEMS = 40_000
"""Number of word problems that the generator contributes: real ones are few, and the forms of arithmetic need
repetition."""

_MARKS = re.compile(r"<<[^>]*>>")
_PLACEHOLDER = re.compile(r"\{\{(.*?)\}\}")
# Tables of characters, generated parsers and the like teach a language model nothing.
_SKIPPED_MODULES = re.compile(
    r"(encodings/|lib2to3/tests/data|pydoc_data|test/(cjk|test_tcl|badsyntax|bad_)|_sysconfigdata)"
)


def gsm8k(root: Path) -> Iterator[Document]:
    """Grade school problems of the training set, calculator marks removed, the answer in a closing
    sentence."""
    for line in (root / "bench/gsm8k/train.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        steps, _, result = _MARKS.sub("", row["answer"]).partition("####")
        document = chat("maths", "gsm8k_train", [row["question"], f"{steps.strip()}\nThe answer is {result.strip()}."])
        if document:
            yield document


def mawps(root: Path) -> Iterator[Document]:
    """One- and two-step problems of the MAWPS collection that tora carries (none of tora's test sets)."""
    with tarfile.open(root / "misc/tora.tar.xz") as archive:
        for part in ("addsub", "multiarith", "singleeq", "singleop"):
            handle = archive.extractfile(f"src/data/mawps/{part}.jsonl")
            if handle is None:
                continue
            for line in handle.read().decode("utf-8").splitlines():
                row = json.loads(line)
                number = f"{float(row['target']):g}"
                document = chat("maths", "mawps", [row["input"], f"The answer is {number}."])
                if document:
                    yield document


def synthetic(root: Path) -> Iterator[Document]:
    """Generated word problems with worked steps; ``root`` is not read."""
    del root
    for question, answer in problems(SYNTHETIC_PROBLEMS, seed=11):
        document = chat("maths", "word_problems", [question, answer])
        if document:
            yield document


def gpteacher_code(root: Path) -> Iterator[Document]:
    """Code generation instructions and answers."""
    for row in json.loads((root / "instruct/gpteacher/codegen-instruct.json").read_text("utf-8")):
        question = row["instruction"] + (f"\n{row['input']}" if row["input"] else "")
        document = chat("code", "gpteacher_codegen", [question, row["response"]])
        if document:
            yield document


def tldr(root: Path) -> Iterator[Document]:
    """Command-line help pages, each as one question about the command and its worked examples."""
    with tarfile.open(root / "misc/tldr_en.tar.xz") as archive:
        for member in sorted(archive.getmembers(), key=lambda item: item.name):
            handle = archive.extractfile(member) if member.name.endswith(".md") else None
            if handle is None:
                continue
            page = _PLACEHOLDER.sub(r"\1", handle.read().decode("utf-8"))
            title, _, rest = page.partition("\n")
            lines = [line.removeprefix("> ") for line in rest.split("\n") if not line.startswith("> More information")]
            command = title.removeprefix("# ").strip()
            document = chat("code", "tldr", [f"How do I use `{command}`?", "\n".join(lines)])
            if document:
                yield document


def _functions(tree: ast.Module, source: str) -> Iterator[tuple[str, str, str]]:
    """Yield (name, first sentence of the docstring, source without the docstring) of documented functions."""
    lines = source.split("\n")
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or len(node.body) < 2 or node.end_lineno is None:
            continue
        doc = ast.get_docstring(node)
        if not doc or not 3 <= node.end_lineno - node.lineno <= 40:
            continue
        first = node.body[0]
        kept = lines[node.lineno - 1 : first.lineno - 1] + lines[first.end_lineno or first.lineno : node.end_lineno]
        sentence = " ".join(doc.split("\n\n")[0].split())
        yield node.name, sentence, textwrap.dedent("\n".join(kept))


def standard_library(root: Path) -> Iterator[Document]:
    """Sources of the running interpreter's standard library, as files, as functions, and as requests for
    functions."""
    del root
    base = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(base.rglob("*.py")):
        name = path.relative_to(base).as_posix()
        if "site-packages" in name or _SKIPPED_MODULES.search(name):
            continue
        source = path.read_text("utf-8", "replace")
        if not source.isascii() or max(map(len, source.split("\n"))) > 400:
            continue
        # Tests are over half of the library and say much the same: a third of them is enough.
        if name.startswith("test/") and stable_fraction(name) > 0.34:
            continue
        yield Document("code", "python_stdlib", text=clean(source))
        try:
            tree = ast.parse(source)
        except SyntaxError:
            continue
        for function, sentence, body in _functions(tree, source):
            if len(sentence) < 20 or len(body) > 1800:
                continue
            ask = random.Random(function + sentence).choice(
                (
                    "Write a Python function `{0}`. {1}",
                    "{1} Write it in Python, named `{0}`.",
                    "Implement `{0}`: {1}",
                )
            )
            document = chat(
                "code", "python_stdlib", [ask.format(function, sentence), f"```python\n{body.strip()}\n```"]
            )
            if document:
                yield document
            opening, _, rest = body.strip().partition(":\n")
            if rest:
                text = f'{opening}:\n    """{sentence}"""\n{rest}'
                yield Document("code", "python_stdlib", text=text)


READERS = (gsm8k, mawps, synthetic, gpteacher_code, tldr, standard_library)
"""Readers of this module, in the order they are run."""
