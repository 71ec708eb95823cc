"""The mutation tool: one change each, and a survivor is one that the tests do not notice."""

import json
import subprocess
import sys
from pathlib import Path

from tests.mutation import run
from tests.mutation.mutants import mutants

SOURCE = '''
def clipped(x: int | None, most: int = 3) -> int:
    """The text `a < b` of a docstring stays."""
    if x is None or not x:
        raise ValueError(f"{1 + 1}")
    return x if x < most else -most + 0
'''


def test_every_mutant_changes_one_place():
    found = list(mutants(SOURCE))
    pairs = {(mutant.before, mutant.after) for mutant in found}
    assert ("x < most", "x <= most") in pairs and ("x is None or not x", "x is None and (not x)") in pairs
    assert ("not x", "not not x") in pairs and ("3", "4") in pairs and ("-most + 0", "-most - 0") in pairs
    assert all("1 + 1" in mutant.source and "a < b" in mutant.source for mutant in found)
    assert len({mutant.source for mutant in found}) == len(found)


def test_every_file_and_test_that_is_named_is_there():
    named = {*run.TESTS, *run.COPIED} | {test for tests in run.TESTS.values() for test in tests}
    assert not [place for place in sorted(named) if not (run.ROOT / place).exists()]


def test_the_first_place_that_fits_gives_a_files_tests():
    assert run._tests_of("specframe/native/values.py") == ["tests/neural/test_growth.py"]
    assert run._tests_of("specframe/native/linear.py") == run.NATIVE
    assert run._tests_of("specframe/components/drafters/lookup.py") == []


def test_what_was_found_is_read_again(tmp_path):
    root = Path(__file__).parents[2]
    results = tmp_path / "found.jsonl"
    results.write_text(
        json.dumps({"file": "specframe/sampling/laws.py", "version": "old", "outcome": "survived"}) + "\n"
    )
    command = [sys.executable, str(root / "tests/mutation/run.py"), "--survivors", "--results", str(results)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "0 mutants run, 0 survived\n"
