"""No file of the repository knows the machine it was written on."""

import re

from tests.repo.repository import files, name

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
