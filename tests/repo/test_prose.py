"""Docstrings begin with a verb or a noun phrase and have no inverted clauses."""

import ast
import re

import pytest

from tests.repo.repository import ROOT, files, name, sources

FILES = [
    *sources(ROOT / "specframe"),
    *(path for folder in ROOT.glob("plugins/*/src") for path in sources(folder)),
    *ROOT.glob("docs/*.py"),
]
OPENING = re.compile(
    r"^(What|Whether|Whose|Whom?|So many|Of (which|what|whom|every|each|all|the)|How|Where|Which|When|Why|"
    r"After (which|how)|For (which|what)|By (what|which)|From which|Over a|While it lasts|Called)\b"
)
RELATIVE = re.compile(r"(What|Whether|Whose|So many|Of which|How many|How much)\b")
"""Beginnings that are refused in tests and research scripts, too."""
INVERTED = re.compile(
    r"\b(so many of (the|a)|after so many|how what|makes? of what|takes? in what|what \w+ (has|have) of|what becomes of"
    r"|is what it (is|was)|what is not|who sees whom|has to be had|comes? of it|of equal ones|for which the device)\b"
    r"|[;:] of (equal|two|several|more|too many)\b",
    re.IGNORECASE,
)


def docstrings(text: str) -> list[tuple[int, str]]:
    """The strings that stand as statements: of modules, classes and functions, and below constants and fields."""
    return [
        (node.lineno, " ".join(node.value.value.split()))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def faults(text: str) -> list[str]:
    """The stilted docstrings of a source, each with its line and the words around the first match."""
    found = ((line, doc, OPENING.search(doc) or INVERTED.search(doc)) for line, doc in docstrings(text))
    return [f"{line}: {doc[max(0, match.start() - 40) : match.end() + 40]}" for line, doc, match in found if match]


def test_docstrings_are_plain_english():
    found = [f"{name(path)}:{fault}" for path in FILES for fault in faults(path.read_text(encoding="utf-8"))]
    assert not found, "begin with a verb or a noun phrase:\n" + "\n".join(found)


def test_docstrings_of_tests_and_scripts_begin_so_too():
    found = [
        f"{name(path)}:{line}: {doc[:60]}"
        for path in files()
        if path.suffix == ".py"
        for line, doc in docstrings(path.read_text(encoding="utf-8"))
        if RELATIVE.match(doc)
    ]
    assert not found, "begin with a verb or a noun phrase:\n" + "\n".join(found)


@pytest.mark.parametrize(
    "docstring",
    [
        "What spares a verifier laws: all of them at temperature 0, else those after nodes that it does not come to.",
        "Whether a shortcut is as near as `verify`.",
        "Whose a forward pass of the target is.",
        "So many tokens are read in the time of one: weights are what takes it.",
        "Of which tokens the law is.",
        "How many rows were decoded together.",
        "Which slots a node sees.",
        "Of the texts, about so many are drafted for.",
        "Takes in what was committed.",
        "The indices of the largest values, best first; of equal ones the smaller index first.",
        "Masks entries out. What is masked out is left out before, for which the device is waited for.",
    ],
)
@pytest.mark.parametrize("source", ['"""{}"""', 'X = 1\n"""{}"""', 'class A:\n    x: int\n    """{}"""'])
def test_stilted_docstrings_are_found(docstring, source):
    assert len(faults(source.format(docstring))) == 1


@pytest.mark.parametrize(
    "docstring",
    [
        "Optional fast paths: no distributions at temperature 0; otherwise only those of visited nodes.",
        "Returns whether the class that defines `verify` also defines the shortcut.",
        "Number of rows decoded together.",
    ],
)
def test_plain_docstrings_pass(docstring):
    assert not faults(f'"""{docstring}"""')
