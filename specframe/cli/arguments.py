"""Arguments that several commands share, and `recipe_command`, which turns them into a recipe's plan."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from specframe.cli.candidates import complete_override, complete_recipe
from specframe.cli.target import report_model, report_next
from specframe.decoding.models import names_model, read_recipe
from specframe.kernel.errors import InputError

if TYPE_CHECKING:
    from specframe.decoding.pipeline import Prompt
    from specframe.recipes.build import Plan

RECIPE = (
    "a recipe file, or the name of one that `specframe recipes` lists; or a model: a folder, a GGUF file or a Hub name"
)


class UserPath(click.Path):
    """A path; `~` is resolved here, because shells leave that of --out=~/runs unchanged."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Returns the path with the home folder inserted."""
        try:
            return super().convert(Path(value).expanduser(), param, ctx)
        except RuntimeError:
            self.fail(f"there is no such home folder: {value}", param, ctx)


PATH = UserPath()

overrides_argument = click.argument(
    "overrides",
    nargs=-1,
    metavar="[KEY=VALUE]...",
    help="a value that replaces the recipe's",
    shell_complete=complete_override,
)
no_local_code_option = click.option(
    "--no-local-code", is_flag=True, help="refuse components from ./file.py:Name in the recipe's folder"
)
allow_env_option = click.option(
    "--allow-env",
    is_flag=True,
    help="let recipes read environment variables, as ${oc.env:NAME}, and use OmegaConf's other resolvers",
)
prompts_option = click.option(
    "--prompts", type=PATH, metavar="FILE", help="prompts of a JSON, JSONL or text file, in place of the recipe's"
)
limit_option = click.option("--limit", type=int, metavar="N", help="only the first N prompts of the file")


def recipe_argument(required: bool = True) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns the recipe argument of a command."""
    return click.argument("recipe", required=required, help=RECIPE, shell_complete=complete_recipe)


def recipe_command(function: Callable[..., int]) -> click.Command:
    """Returns a click command that reads a recipe and passes its plan to the function, with the function's own options.

    It adds the arguments RECIPE and KEY=VALUE, and the options --no-local-code and --allow-env. The function returns
    the exit status. Problems of the recipe are printed in one line each, with status 2.
    """

    @functools.wraps(function)
    def read_and_call(
        recipe: str,
        overrides: Sequence[str],
        no_local_code: bool,
        allow_env: bool,
        drafter: str | None = None,
        **options: Any,
    ) -> int:
        overrides = [*overrides, *([] if drafter is None else [f"drafter={drafter}"])]
        plan = read_plan(recipe, overrides, local_code=not no_local_code, environment=allow_env)
        if names_model(recipe) and not options.get("auto"):  # `train --auto` makes the recipe
            report_model(recipe, plan)
        status = function(plan, **options)
        if status == 0:
            report_next(click.get_current_context().info_name, [recipe])
        return status

    command: Callable[..., Any] = read_and_call
    for add in (allow_env_option, no_local_code_option, overrides_argument, recipe_argument()):
        command = add(command)
    return click.command(command)


def read_plan(
    recipe: str, overrides: Sequence[str] = (), *, local_code: bool = True, environment: bool = False
) -> Plan:
    """Returns the plan of a recipe, by file or name, or of a model, with overrides `KEY=VALUE`.

    Raises RecipeError with every problem.
    """
    from specframe.recipes.build import plan
    from specframe.recipes.discovery import discover

    return plan(read_recipe(recipe, list(overrides), environment=environment), discover(), local_code=local_code)


def replanned(changes: Iterable[str]) -> Plan:
    """Returns the plan of the running command, with further overrides."""
    given = click.get_current_context().params
    return read_plan(
        given["recipe"],
        [*given["overrides"], *changes],
        local_code=not given["no_local_code"],
        environment=given["allow_env"],
    )


def asked_recipe() -> str:
    """Returns the recipe of the running command as given on the command line."""
    return str(click.get_current_context().params["recipe"])


def local_code_allowed() -> bool:
    """Returns True unless the running command was given --no-local-code."""
    return not click.get_current_context().params["no_local_code"]


def split_overrides(words: Iterable[str]) -> tuple[list[str], list[str]]:
    """Splits words into those that are no overrides and overrides: KEY=VALUE that is no file."""
    found: tuple[list[str], list[str]] = [], []
    for word in words:
        found["=" in word and not Path(word).is_file()].append(word)
    return found


def json_option(about: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Returns the option --json, called `as_json` in Python, because a module has that name."""
    return click.option("--json", "as_json", is_flag=True, help=about)


def prompts_to_measure(prompts: Path | None, limit: int | None, plan: Plan) -> Sequence[Prompt]:
    """Returns the prompts of the file, or the recipe's without a file. Raises InputError if there are none."""
    from specframe.files.prompts import read_prompts

    found: Sequence[Prompt] = plan.settings["run"].prompts
    if prompts is not None:
        found = read_prompts(prompts, limit)
    if not found:
        raise InputError("there is nothing to decode: give --prompts FILE, or put run.prompts into the recipe")
    return found
