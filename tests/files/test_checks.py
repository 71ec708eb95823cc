"""Checks of answers, and the process that runs code which others wrote."""

import pytest

from specframe.files.checks import CHECKS, find_check, passes_tests, reference_of
from specframe.files.isolated import passes
from specframe.kernel.errors import InputError

BODY = "    return [value + 1 for value in values]\n"
PROMPT = 'from typing import List\n\ndef plus(values: List[int]) -> List[int]:\n    """Adds 1."""\n'
TESTS = {"test": "def check(f):\n    assert f([1, 2]) == [2, 3]\n", "entry_point": "plus"}


@pytest.mark.parametrize(
    ("check", "answer", "reference", "quality"),
    [
        ("number", "It costs $1,080.", "12 * 90 = <<12*90=1080>>1080\n#### 1080", 1.0),
        ("number", "**12.50** in 3 days: \\boxed{12.5}", "12.5", 1.0),
        ("number", "130-50 is 80. No, 81", "80", 0.0),
        ("number", "no idea", "80", 0.0),
        ("exact", " yes\n", "yes", 1.0),
        ("exact", "yes.", "yes", 0.0),
        ("similar", "Here:\n```python\na\nb\nx\nd\n```", "a\nb\nc\nd", 0.75),
        ("similar", "", "a\nb", 0.0),
    ],
)
def test_a_check_gives_the_share_that_is_right(check, answer, reference, quality):
    assert CHECKS[check](answer, "", reference) == quality


def test_code_is_tested_after_its_prompt_or_alone():
    reference = reference_of(TESTS)
    whole = f"Sure:\n```python\ndef plus(values: List[int]):\n{BODY}```\nDone."
    assert [passes_tests(text, PROMPT, reference) for text in (BODY, whole, BODY.replace("1", "2"))] == [1, 1, 0]
    assert passes_tests("def f(): return 3", "Write f.", reference_of({"test_list": ["assert f() == 3"]})) == 1


@pytest.mark.parametrize(
    ("record", "reference"),
    [({"answer": "#### 3"}, "#### 3"), ({"answer": 3}, "3"), ({"reference": ["a"]}, None), ({"test": "x"}, None)],
)
def test_references_are_found(record, reference):
    assert reference_of(record) == reference


def test_code_cannot_leave_its_folder_nor_its_time(tmp_path):
    there = tmp_path / "there"
    there.write_text("kept")
    assert passes("import math, collections, typing\nassert math.pi > 3")
    for attempt in (
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(there)!r}, 'a').write('x')",
        f"import os; os.remove({str(there)!r})",
        f"import os; os.rename({str(there)!r}, 'mine')",
        f"import pathlib; pathlib.Path({str(tmp_path / 'new')!r}).mkdir()",
        "import os; os.fork()",
        "import subprocess; subprocess.run(['true'])",
        "import socket; socket.create_connection(('127.0.0.1', 9))",
        "import sys; sys.exit(0)",
        "held = bytearray(1 << 31)",
    ):
        assert not passes(attempt), attempt
    assert there.read_text() == "kept" and [path.name for path in tmp_path.iterdir()] == ["there"]
    assert not passes("while True: pass", seconds=1)


def test_bad_checks_are_refused_in_a_line():
    with pytest.raises(InputError, match="--run-code") as caught:
        find_check("tests", run_code=False)
    assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="did you mean 'number'"):
        find_check("numbr", run_code=False)
