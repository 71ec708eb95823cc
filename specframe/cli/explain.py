"""`specframe explain NAME`: shows a component's options, read from its constructor."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import click

from specframe.cli.arguments import json_option
from specframe.cli.candidates import complete_component

LISTED = re.compile(r"^(\* |- |\|| )", re.MULTILINE)
"""Matches beginnings of lines that are not running text: of a list, a table, code."""


@click.command()
@click.argument(
    "name",
    help="a component, package/component, or a section: sampling, run, train",
    shell_complete=complete_component,
)
@click.option("--kind", metavar="KIND", help="the component's kind, where several kinds share a name")
@json_option("print one JSON object per component")
def explain(name: str, kind: str | None, as_json: bool) -> int:
    """Show what a component is and the options it takes."""
    from specframe.cli.render import print_lines
    from specframe.kernel.errors import PluginError
    from specframe.recipes.discovery import discover
    from specframe.recipes.options import about
    from specframe.recipes.registry import suggest_source

    registry = discover()
    matches = [entry for entry in registry.entries if entry.answers(name) and kind in (None, entry.kind)]
    if not matches and (others := sorted({e.kind for e in registry.entries if e.answers(name)})):
        raise PluginError(f"there is no {kind} named '{name}'; it is a {' and a '.join(others)}")
    if not matches:
        names = {entry.name for entry in registry.entries}
        raise PluginError(f"nothing is named '{name}'{suggest_source(name, names)} (`specframe plugins` lists all)")
    for entry in matches:
        component = entry.load()
        if entry.kind == "model":
            described: dict[str, Any] = {"folder": str(component()), "options": []}
        elif entry.kind == "command":
            described = {"options": []}  # `specframe NAME --help` shows them
        else:
            described = {"options": _options(component)}
        document = (component.help if entry.kind == "command" else inspect.getdoc(component)) or ""
        if as_json:
            print(json.dumps({"kind": entry.kind, "name": entry.qualified, "doc": document, **described}))
            continue
        lines = [f"{entry.kind} {entry.qualified}", "", *_paragraphs(about(document)), ""]
        for option in described["options"]:
            default = "required" if option["required"] else f"default {option['default']}"
            lines.append(f"  {option['name']}: {option['type']} ({default})")
            if option["help"]:
                lines.append(f"      {option['help']}")
        print_lines(lines)
    return 0


def _paragraphs(text: str) -> list[str]:
    """Returns a text's indented lines; for a terminal, which wraps them, a running paragraph is one line."""
    from specframe.cli.render import terminal_columns

    filled = [
        paragraph if terminal_columns() is None or LISTED.search(paragraph) else " ".join(paragraph.split())
        for paragraph in text.split("\n\n")
    ]
    return [f"  {line}".rstrip() for line in "\n\n".join(filled).splitlines()]


def _options(component: Any) -> list[dict[str, Any]]:
    from dataclasses import MISSING, fields, is_dataclass

    from specframe.recipes.options import describe, read_options

    factories = {}
    if is_dataclass(component):
        factories = {f.name: f.default_factory() for f in fields(component) if f.default_factory is not MISSING}
    return [
        {
            "name": option.name,
            "type": describe(option.annotation),
            "required": option.required,
            "default": None if option.required else _show(factories.get(option.name, option.default)),
            "help": option.help,
        }
        for option in read_options(component).values()
    ]


def _show(value: Any) -> str:
    name = getattr(value, "name", None)
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return str(name).lower() if name is not None else str(value)
