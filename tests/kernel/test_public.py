"""The public names: lazy at run time, spelt out for type checkers, and all there."""

import ast
from pathlib import Path

import specframe


def test_every_public_name_loads():
    for name in specframe.__all__:
        assert getattr(specframe, name) is not None


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(specframe.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {
        (statement.module, alias.name)
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert seen == {(module, name) for name, module in specframe._HOME.items()}
