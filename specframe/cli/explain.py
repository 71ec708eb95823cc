"""`specframe explain NAME`: a component's options, read from its constructor."""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

SUMMARY = "show what a component is and the options it takes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("name", help="a component, package/component, or a section: sampling, run, train")
    parser.add_argument("--kind", help="the component's kind, where several kinds share a name")
    parser.add_argument("--json", action="store_true", help="print one JSON object per component")


def execute(options: argparse.Namespace) -> int:
    """Prints every component of that name."""
    from specframe.cli.render.columns import fitted, paragraphs, terminal_columns
    from specframe.kernel.discovery import discover
    from specframe.kernel.errors import PluginError
    from specframe.kernel.options import about
    from specframe.kernel.registry import suggest

    registry = discover()
    matches = [
        entry
        for entry in registry.entries
        if options.name in (entry.name, entry.qualified) and options.kind in (None, entry.kind)
    ]
    if not matches and (others := sorted({e.kind for e in registry.entries if options.name in (e.name, e.qualified)})):
        raise PluginError(f"there is no {options.kind} named '{options.name}'; it is a {' and a '.join(others)}")
    if not matches:
        names = {entry.name for entry in registry.entries}
        raise PluginError(
            f"nothing is named '{options.name}'{suggest(options.name, names)} (`specframe plugins` lists all)"
        )
    for entry in matches:
        component = entry.load()
        if entry.kind == "model":
            described: dict[str, Any] = {"folder": str(component()), "options": []}
        elif entry.kind == "command":
            described = {"options": []}  # `specframe NAME --help` has them
        else:
            described = {"options": _options(component)}
        document = inspect.getdoc(component) or ""
        if options.json:
            print(json.dumps({"kind": entry.kind, "name": entry.qualified, "doc": document, **described}))
            continue
        columns = terminal_columns()
        lines = [f"{entry.kind} {entry.qualified}", "", *paragraphs(about(document), columns, indent=2), ""]
        for option in described["options"]:
            default = "required" if option["required"] else f"default {option['default']}"
            lines.append(f"  {option['name']}: {option['type']} ({default})")
            if option["help"]:
                lines.append(f"      {option['help']}")
        print("\n".join(fitted(lines, columns)))
    return 0


def _options(component: Any) -> list[dict[str, Any]]:
    from dataclasses import MISSING, fields, is_dataclass

    from specframe.kernel.options import describe, read_options

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
