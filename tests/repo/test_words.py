"""The words of the repository: no machine's paths, and plain technical English."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.repo.repository import ROOT, files, name

FOLDERS = ("work", "root", "opt", "home/[a-z]+", "Users/[A-Za-z]+")
MACHINE = re.compile(rf"(?<![\w.~*>}}-])/(?:{'|'.join(FOLDERS)})/")


def test_no_machine_paths():
    assert MACHINE.search(f"in /{'work'}/main"), "the pattern finds nothing: this test would check nothing"
    found = []
    for path in files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue  # binary: weights
        if path.suffix != ".jsonl" and (match := MACHINE.search(text)):
            found.append(f"{name(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}")
    assert not found


DIALECT = {
    "news": "committed tokens, or an update",
    "said|says|saying": "what the part does: holds, gives, declares, prints, records; of tokens, argmax",
    "tells?|telling|told": "shows, reports, records, separates; of tensors, a host copy (`to_host`)",
    "hears?|heard|hearing|overheard": "observes, receives, captures",
    "stumps?": "a root-only tree",
    "elders?": "earlier",
    "beside": "with, next to, in the same folder as, paired with",
    "lest": "so that ... not",
    "nobody|whoever|somebody|anybody|everybody": "the subject itself, or the passive",
    "stray(?:s|ed|ing)?": "off-path",
    "luck|lucky|unlucky": "variance, chance",
    "moods?": "load variation",
    "hop(?:e|es|ed|ing)": "expected tokens",
    "recall(?:s|ed|ing)?": "fuse, read again",
    "lineups?|theatre|rehears\\w*": "contestants, runs, rounds",
    "enrol(?:s|led|ling)?": "admit, register",
    "believ(?:e|es|ed|ing)": "use, accept, estimate",
    "foresee|foretell|foretold": "predict",
    "liars?": "a part that records or declares what is not so",
    "sights?": "a KV selection; of a pass, visibility",
    "ledgers?": "a slot map; of training, the run's state",
    "ballots?|booths?": "top chunks by attention",
    "alongside": "overlap, together with",
}
"""Words of the dialect that has been removed, and what to write instead."""
FIRST = {"laws?": "distribution", "forwards?(?! pass)": "forward pass"}
"""More of them on the pages that users read first."""
FIRST_PAGES = ("README.md", "docs/index.md", "docs/quickstart.md")
SCANNED = (".py", ".in", ".md", ".yaml", ".yml", ".toml")
EXEMPT = ("CHANGELOG.md", "docs/benchmark/", "research/training/", "tests/repo/test_words.py")
"""The history, reports until they are made anew, and the record of how the embedded models were made."""
QUOTED = (
    '--prompt "',  # what a user asks a model
    "Can you tell me about",
    "Tell me about",
    '"sight"',  # old names that still work
    '"ledger"',
    "kind 'sight'",
    "`sight`",
    "specframe-sights",
    "`-sights`",
)
"""A line that quotes a prompt or an old name may have any word."""


def misused(words: dict[str, str], text: str) -> Iterator[tuple[int, str, str]]:
    """The lines with a word of the list, from 1 on: the word, and what to write instead."""
    whole = re.compile("|".join(f"(?:{word})" for word in words))
    if words is DIALECT and not any(map(whole.fullmatch, set(re.findall("[a-z]+", text.lower())))):
        return  # a set of words is fifty times as fast as a pattern over the text
    pattern = re.compile("|".join(rf"(?<![^\W_])({word})(?![^\W_])" for word in words), re.IGNORECASE)
    for number, line in enumerate(text.splitlines(), 1):
        if not any(quoted in line for quoted in QUOTED):
            for match in pattern.finditer(line):
                assert match.lastindex is not None
                yield number, match[0], [*words.values()][match.lastindex - 1]


def scanned() -> Iterator[Path]:
    """Sources, pages and recipes."""
    for path in files():
        if path.suffix in SCANNED and not name(path).startswith(EXEMPT):
            yield path


def test_the_dialect_stays_away():
    found = [
        f"{name(path)}:{line}: '{word}': write {instead}"
        for path in scanned()
        for line, word, instead in misused(DIALECT, path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(["words that plain technical English does without:", *found])


def test_what_users_read_first_has_the_fields_words():
    code = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
    found = []
    for page in FIRST_PAGES:
        text = code.sub(lambda block: "\n" * block[0].count("\n"), (ROOT / page).read_text(encoding="utf-8"))
        found += [f"{page}:{line}: '{word}': write {instead}" for line, word, instead in misused(FIRST, text)]
    assert not found, "\n".join(found)


def test_the_lists_find_their_words():
    words = "a drafter that hears of it", "def strayed_path", "SAID = 1", "beside the recipe", "out of luck", "a sight"
    for line in (*words, "self._ledger"):
        assert list(misused(DIALECT, line)), line
    assert not list(misused(DIALECT, "newsletter, besides, recallable, hopeless, straightforward, elderly"))
    assert [found[1:] for found in misused(FIRST, "its law: one forward, one forward pass")] == [
        ("law", "distribution"),
        ("forward", "forward pass"),
    ]
