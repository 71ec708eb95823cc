"""Display of findings about another program's acceptance function, or a running server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from specframe.cli.render.certificate import NOT_SHOWN, TV_IS, cases_table, farthest_off, print_title
from specframe.files.text import counted, open_console, printable_data


def print_function(summary: dict[str, Any]) -> None:
    """Prints the findings about a foreign function."""
    console = open_console()
    summary = printable_data(summary)
    print_title(console, summary["function"], "every random outcome of the function, over iterated cycles")
    console.print(cases_table(summary["cases"]))
    console.print(f"{TV_IS}\n", style="dim")
    if summary["lossless"]:
        console.print("lossless: it emits the target's distribution", style="bold")
        return
    if not summary["different"]:
        console.print(NOT_SHOWN, style="bold")
        return
    console.print(farthest_off(summary))
    console.print(f"not lossless: total variation {summary['tv']:.4g}", style="bold")


def print_samples(summary: dict[str, Any]) -> None:
    """Prints the findings about a foreign function that was sampled."""
    console = open_console()
    summary = printable_data(summary)
    print_title(console, summary["function"], "runs with random numbers, over iterated cycles")
    console.print(_fits("case", [(case["name"], case) for case in summary["cases"]]))
    if summary["different"]:
        console.print(_count_off(summary["cases"]))
        console.print("not lossless: it does not emit the target's distribution", style="bold")
    else:
        console.print(f"no difference found, which is no proof: {_noticed(summary['cases'])}", style="bold")


def print_server(summary: dict[str, Any]) -> None:
    """Prints the findings about a running server."""
    console = open_console()
    summary = printable_data(summary)
    positions = summary["positions"]
    print_title(console, summary["model"], f"{summary['samples']:,} completions by {summary['server']}")
    console.print(_fits("token", [(str(place["position"]), place) for place in positions]))
    if (accepted := summary["accepted"]) is not None:
        console.print(f"drafted tokens accepted meanwhile, by its metrics: {accepted:,.0f}")
    if (distance := summary["distance"]) is not None:
        console.print(f"its log-probabilities, against those after a prompt of the same text: {distance:.4f} at most")
    console.print(_server_verdict(summary, positions), style="bold")


def _server_verdict(summary: dict[str, Any], positions: Sequence[dict[str, Any]]) -> str:
    if positions[0]["refused"]:
        return (
            "not shown: even first tokens, which follow no draft, are not drawn by its log-probabilities; a default "
            f"such as top_k can be turned off by --body ({_count_off(positions[:1])})"
        )
    if any(place["refused"] for place in positions):
        return f"not lossless: drafted tokens do not follow the target's distribution ({_count_off(positions)})"
    if summary["different"]:
        return "not lossless: the log-probabilities of drafted tokens are not those after a prompt of the same text"
    if summary["accepted"] == 0:
        return "not shown: it accepted no draft meanwhile"
    if not summary["tested"]:
        return f"not shown: {counted(summary['ended'], 'completion')} ended early; give others to complete by --text"
    return f"no difference found, which is no proof: {_noticed(positions[1:])}"


def _fits(what: str, fits: Sequence[tuple[str, dict[str, Any]]]) -> Table:
    """Returns a table of tests."""
    table = Table(what, "samples", "outcomes counted", "p", "noticed", box=None, header_style="dim")
    for name, fit in fits:
        off = "" if fit["detectable"] is None else f"{fit['detectable']:.3f}"
        table.add_row(name, f"{fit['samples']:,}", f"{fit['freedom']:,}", f"{fit['p']:.2g}", off)
    return table


def _noticed(fits: Sequence[dict[str, Any]]) -> str:
    most = max(fit["detectable"] for fit in fits if fit["detectable"] is not None)
    return f"a total variation of {most:.3f} would have been noticed with probability .99"


def _count_off(fits: Sequence[dict[str, Any]]) -> str:
    """Returns the outcome whose count deviates most."""
    fit = min(fits, key=lambda fit: fit["p"])
    rank = "position" in fit
    outcome = "other outcomes" if fit["worst"] is None else f"{'rank ' if rank else ''}{fit['worst']}"
    return f"farthest off: {outcome}, {fit['got']:,} times instead of {fit['wanted']:,.1f}"
