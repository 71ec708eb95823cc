"""The scripts of `examples/` run, with public names alone, and print what they are there to show."""

import ast
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
