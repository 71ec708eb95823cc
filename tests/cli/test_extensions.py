"""Commands that plugins add, and the error where their package is missing."""

import sys
from importlib.metadata import EntryPoint
from types import ModuleType

import pytest

from specframe.cli import extensions
from specframe.cli.main import main, parse
from specframe.kernel import discovery
from specframe.plugin import hookimpl


class Greet:
    """Greets."""

    def add_arguments(self, parser):
        parser.add_argument("whom")

    def execute(self, options):
        print(f"hello {options.whom}")
        return 3


def plugin(name, command, target="tests.cli.test_extensions:Greet"):
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
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "greet" in capsys.readouterr().out


def test_names_that_are_taken_are_written_in_full(installed, capsys):
    installed(one=plugin("one", "greet"), two=plugin("two", "greet"), three=plugin("three", "run"))
    for name in ("one/greet", "two/greet", "three/run"):
        assert main([name, "you"]) == 3
    assert parse(["run", "recipe.yaml"]).execute.__module__ == "specframe.cli.run"


def test_a_command_that_cannot_be_imported_harms_the_others_only_when_it_is_called(installed, capsys):
    installed(one=plugin("one", "greet", "tests.no_such:Greet"), two=plugin("two", "wave"))
    assert main(["wave", "you"]) == 3
    assert main(["greet", "you"]) == 2
    assert "command 'greet' of one cannot be loaded" in capsys.readouterr().err


def test_what_has_a_package_of_its_own_names_it(installed, capsys, monkeypatch):
    installed()
    assert main(["serve", "recipe.yaml"]) == 2
    assert capsys.readouterr().err.strip() == "`specframe serve` needs another package: pip install specframe-serve"
    monkeypatch.setitem(extensions.PACKAGES, "serve", "one")
    installed(one=ModuleType("one"))
    assert main(["serve", "recipe.yaml"]) == 2
    assert "which is broken: it implements no specframe hook" in capsys.readouterr().err
