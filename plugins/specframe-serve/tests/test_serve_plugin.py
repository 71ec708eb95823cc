"""The package as a plugin."""

import argparse

from specframe.cli.main import build_parser, main
from specframe.testing import check_plugin


def test_it_keeps_the_contract_of_plugins():
    check_plugin("specframe-serve")


def test_its_command_is_among_the_others(capsys):
    choices = next(a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction)).choices
    assert "serve" in choices and "run" in choices
    assert main(["explain", "serve"]) == 0 and "Answers OpenAI clients" in capsys.readouterr().out
