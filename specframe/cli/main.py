"""The command line: one command a file; a user's error is one clear line and exit status 2."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from specframe._version import __version__
from specframe.cli.extensions import add_plugin_commands, as_sentence
from specframe.cli.greeting import greeting
from specframe.files.text import printable, require_unicode
from specframe.kernel.errors import InputError, SpecframeError

if TYPE_CHECKING:
    from specframe.decoding.pipeline import Prompt
    from specframe.kernel.build import Plan

COMMANDS = {
    "run": "run",
    "chat": "chat",
    "show": "show",
    "bench": "bench",
    "profile": "profile",
    "doctor": "doctor",
    "store": "store",
    "train": "train",
    "distill-data": "distill_data",
    "certify": "certify",
    "export": "export",
    "import": "imports",
    "recipes": "recipes",
    "plugins": "plugins",
    "explain": "explain",
    "validate": "validate",
    "new": "new",
}
"""Each command's module in this package, with `SUMMARY`, `add_arguments` and `execute`, light to import."""
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What a full disk is called."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0, 1 for a promise that does not hold, 2 for bad input, 130 for Ctrl-C."""
    _print_whatever_comes()
    try:
        words = sys.argv[1:] if arguments is None else arguments
        for word in words:
            require_unicode(word, "command line")
        if not words:
            print(greeting(), flush=True)
            return 0
        options = parse(words)
        status: int = options.execute(options)
        sys.stdout.flush()
        return status
    except SpecframeError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    except KeyboardInterrupt as interrupt:
        print(printable(str(interrupt)) or "interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away: no output can be written
        return 141
    except OSError as error:
        if error.errno not in FULL:
            raise
        print(f"the output cannot be written: {error.strerror}", file=sys.stderr)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python fails at it once more at its end
        return 2


def _print_whatever_comes() -> None:
    """Lets characters that the terminal's encoding lacks be printed as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments; overrides may stand anywhere, which argparse alone does not allow."""
    parser = build_parser(next((word for word in words if not word.startswith("-")), ""))
    options, rest = parser.parse_known_args(words)
    late = [word for word in rest if not word.startswith("-")]
    if len(late) < len(rest) or (late and not hasattr(options, "overrides")):
        command: _Parser = options.parser
        wrong = next((word for word in rest if word.startswith("-")), rest[0])
        command.error(f"unrecognized arguments: {' '.join(rest)}{command.nearest(wrong)}")
    if late:
        options.overrides = [*options.overrides, *late]
    return options


class _Parser(argparse.ArgumentParser):
    """A parser whose messages are one line, and show the command line's words as text."""

    def error(self, message: str) -> NoReturn:
        """Ends the program with exit status 2."""
        self.exit(2, printable(f"{self.prog}: {message} (`{self.prog} --help` lists all)\n"))

    def nearest(self, word: str) -> str:
        """A "; did you mean '--x'?" for an option that is nearly one of this command's, or an empty string."""
        from specframe.kernel.registry import suggest

        return suggest(word.partition("=")[0], self._option_string_actions)


def _empty_parser() -> argparse.ArgumentParser:
    return _Parser(prog="specframe", description="Speculative decoding from parts, by recipe, certified lossless.")


def build_parser(called: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands. Of plugins' commands the one that is called is imported; without `called`, all are.

    Raises PluginError for a call of a command whose package is not installed, or broken.
    """
    parser = _empty_parser()
    parser.add_argument("--version", action="version", version=f"specframe {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, place in COMMANDS.items():
        module = import_module(f"specframe.cli.{place}")
        command = commands.add_parser(name, help=module.SUMMARY, description=as_sentence(module.SUMMARY))
        module.add_arguments(command)
        command.set_defaults(execute=module.execute, parser=command)
    if called not in COMMANDS:
        add_plugin_commands(commands, called, COMMANDS)
    if called and called not in commands.choices:
        from specframe.kernel.registry import suggest

        parser.error(f"there is no command '{called}'{suggest(called, commands.choices)}")
    return parser


def add_recipe_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of every command that reads one recipe."""
    parser.add_argument("recipe", help="a recipe file, or the name of one that `specframe recipes` lists")
    parser.add_argument(
        "overrides", nargs="*", default=[], metavar="KEY=VALUE", help="a value that replaces the recipe's"
    )
    parser.add_argument(
        "--no-local-code", action="store_true", help="refuse components from ./file.py:Name in the recipe's folder"
    )
    add_environment_argument(parser)


def add_prompts_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the prompts of a file, for commands that measure a drafter on more than the recipe's own."""
    parser.add_argument(
        "--prompts",
        type=as_path,
        metavar="FILE",
        help="prompts to measure: a JSON, JSONL or text file (default: the recipe's)",
    )
    parser.add_argument("--limit", type=int, metavar="N", help="only the first N prompts of the file")


def add_environment_argument(parser: argparse.ArgumentParser) -> None:
    """The argument of every command that reads recipes at all."""
    parser.add_argument(
        "--allow-env",
        action="store_true",
        help="let recipes read environment variables, as ${oc.env:NAME}, and use OmegaConf's other resolvers",
    )


def read_plan(options: argparse.Namespace) -> Plan:
    """The plan of the recipe that the arguments name. Raises RecipeError with every problem."""
    from specframe.kernel.build import plan
    from specframe.kernel.discovery import discover
    from specframe.kernel.recipe import Recipe

    recipe = Recipe.read(options.recipe, options.overrides, environment=options.allow_env)
    return plan(recipe, discover(), local_code=not options.no_local_code)


def prompts_to_measure(options: argparse.Namespace, plan: Plan) -> Sequence[Prompt]:
    """The prompts of the file that `add_prompts_arguments` asks for, else the recipe's own.

    Raises InputError where there are none.
    """
    from specframe.files.prompts import read_prompts

    prompts: Sequence[Prompt] = plan.settings["run"].prompts
    if options.prompts is not None:
        prompts = read_prompts(options.prompts, options.limit)
    if not prompts:
        raise InputError("there is nothing to decode: give --prompts FILE, or put run.prompts into the recipe")
    return prompts


def as_path(text: str) -> Path:
    """The path that an argument means; shells leave the `~` of --out=~/runs as it is."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise argparse.ArgumentTypeError(f"there is no such home folder: {text}") from error
