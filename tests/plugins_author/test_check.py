"""`specframe check PACKAGE`: an author's package in one table, and bad input in one line."""

import json
from importlib.metadata import EntryPoint, entry_points

import pytest

from specframe.cli.main import main
from specframe.kernel.errors import PluginError
from specframe.recipes.discovery import discover
from specframe.recipes.registry import Registration
from specframe.testing.plugins import PackageCheck, Row
from tests.certify.test_drawn_recipes import WRONG


def checked(package, registry):
    """The rows by name, without types and wheel."""
    check = PackageCheck(package, budget=200, draws=1, registry=registry)
    return {row.name: row for row in check.compositions_of_all()}


@pytest.mark.full
def test_a_package_that_keeps_its_promises_is_lossless_with_all_others():
    rows = checked("specframe-example", few_others("specframe-example"))
    assert [row.passed for row in rows.values()] == [True, True]
    assert rows["drafter example: certificate"].detail.startswith("lossless")
    assert "refused" in rows["drafter example: compositions"].detail


def few_others(*packages):
    """The registry of the core and these packages."""
    return discover([point for point in entry_points(group="specframe") if point.dist.name in packages])


def test_a_part_that_is_wrong_fails_with_its_recipe(tmp_path, monkeypatch):
    (tmp_path / "wrong_verifier.py").write_text(WRONG, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    registry = few_others()
    registry.add(Registration("verifier", "wrong", "wrong_verifier:Wrong", "emits the next token", "specframe-wrong"))
    rows = checked("specframe-wrong", registry)
    assert [row.passed for row in rows.values()] == [False, False]
    assert "not lossless" in rows["verifier wrong: certificate"].detail
    assert "verifier: {use: wrong}" in rows["verifier wrong: compositions"].report


@pytest.mark.parametrize(
    ("package", "message"),
    [
        ("specframe-exampel", "did you mean 'specframe-example'"),
        ("pytest", "no installed package 'pytest' registers anything; see `specframe plugins`"),
    ],
)
def test_a_package_without_components_is_one_line(package, message, capsys):
    assert main(["check", package]) == 2
    printed = capsys.readouterr().err.strip()
    assert message in printed and len(printed.splitlines()) == 1


def test_a_package_that_cannot_be_imported_is_named_with_the_reason():
    registry = discover([EntryPoint("gone", "specframe_gone.nowhere", "specframe")])
    with pytest.raises(PluginError, match=r"gone cannot be loaded: .*specframe_gone"):
        PackageCheck("gone", registry=registry)


def test_a_wheel_is_built_of_the_source_and_has_the_registered_modules():
    row = PackageCheck("specframe-example").wheel()
    assert row.passed and row.detail.startswith("specframe_example-0.1.0")


@pytest.mark.slow
def test_types_are_checked():
    row = PackageCheck("specframe-example").types()
    assert row.passed and "no issues found" in row.detail


ROWS = [
    Row("registration", True),
    Row("mypy", None, "not installed: pip install mypy"),
    Row("drafter example: compositions", False, "not lossless", "not lossless\n--- drawn.yaml"),
]


@pytest.mark.parametrize(("rows", "status"), [(ROWS, 1), (ROWS[:2], 0)])
def test_the_command_prints_one_table(rows, status, monkeypatch, capsys):
    monkeypatch.setattr(PackageCheck, "rows", lambda self: iter(rows))
    assert main(["check", "specframe-example"]) == status
    printed = capsys.readouterr().out
    assert "not done mypy" in printed and "passed   registration" in printed
    assert ("--- drawn.yaml" in printed) == ("FAILED   drafter example: compositions" in printed) == (status == 1)
    assert main(["check", "specframe-example", "--json"]) == status
    assert json.loads(capsys.readouterr().out)["passed"] == (status == 0)
