"""The group of all commands, built-in and of plugins; a command is imported only for its call or its help."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from specframe._version import __version__

if TYPE_CHECKING:
    from specframe.recipes.registry import Registration

PROGRAM = "specframe"
COMPLETE = "_SPECFRAME_COMPLETE"
"""Environment variable by which a shell's script requests completions."""
COMMANDS = {
    "run": "decode the recipe's prompts and measure tau, alpha, speed and overhead",
    "chat": "chat with the recipe's target in the terminal, with drafted tokens in colour",
    "show": "draw the draft trees, verdicts and tokens of every cycle of a decoding",
    "bench": "compare recipes on prompt sets with each other and with transformers' generate",
    "profile": "measure acceptance by level and rank, and compute the best tree from it",
    "doctor": "check that a drafter reads its target as in its training, and find the mistake if it does not",
    "train": "train the recipe's drafter; an interrupted run resumes",
    "certify": "prove that a recipe is lossless: enumerate every random outcome of the real code",
    "check": "check a plugin package: interfaces, certificates, combinations with all components, types and wheel",
    "export": "write a recipe's trained drafter in the form that vLLM, SGLang or another program reads",
    "import": "read a published drafter, check that it fits the recipe's target, and write it as specframe stores it",
    "recipes": "list the recipes that come with specframe, or copy one to change it",
    "plugins": "list every installed component, by package",
    "cache": "list or remove the packed weights that make the next start of a target faster",
    "explain": "show what a component is and the options it takes",
    "validate": "check a recipe: names, options, types, and whether its parts fit together",
    "new": "create a plugin package with a small working component and its tests",
    "completion": "print the script that completes commands, recipes and overrides in bash, zsh or fish",
}
"""Built-in commands: each is a click command, mostly in the module of its name in this package."""
PLACES = {"export": "interchange:export", "import": "interchange:imports"}
"""Commands in a module of another name: the module, and their name in it."""
EXTENDED = {"bench": "report"}
"""Built-in commands that need an extension from a package, and the extension's name."""
PACKAGES = {"distill-data": "specframe-distill", "serve": "specframe-serve", "store": "specframe-text"}
"""Commands of this project that are in separate packages."""
TRY = {
    "specframe run falcon": "decode with a published chat model (93 MB, fetched once), and report the speedup",
    "specframe run suffix-recycling": "the same model, accelerated without training",
    "specframe run MODEL": "your own model: a folder, a GGUF file or a Hub name",
    "specframe show falcon": "which tokens were drafted, accepted and rejected, cycle by cycle",
    "specframe certify falcon": "prove that the output's distribution is the target's",
    "specframe recipes": "list the recipes, or copy one to change it",
    "specframe new plugin NAME": "start your own method",
}
"""Commands for newcomers, in order."""
CORE = ("specframe run MODEL", "specframe recipes", "specframe new plugin NAME")
"""Commands that need no plugin."""


class HelpFormatter(click.HelpFormatter):
    """click's help with coloured headings and names.

    rich-click would also draw boxes, but it imports all of rich, and every command for its line in the group's help.
    """

    def write_heading(self, heading: str) -> None:
        """Writes a heading in bold."""
        super().write_heading(click.style(heading, bold=True))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        """Writes names in colour, with their explanations."""
        super().write_dl([(click.style(name, fg="cyan"), about) for name, about in rows], col_max, col_spacing)


class HelpContext(click.Context):
    """A context with coloured help."""

    formatter_class = HelpFormatter


class LazyGroup(click.Group):
    """A group that finds its commands in the tables above and in plugins' registrations."""

    context_class = HelpContext

    def summaries(self) -> dict[str, str]:
        """Returns every command's line in the list of commands."""
        from specframe.recipes.discovery import discover

        extensions = {entry.name for entry in discover().of("extension")}
        absent = [name for name, extension in EXTENDED.items() if extension not in extensions]
        marked = {name: f'{COMMANDS[name]} (needs "specframe[methods]")' for name in absent}
        return COMMANDS | marked | {name: entry.summary for name, entry in plugin_commands().items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Returns the names of all commands."""
        return list(self.summaries())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports and returns the command. Raises PluginError and UsageError for a broken, missing or unknown one."""
        from specframe.kernel.errors import PluginError

        try:
            command = _load(ctx, cmd_name)
        except (PluginError, click.UsageError):
            if ctx.resilient_parsing:  # completion
                return None
            raise
        command.context_class = HelpContext
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of all commands, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self.summaries().items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Returns the commands with this prefix, without importing any, and the group's own options."""
        found = [
            CompletionItem(name, help=about) for name, about in self.summaries().items() if name.startswith(incomplete)
        ]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=LazyGroup, invoke_without_command=True, context_settings={"max_content_width": 120, "show_default": True}
)
@click.version_option(__version__, message="specframe %(version)s")
@click.pass_context
def specframe(context: click.Context) -> None:
    """Speculative decoding with interchangeable parts, configured by recipes and certified lossless."""
    if context.invoked_subcommand is None:
        from specframe.cli.render import print_lines, print_rows
        from specframe.recipes.versions import missing_methods

        about = f"specframe {__version__}: speculative decoding with interchangeable parts, certified lossless."
        print_lines([about, "", "Try next:", ""])
        if missing_methods():
            print_rows([(name, TRY[name]) for name in CORE], indent=2)
            print_lines(["", 'After `pip install "specframe[methods]"`:', ""])
            print_rows([(name, what) for name, what in TRY.items() if name not in CORE], indent=2)
        else:
            print_rows(TRY.items(), indent=2)
        print_lines(["", "`specframe --help` lists all commands."])


def plugin_commands() -> dict[str, Registration]:
    """Returns the commands of plugins, as `package/name` if a built-in one or another plugin's has the name."""
    from specframe.recipes.discovery import discover

    entries = discover().of("command")
    names = Counter([*COMMANDS, *(entry.name for entry in entries)])
    return {entry.name if names[entry.name] == 1 else entry.qualified: entry for entry in entries}


def _load(ctx: click.Context, name: str) -> click.Command:
    from specframe.kernel.errors import PluginError
    from specframe.recipes.discovery import discover

    if name in COMMANDS:
        module, _, attribute = PLACES.get(name, f"{name}:{name}").partition(":")
        command = getattr(import_module(f"specframe.cli.{module}"), attribute)
    elif (entry := plugin_commands().get(name)) is not None:
        command = entry.load()
    elif name in PACKAGES:
        discover().refuse_without(f"specframe {name}", PACKAGES[name])
    else:
        from specframe.recipes.registry import suggest

        ctx.fail(f"there is no command '{name}'{suggest(name, [*COMMANDS, *plugin_commands()])}")
    if not isinstance(command, click.Command):
        raise PluginError(f"`specframe {name}` is no click command, but a {type(command).__name__}")
    return command
