"""`specframe check PACKAGE`: checks an author's package and all its components, with one table."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict

import click

from specframe.cli.arguments import json_option


@click.command()
@click.argument("package", help="an installed package with components, as pip names it")
@click.option(
    "--budget",
    type=click.IntRange(min=1),
    default=2_000,
    metavar="N",
    help="branches to enumerate of a recipe, at most",
)
@click.option(
    "--draws", type=click.IntRange(min=0), default=2, metavar="N", help="recipes to draw of each composition's parts"
)
@json_option("print the checks as one JSON object")
def check(package: str, budget: int, draws: int, as_json: bool) -> int:
    """Check a plugin package: interfaces, certificates, combinations with all components, types and wheel.

    The exit status is 1 if a check fails.
    """
    from specframe.cli.render import print_lines, print_rows
    from specframe.testing.plugins import PackageCheck

    rows = []
    for row in PackageCheck(package, budget=budget, draws=draws).rows():
        rows.append(row)
        if not as_json:
            print(f"{row.name}", file=sys.stderr, flush=True)
    failed = [row for row in rows if row.passed is False]
    if as_json:
        print(json.dumps({"package": package, "passed": not failed, "checks": [asdict(row) for row in rows]}))
    else:
        for row in failed:
            print_lines([f"{row.name} fails:", *row.report.splitlines(), ""])
        words = {True: "passed", False: "FAILED", None: "not done"}
        print_rows((f"{words[row.passed]:<8} {row.name}", row.detail) for row in rows)
    return 1 if failed else 0
