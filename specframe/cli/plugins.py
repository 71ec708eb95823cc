"""`specframe plugins`: what is installed, and what is broken."""

from __future__ import annotations

import argparse
import json
from importlib.metadata import PackageNotFoundError, version

from specframe._version import __version__
from specframe.cli.render.columns import in_columns, terminal_columns
from specframe.files.text import printable

SUMMARY = "list every installed component, by package"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def execute(options: argparse.Namespace) -> int:
    """Prints the registry."""
    from specframe.kernel.discovery import discover

    registry = discover()
    if options.json:
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
        for line in in_columns(rows, terminal_columns(), indent=2):
            print(printable(line))
    for package, reason in registry.broken.items():
        print(printable(f"{package} BROKEN  {reason}"))
    return 0


def _version(package: str) -> str:
    if package == "specframe":
        return __version__  # of the code that runs, whatever an installation's metadata has
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
