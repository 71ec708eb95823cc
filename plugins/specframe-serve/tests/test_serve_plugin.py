"""The package as a plugin."""

import pytest

from specframe import InputError
from specframe.cli.main import main
from specframe.testing import check_plugin
from specframe_serve.command import find_name


def test_it_keeps_the_contract_of_plugins():
    check_plugin("specframe-serve")


def test_its_command_is_among_the_others(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert "serve" in shown and "run" in shown
    assert main(["serve", "--help"]) == 0 and "--slots" in capsys.readouterr().out
    assert main(["explain", "serve"]) == 0 and "Answer OpenAI clients" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "name"),
    [(["small/lookup"], "lookup"), (["zoo://talk-7m"], "zoo://talk-7m"), (["lookup", "target.model=a/b"], "lookup")],
)
def test_clients_call_the_model_as_the_command_did(words, name, monkeypatch):
    found = []

    def stop(plan):
        found.append(find_name(plan))
        raise InputError("that is all")

    monkeypatch.setattr("specframe_serve.command.find_name", stop)
    assert main(["serve", *words]) == 2
    assert found == [name]
