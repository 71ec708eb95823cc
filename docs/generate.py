"""Generates what code and bench contribute to the pages: ``python docs/generate.py`` writes, ``--check`` compares."""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import notebooks
from engines import render_engines
from measured import render_blocks
from method_table import render_methods
from packages import read_plugins, render_project, render_requirements, render_versions
from pictures.chart import render_chart
from pictures.terminal import render_terminal

from specframe.cli.group import COMMANDS, plugin_commands, specframe
from specframe.cli.main import main
from specframe.recipes.discovery import discover
from specframe.recipes.options import about
from specframe.recipes.registry import KINDS, Registration
from specframe_transformers.support import ARGUMENTS, FIELDS, Support

ROOT = Path(__file__).resolve().parents[1]
NOTE = "<!-- Written by docs/generate.py from the code: change docstrings and signatures instead. -->\n"
TITLES = {
    "section": "Settings",
    "target": "Targets",
    "drafter": "Drafters",
    "tree": "Tree policies",
    "verifier": "Verifiers",
    "loss": "Losses",
    "rollout": "Rollouts",
    "head": "Heads",
    "kv_selection": "KV selections",
    "selection": "Selections of a prompt's tokens",
    "store": "Stores",
    "watcher": "Watchers of training",
    "contestant": "Contestants of the bench",
    "model": "Embedded models",
    "data": "Embedded texts",
    "extension": "Extensions of the core",
}


def render_components() -> str:
    """The page of every component that the packages of this repository register."""
    packages = repository_packages()
    entries = [entry for entry in discover().entries if entry.package in packages]
    parts = [
        "# Components\n",
        NOTE,
        "Every component of this repository's packages, with its options in a recipe. `specframe explain NAME` shows "
        "the same for any installed component; `specframe plugins` lists all of them.\n",
    ]
    for kind in ("section", *KINDS, "model", "data", "extension"):
        of_kind = [entry for entry in entries if entry.kind == kind]
        if of_kind or kind == "model":
            parts.append(f"## {TITLES[kind]}\n")
            parts += [_render_entry(entry) for entry in sorted(of_kind, key=lambda e: e.name)]
    return "\n".join(parts)


def render_packages() -> str:
    """The page of this repository's packages: what each is for, and what it registers."""
    parts = [
        "# Packages\n",
        NOTE,
        'All methods are plugins: the core contains none. `pip install "specframe[methods]"` installs the packages '
        "that the recipes need; install the others by name. To add your own, see "
        "[Write a plugin](../howto/plugin.md).\n",
        "| package | what | in `[methods]` | its components and commands |\n|---|---|---|---|",
    ]
    entries = discover().entries
    for _, read in read_plugins():
        project = read["project"]
        found = [entry for entry in entries if entry.package == project["name"]]
        links = [f"[`{e.name}`](components.md#{e.kind}-{e.name})" for e in found if e.kind in KINDS]
        links += [f"[`specframe {e.name}`](cli.md#specframe-{e.name})" for e in found if e.kind == "command"]
        extra = "yes" if read.get("tool", {}).get("specframe", {}).get("methods", True) else ""
        parts.append(f"| `{project['name']}` | {project.get('description', '')} | {extra} | {', '.join(links)} |")
    return "\n".join([*parts, ""])


def render_commands() -> str:
    """The page of every command's help text."""
    parts = [
        "# Command line\n",
        NOTE,
        "| exit status | meaning |\n|---|---|\n"
        "| 0 | done |\n"
        "| 1 | a certificate or a check failed, a contestant of a bench failed, or `doctor` found a mistake |\n"
        "| 2 | the input is wrong; the message on stderr names what to change |\n"
        "| 130 | interrupted from the keyboard |\n"
        "| 141 | the reader of a pipe went away |\n",
    ]
    packages = {name: entry.package for name, entry in plugin_commands().items()}
    ours = repository_packages()
    with click.Context(specframe, info_name="specframe", show_default=True) as context:
        for name in (*COMMANDS, *(name for name, package in packages.items() if package in ours)):
            command = specframe.get_command(context, name)
            assert command is not None
            parts.append(_render_command(click.Context(command, context, info_name=name), packages.get(name)))
    return "\n".join(parts)


def _render_command(context: click.Context, package: str | None) -> str:
    command = context.command
    records = [param.get_help_record(context) for param in command.params]
    lines = [f"## {context.command_path}\n", f"{inspect.cleandoc(command.help or '')}\n"]
    lines += [f"```text\n{context.command_path} {' '.join(command.collect_usage_pieces(context))}\n```\n"]
    if package:
        lines.insert(1, f"Of the package `{package}`.\n")
    lines += ["| argument | |", "|---|---|"]
    lines += [
        f"| `{shown.replace('|', ' or ')}` | {about.replace('  [', ' [')} |" for shown, about in filter(None, records)
    ]
    return "\n".join([*lines, ""])


