"""Checks of an answer against the reference of its prompt, which measure the quality of a lossy rule."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from types import MappingProxyType
from typing import Any

from specframe.files.isolated import passes, require_limits
from specframe.kernel.errors import InputError
from specframe.recipes.registry import suggest

Check = Callable[[str, str, str], float]
"""Function from an answer, its prompt and the reference to the answer's quality, from 0 (wrong) to 1 (right)."""

NUMBER = re.compile(r"(?<![\d.])-?\d[\d,]*(?:\.\d+)?")
BLOCK = re.compile(r"```[\w+-]*\n(.*?)(?:```|\Z)", re.DOTALL)


def is_same_number(answer: str, prompt: str, reference: str) -> float:
    """Returns 1 if the last numbers of answer and reference are equal."""
    found, wanted = _last_number(answer), _last_number(reference)
    return float(found is not None and wanted is not None and abs(found - wanted) < 1e-6)


def is_equal(answer: str, prompt: str, reference: str) -> float:
    """Returns 1 if answer and reference are equal, except for surrounding whitespace."""
    return float(answer.strip() == reference.strip())


def share_of_lines(answer: str, prompt: str, reference: str) -> float:
    """Returns the share of lines, in order, that the reference shares with the answer's first code block or the answer.

    It is a share of the longer one's lines.
    """
    ours, theirs = code_of(answer).rstrip().splitlines(), reference.rstrip().splitlines()
    matched = SequenceMatcher(None, ours, theirs, autojunk=False).get_matching_blocks()
    return sum(block.size for block in matched) / max(len(ours), len(theirs), 1)


def passes_tests(answer: str, prompt: str, reference: str) -> float:
    """Returns 1 if the tests of the reference pass after the answer's code.

    A prompt that is code itself is run first: its imports count, and the answer may be its continuation.
    """
    code = code_of(answer)
    return float(any(passes(f"{start}{code}\n\n{reference}\n") for start in _starts(prompt)))


CHECKS: Mapping[str, Check] = MappingProxyType({
    "number": is_same_number,
    "exact": is_equal,
    "similar": share_of_lines,
    "tests": passes_tests,
})  # fmt: skip


def find_check(name: str, *, run_code: bool) -> Check:
    """Returns the check of that name. Raises InputError for an unknown one, and for `tests` if code may not be run."""
    if name not in CHECKS:
        raise InputError(f"no check named '{name}'{suggest(name, CHECKS)} (checks: {', '.join(CHECKS)})")
    if name == "tests":
        if not run_code:
            raise InputError("the check `tests` runs code that a model wrote: add --run-code to allow that")
        require_limits()
    return CHECKS[name]


def code_of(answer: str) -> str:
    """Returns the first code block of an answer, or all of it if there is none."""
    found = BLOCK.search(answer)
    return found.group(1) if found else answer


def reference_of(record: Mapping[str, Any]) -> str | None:
    """Returns the reference in a record of a prompt set; None if there is none.

    It is `answer` or `reference`; for HumanEval the tests with the call of them, for MBPP the list of assertions.
    """
    if isinstance(record.get("test"), str) and isinstance(record.get("entry_point"), str):
        return f"{record['test']}\ncheck({record['entry_point']})"
    if isinstance(tests := record.get("test_list"), list) and tests and all(isinstance(test, str) for test in tests):
        return "\n".join([str(record.get("test_setup_code") or ""), *tests])
    for field in ("answer", "reference"):
        value = record.get(field)
        if isinstance(value, str | int | float) and str(value).strip():
            return str(value)
    return None


def _last_number(text: str) -> float | None:
    found = NUMBER.findall(text.replace("**", ""))
    return float(found[-1].replace(",", "")) if found else None


def _starts(prompt: str) -> list[str]:
    """Returns code that may precede an answer's: nothing, or the prompt if it is the beginning of code."""
    if not re.search(r"^(?:def|class) ", prompt, re.MULTILINE):
        return [""]
    imports = "\n".join(line for line in prompt.splitlines() if re.match(r"(?:from|import) ", line))
    return [f"{imports}\n", prompt]
