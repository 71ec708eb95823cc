"""Public names: each means one thing in the whole repository."""

import ast
import importlib

import pytest

from tests.repo.repository import files, name

PUBLIC = ("specframe", "specframe.neural", "specframe.testing")


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_name_is_the_name_of_one_class(module):
    public = set(importlib.import_module(module).__all__)
    homes: dict[str, list[str]] = {}
    for path in files():
        if path.suffix == ".py" and "tests" not in path.parts and path.parent.name != "training":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and node.name in public:
                    homes.setdefault(node.name, []).append(name(path))
    assert homes, "no class was found: this test would check nothing"
    assert {found: places for found, places in homes.items() if len(places) > 1} == {}
