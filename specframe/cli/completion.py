"""`specframe completion SHELL`: prints the script for shell completion of commands, recipes, overrides and paths."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from specframe.cli.group import COMPLETE, PROGRAM


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), help="the shell that is to complete")
@click.pass_context
def completion(context: click.Context, shell: str) -> int:
    """Print the script that completes commands, recipes and overrides in bash, zsh or fish.

    For bash, put `eval "$(specframe completion bash)"` into ~/.bashrc; for zsh the same with zsh into ~/.zshrc; for
    fish write the script to ~/.config/fish/completions/specframe.fish.
    """
    completer = get_completion_class(shell)
    assert completer is not None, "click has a class for each of the choices"
    print(completer(context.find_root().command, {}, PROGRAM, COMPLETE).source())
    return 0
