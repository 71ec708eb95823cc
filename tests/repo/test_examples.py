"""The scripts of `examples/` run, with public names alone, and print what they are there to show."""

import ast
import importlib
import runpy

import pytest

from tests.repo.repository import ROOT, sources

PUBLIC = {"specframe", "specframe.plugin", "specframe.neural", "specframe.testing"}
FOLDER = ROOT / "examples"
SAME_TEXT = "same text as plain decoding: yes"


def run(script, capsys):
    runpy.run_path(str(FOLDER / script), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_my_model_decodes_its_own_text(capsys):
    *text, same, gain = run("my_model.py", capsys)
    assert "one for the dame" in text
    assert same == SAME_TEXT
    assert float(gain.removeprefix("tokens per forward pass: ")) > 2


def test_my_drafter_keeps_its_contract_and_the_text(capsys):
    contract, same, gain = run("my_drafter.py", capsys)
    assert contract == "contract of drafters: kept"
    assert same == SAME_TEXT
    assert float(gain.removeprefix("tokens per forward pass: ")) > 1.2


@pytest.mark.full
def test_my_rule_is_certified_and_the_wrong_one_is_not(capsys):
    assert run("my_rule.py", capsys) == ["MyRule: lossless", "Sharper: not lossless, total variation 0.024"]


def test_examples_import_public_names_alone():
    imports = [node for path in sources(FOLDER) for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    modules = {node.module for node in imports if isinstance(node, ast.ImportFrom)}
    modules |= {alias.name for node in imports if isinstance(node, ast.Import) for alias in node.names}
    ours = {module for module in modules if module and module.startswith("specframe")}
    assert ours and ours <= PUBLIC


@pytest.mark.full
def test_scripts_of_pages_and_research_import_what_exists():
    """No test runs most of them, so a move would break them unnoticed."""
    absent = []
    for path in [*sources(ROOT / "docs"), *sources(ROOT / "research")]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("specframe"):
                absent += [f"{path.name}: {node.module}.{each.name}" for each in node.names if not exists(node, each)]
    assert not absent


def exists(node, alias):
    """Returns whether a name is in a module, or is a module of a package."""
    try:
        module = importlib.import_module(node.module)
        return hasattr(module, alias.name) or bool(importlib.import_module(f"{node.module}.{alias.name}"))
    except ImportError:
        return False
