"""Prompts whose answer is the prompt, lightly changed: functions of Python's standard library with misspelt keywords.

They are generated on demand from the sources of the running interpreter (PSF licence); none comes with specframe.
Another version of Python gives other prompts.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

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
