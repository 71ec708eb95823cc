"""Commands that plugins add, and the error where their package is missing."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import click
import pytest

from specframe import PluginError, decoder, recipe_command
from specframe.cli import group
from specframe.cli.main import main
from specframe.components.targets import source
from specframe.plugin import hookimpl
from specframe.recipes import discovery
from specframe.recipes.build import Plan
from tests.small_gguf import write_gguf


@click.command()
@click.argument("whom")
@click.option("--loud", is_flag=True)
def greet(whom, loud):
    """Greet."""
    print(f"hello {whom}{'!' if loud else ''}")
    return 3


@recipe_command
@click.option("--times", default=1)
def count(plan: Plan, times: int) -> int:
    """Count prompts."""
    print(plan.parts["drafter"].entry.name, plan.settings["run"].seed, times * len(plan.settings["run"].prompts))
    return 0


@click.command()
@click.pass_context
def leave(context):
    """Leave without a word."""
    if context.info_name == "leave":
        context.exit(4)


class Greet:
    """No click command."""


def plugin(name, command, target="tests.cli.test_extensions:greet"):
    module = ModuleType(name)

    @hookimpl
    def specframe_register(register):
        register("command", command, target, summary="greet")

    module.specframe_register = specframe_register
    return module


@pytest.fixture
def installed(monkeypatch):
    """Installs plugins, by name and module, in place of those that are."""

    def install(**modules):
        for name, module in modules.items():
            monkeypatch.setitem(sys.modules, name, module)
        points = [EntryPoint(name, name, "specframe") for name in modules]
        monkeypatch.setattr(discovery, "entry_points", lambda group: points)

    return install


def test_a_plugins_command_is_a_command(installed, capsys):
    installed(one=plugin("one", "greet"))
    assert main(["greet", "you"]) == 3 and capsys.readouterr().out == "hello you\n"
    assert main(["greet", "--loud", "you"]) == 3 and capsys.readouterr().out == "hello you!\n"
    assert main(["--help"]) == 0
    assert "greet" in capsys.readouterr().out


def test_what_a_plugins_command_returns_is_the_status(installed):
    installed(
        one=plugin("one", "leave", "tests.cli.test_extensions:leave"),
        two=plugin("two", "go", "tests.cli.test_extensions:leave"),
    )
    assert main(["leave"]) == 4
    assert main(["go"]) == 0, "a function that returns nothing has succeeded"


@pytest.mark.parametrize(
    ("words", "reason"), [(["--lout", "you"], "'--loud'"), (["you", "too"], "extra argument (too)"), ([], "'WHOM'")]
)
def test_wrong_arguments_of_a_plugins_command_are_one_line(installed, words, reason, capsys):
    installed(one=plugin("one", "greet"))
    assert main(["greet", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line.startswith("specframe greet: ")
        and reason in line
        and line.endswith("(`specframe greet --help` lists all)")
    )


def test_a_recipe_command_gets_the_plan(installed, capsys):
    installed(one=plugin("one", "count", "tests.cli.test_extensions:count"))
    table = ["target={use: table, vocab: 16}", "run.prompts=[a, b]"]
    assert main(["count", "small/lookup", *table, "--times", "3", "run.seed=7"]) == 0
    assert capsys.readouterr().out == "lookup 7 6\n", "overrides may stand anywhere"
    assert main(["count", "small/lookup", "drafter.lenght=3"]) == 2
    assert "did you mean 'length'" in capsys.readouterr().err
    assert main(["count", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("RECIPE", "[KEY=VALUE]...", "--no-local-code", "--allow-env", "--times"))


def test_names_that_are_taken_are_written_in_full(installed, capsys):
    installed(one=plugin("one", "greet"), two=plugin("two", "greet"), three=plugin("three", "run"))
    for name in ("one/greet", "two/greet", "three/run"):
        assert main([name, "you"]) == 3
    assert main(["run", "--help"]) == 0
    assert "Decode the recipe's prompts" in capsys.readouterr().out


def test_a_command_that_cannot_be_imported_harms_the_others_only_when_it_is_called(installed, capsys):
    installed(one=plugin("one", "greet", "tests.no_such:greet"), two=plugin("two", "wave"))
    assert main(["wave", "you"]) == 3
    assert main(["greet", "you"]) == 2
    assert "command 'greet' of one cannot be loaded" in capsys.readouterr().err


def test_a_command_of_another_kind_is_refused(installed, capsys):
    installed(one=plugin("one", "greet", "tests.cli.test_extensions:Greet"))
    assert main(["greet", "you"]) == 2
    assert capsys.readouterr().err == "`specframe greet` is no click command, but a type\n"


def test_what_has_a_package_of_its_own_names_it(installed, capsys, monkeypatch):
    installed()
    assert main(["serve", "recipe.yaml"]) == 2
    assert capsys.readouterr().err.strip() == "`specframe serve` needs another package: pip install specframe-serve"
    monkeypatch.setitem(group.PACKAGES, "serve", "one")
    installed(one=ModuleType("one"))
    assert main(["serve", "recipe.yaml"]) == 2
    assert "which is broken: it implements no specframe hook" in capsys.readouterr().err


def test_the_loop_of_transformers_without_its_package_is_one_line(installed):
    installed()
    with pytest.raises(PluginError, match=r"^`specframe.decoder` needs another package: pip install .*$"):
        decoder("small/lookup", overrides=["target={use: table, vocab: 16}"])


def test_a_function_is_certified_by_its_package_or_one_line_names_it(installed, capsys, tmp_path):
    (tmp_path / "rule.py").write_text("def accept(paths, p, q):\n    return 0, 0\n")
    installed()
    assert main(["certify", "--against", f"{tmp_path / 'rule.py'}:accept"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("`specframe certify --against` needs another package: pip install ")


def test_a_gguf_file_without_its_package_is_one_line(installed, capsys, tmp_path):
    source._reader.cache_clear()
    installed()
    file = write_gguf(tmp_path / "small.gguf")
    assert main(["run", str(file), "--prompt", "hi", "drafter=none"]) == 2
    source._reader.cache_clear()
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("`small.gguf` needs another package: pip install ")
