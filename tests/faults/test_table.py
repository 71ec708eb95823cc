"""The page of faults names tests that exist."""

import ast
import re

from tests.repo.repository import ROOT

PAGE = ROOT / "docs" / "reference" / "faults.md"
NAMED = re.compile(r"`((?:plugins/[\w-]+/)?tests/[\w/]+\.py)::(test_\w+)`")


def test_every_fault_is_tried_by_a_test_that_exists():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    rows = [row for row in rows if not row.startswith("| fault |")]
    assert len(rows) > 30
    missing = []
    for row in rows:
        named = NAMED.findall(row.split("|")[-2])
        assert named, f"nothing tries: {row}"
        for file, function in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
            if function not in functions:
                missing.append(f"{file}::{function}")
    assert not missing
