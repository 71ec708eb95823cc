"""The tables of docs/explanation/verifier-analysis.md, from the numbers that verifiers.py measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from sample import fill, table, with_interval

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "verifier-analysis.md"
RULES = ("recursive", "kseq", "transport")
"""The verifiers that differ on one level."""
DRAFTS = {"chain": "chain, `iid`", "iid": "tree, `iid`", "greedy": "tree, greedy", "top": "tree, `top`"} | {
    "without_replacement": "tree, `without_replacement`"
}


def show(numbers: Mapping[str, Any]) -> None:
    """Fills the page's tables that there are numbers for."""
    page = PAGE.read_text(encoding="utf-8")
    for name, text in write_tables(numbers):
        page = fill(page, name, text)
    PAGE.write_text(page, encoding="utf-8")


def write_tables(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Each table of the page, with its name."""
    if drafts := numbers.get("drafts"):
        for temperature, trees in drafts["temperatures"].items():
            rows = [row for name, tree in trees.items() for row in write_rules(DRAFTS[name], tree["verifiers"])]
            heads = ["draft", "verifier", "tau", "to `recursive`", "predicted"]
            yield f"drafts {temperature}", table(heads, rows)
    if bound := numbers.get("bound"):
        for temperature, draws in bound["temperatures"].items():
            rows = [
                [f"{siblings} {draw}", f"{found['optimum'][0]:.3f}", *(format_share(found, rule) for rule in RULES)]
                for draw, counts in draws.items()
                for siblings, found in counts.items()
            ]
            yield f"bound {temperature}", table(["siblings", "optimum", *(f"`{rule}`" for rule in RULES)], rows)


def write_rules(name: str, rules: Mapping[str, Any]) -> Iterator[list[str]]:
    """A row for each verifier of a draft: its tau, and the change from `recursive` as measured and as predicted."""
    for rule, found in rules.items():
        first = rule == "recursive"
        measured = "" if first else format_change(found["ratio"])
        predicted = "" if first or found["exact_ratio"] is None else format_change(found["exact_ratio"])
        yield [name if first else "", f"`{rule}`", with_interval(found["tau"]), measured, predicted]


def format_change(ratio: Sequence[float]) -> str:
    """A ratio with its interval, as a change in per cent."""
    value, low, high = (round(100 * (number - 1), 1) + 0.0 for number in ratio)  # no -0.0
    return f"{value:+.1f} % [{low:+.1f}, {high:+.1f}]"


def format_share(found: Mapping[str, Any], rule: str) -> str:
    """The rule's share of the optimum with its interval, marked where siblings were redrawn; or nothing."""
    if rule not in found["ratios"]:
        return ""
    value, low, high = found["ratios"][rule]
    return f"{'≈ ' if rule in found['redrawn'] else ''}{value:.3f} [{low:.3f}, {high:.3f}]"
