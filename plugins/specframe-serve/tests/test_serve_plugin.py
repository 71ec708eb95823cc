"""The package as a plugin."""

from specframe.cli.main import main
from specframe.testing import check_plugin


def test_it_keeps_the_contract_of_plugins():
    check_plugin("specframe-serve")


def test_its_command_is_among_the_others(capsys):
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out.split()
    assert "serve" in shown and "run" in shown
    assert main(["serve", "--help"]) == 0 and "--slots" in capsys.readouterr().out
    assert main(["explain", "serve"]) == 0 and "Answer OpenAI clients" in capsys.readouterr().out
