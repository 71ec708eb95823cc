"""`specframe plugins`: lists the installed components, and broken plugins."""

from __future__ import annotations

import json

import click

from specframe._version import __version__
from specframe.cli.arguments import json_option
from specframe.cli.render import print_rows
from specframe.files.text import printable
from specframe.recipes.versions import installed


@click.command()
@json_option("print one JSON object")
def plugins(as_json: bool) -> int:
    """List every installed component, by package."""
    from specframe.recipes.discovery import discover

    registry = discover()
    if as_json:
        found = [
            {"kind": e.kind, "name": e.name, "package": e.package, "summary": e.summary}
            for e in registry.entries
            if e.kind != "section"
        ]
        print(json.dumps({"components": found, "broken": registry.broken}))
        return 0
    packages = dict.fromkeys(entry.package for entry in registry.entries)
    for package in packages:
        print(printable(f"{package} {_version(package)}".rstrip()))
        rows = [
            (f"{entry.kind:<9} {entry.name:<20}", entry.summary)
            for entry in registry.entries
            if entry.package == package and entry.kind != "section"
        ]
        print_rows(rows, indent=2)
    for package, reason in registry.broken.items():
        print(printable(f"{package} BROKEN  {reason}"))
    return 0


def _version(package: str) -> str:
    # The core's version is that of the running code, whatever an installation's metadata states.
    return __version__ if package == "specframe" else installed(package) or ""
