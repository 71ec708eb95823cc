"""Figures of servers under load: plain decoding and three recipes next to each other."""

from __future__ import annotations

import argparse
import json
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from served import ask, start

RECIPES = Path(__file__).resolve().parents[2] / "recipes"


def goodput(options: argparse.Namespace) -> str:
    """The tree policy `goodput` with the costs that were measured."""
    files = ", ".join(map(str, sorted(options.costs.glob("costs-*.json"))))
    return f"tree={{use: goodput, depth: {options.depth}, costs: [{files}]}}"


def table(options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per second, and milliseconds to the first token and between tokens: medians of rounds in turns."""
    copies, eagle = RECIPES / "suffix-recycling.yaml", RECIPES / "eagle.yaml"
    contestants: dict[str, tuple[Path, list[str]]] = {
        "plain": (copies, ["drafter={use: none}"]),
        "suffix-recycling": (copies, []),
        "eagle": (eagle, []),
        "goodput": (eagle, [goodput(options)]),
    }
    found: dict[str, Any] = {}
    with ExitStack() as stack:
        slots = max(options.concurrency)
        servers = {
            name: stack.enter_context(start(recipe, [*options.overrides, *own], slots=slots, context=512))
            for name, (recipe, own) in contestants.items()
        }
        for concurrency in options.concurrency:
            rows: dict[str, list[dict[str, float]]] = {name: [] for name in servers}
            for turn in range(options.rounds):
                names = [*servers][turn % len(servers) :] + [*servers][: turn % len(servers)]
                for name in names:
                    rows[name].append(summary_of(ask(servers[name], concurrency, options)))
            found[str(concurrency)] = {
                name: {figure: median(row[figure] for row in own) for figure in own[0]} | {"rounds": own}
                for name, own in rows.items()
            }
            print(concurrency, json.dumps(found[str(concurrency)]), flush=True)
    return found


def summary_of(figures: dict[str, Any]) -> dict[str, float]:
    """The figures of a load that a table has."""
    found = {name: float(figures[name]) for name in ("tokens_per_second", "load_average")}
    for name in ("first_token_ms", "per_token_ms"):
        found |= {f"{name}_{kind}": float(figures[name][kind]) for kind in ("median", "p95")}
    return found