def render_generate() -> str:
    """The page on the support of every argument of transformers' `generate` by `custom_generate`."""
    parts = [
        "# `custom_generate`, argument by argument\n",
        NOTE,
        "`model.generate(..., custom_generate=specframe.decoder(recipe))` gives the same tokens as without our loop "
        "(at a temperature: the same distribution), or is refused with a message. *Exact* and *refused* are "
        "tested against `generate`, for one row and for three rows padded on the left, in "
        "`plugins/specframe-transformers/tests/test_generate_fields.py`. The test fails if a release of transformers "
        "adds a field that is not in the table; such a field is refused if it is set.\n",
    ]
    for title, table in (("Fields of `GenerationConfig`", FIELDS), ("Arguments of `generate`", ARGUMENTS)):
        parts += [f"## {title}\n", "| name | | |\n|---|---|---|"]
        parts += [_render_support(name, support) for name, support in sorted(table.items())]
        parts.append("")
    parts.append(
        "Any other keyword of `generate` goes to the model's forward pass. With `pixel_values`, those of images "
        "(`image_grid_thw`, `mm_token_type_ids`) are read with the prompts, one image a row, or any number where there "
        "is one row; all others are refused.\n"
    )
    return "\n".join(parts)


def _render_support(name: str, support: Support) -> str:
    return f"| `{name}` | {support.kind} | {support.note} |"


def render_notebook(page: str) -> Callable[[], str]:
    """The page of the notebook of the same name."""
    return lambda: notebooks.show(notebooks.read((ROOT / page).with_suffix(".ipynb")))


NOTEBOOKS = ("docs/tutorials/compare-two-methods.md", "docs/tutorials/in-a-notebook.md")

PAGES = {
    **{page: render_notebook(page) for page in NOTEBOOKS},
    "docs/reference/generate.md": render_generate,
    "docs/reference/components.md": render_components,
    "docs/reference/cli.md": render_commands,
    "docs/reference/plugins.md": render_packages,
    "docs/reference/engines.md": render_engines,
    "docs/methods/index.md": render_methods,
    "docs/pictures/speedup.svg": render_chart,
    "docs/pictures/terminal.svg": render_terminal,
    "requirements-plugins.txt": render_requirements,
    "pyproject.toml": render_project,
}


def repository_packages() -> set[str]:
    """The names of the packages that live in this repository."""
    return {"specframe", *(about["project"]["name"] for _, about in read_plugins())}


def _render_entry(entry: Registration) -> str:
    lines = [f"### {entry.name} {{ #{entry.kind}-{entry.name} }}\n"]
    if entry.package != "specframe":
        lines.append(f"Of the package `{entry.package}`.\n")
    if entry.kind in ("model", "data"):
        return "\n".join([*lines, f"`zoo://{entry.name}`: {entry.summary}.\n"])
    if entry.kind == "extension":
        return "\n".join([*lines, f"It adds {entry.summary}. No recipe names it.\n"])
    described = _explain(entry)
    lines.append(f"{about(described['doc'])}\n")
    if described["options"]:
        lines += ["| option | type | default | |", "|---|---|---|---|"]
        lines += [_render_option(option) for option in described["options"]]
    else:
        lines.append("No options.")
    return "\n".join([*lines, ""])


def _render_option(option: dict[str, Any]) -> str:
    default = "required" if option["required"] else f"`{option['default']}`"
    cells = [f"`{option['name']}`", option["type"], default, option["help"]]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _explain(entry: Registration) -> dict[str, Any]:
    """The output of `specframe explain --json` for one component."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        status = main(["explain", entry.qualified, "--kind", entry.kind, "--json"])
    if status:
        raise SystemExit(f"{entry.kind} {entry.qualified} cannot be explained")
    described: dict[str, Any] = json.loads(output.getvalue())
    return described


def execute() -> int:
    """Writes the pages, or with --check lists which are out of date and exits with 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    check = parser.parse_args().check
    stale = []
    pages = [(ROOT / name, render()) for name, render in PAGES.items()]
    pages += [(ROOT / name, text) for name, text in render_versions().items()]
    for path, text in [*pages, *render_blocks()]:
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not check:
                path.write_text(text, encoding="utf-8")
    if stale:
        print(("out of date: " if check else "written: ") + ", ".join(stale))
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(execute())
