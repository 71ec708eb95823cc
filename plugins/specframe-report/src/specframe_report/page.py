"""A bench as a page and plots, suitable for a paper's appendix."""

from __future__ import annotations

import importlib.util
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tabulate import tabulate

from specframe import SpecframeError
from specframe.plugin import counted, printable, printable_data
from specframe_report.format import (
    NONE,
    format_alpha,
    format_factor,
    format_figure,
    format_intervals,
    format_literal,
    format_milliseconds,
    format_share,
    format_workload,
    is_suspect,
)
from specframe_report.grid import dig
from specframe_report.summary import PLAIN
from specframe_report.tables import MARKED, side_by_side, write_tables

HOW_TO_READ = """\
tau is the number of tokens per cycle, the bonus included; alpha is the share of cycles accepted to each depth.
Speedups are ratios of times for the same tokens, paired by prompt, conversation turn and repeat: medians over repeats,
then totals over prompts. A contestant **in bold** does not give the target's output. The Metrics page of specframe's
documentation (`docs/reference/metrics.md`) defines every figure.
"""
NO_PLOTS = "There are no plots: matplotlib is not installed (`pip install specframe[bench]`)."


def write_report(
    results: Mapping[str, Any], summary: Mapping[str, Any], folder: Path, columns: Sequence[str] = ()
) -> list[Path]:
    """Writes report.md, tables and, if matplotlib is installed, the plots; returns the files written.

    The tables: the contestants in Markdown and LaTeX, with the given columns or the default ones, and every value with
    its interval as a CSV line.

    Raises SpecframeError if the folder cannot be written.
    """
    results, summary = printable_data(results), printable_data(summary)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        plots = _draw(summary, folder)
        page = folder / "report.md"
        pictures = [path.name for path in plots if path.suffix == ".png"]
        page.write_text("\n".join(_page(results, summary, pictures)) + "\n", encoding="utf-8")
        tables = write_tables(summary, folder, columns)
    except OSError as error:
        raise SpecframeError(f"the report cannot be written to {folder}: {error.strerror or error}") from error
    return [page, *tables, *plots]


def can_draw() -> bool:
    """Returns whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _draw(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    if not can_draw():
        return []
    from specframe_report.plots import draw_plots

    return draw_plots(summary, folder)


def _page(results: Mapping[str, Any], summary: Mapping[str, Any], pictures: Sequence[str]) -> Iterator[str]:
    entries = [entry for entry in summary["contestants"] if entry["overall"] is not None]
    cycling = [entry for entry in entries if entry["overall"].get("tau")]
    yield f"# Bench\n\n{format_workload(summary)}.\n"
    yield f"{HOW_TO_READ}{format_intervals(summary)}\n"
    if summary["notes"]:
        yield "\n".join(f"* {format_literal(note)}" for note in summary["notes"]) + "\n"
    yield from _overall(entries)
    if pictures:
        yield "\n\n".join(f"![{name.removesuffix('.png').replace('_', ' ')}]({name})" for name in pictures) + "\n"
    elif not can_draw():
        yield f"{NO_PLOTS}\n"
    for kind, title in (("tasks", "By task"), ("sets", "By prompt set")):
        if len(summary[kind]) > 1:
            yield from _by_group(entries, summary[kind], kind, title)
    yield from _acceptance(cycling)
    yield from _time(entries)
    yield from _costs(cycling)
    yield from _setting(results, summary)


def _overall(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Overall\n"
    yield _table(*side_by_side(entries, _name))
    yield f"{format_literal(MARKED)}\n"


def _by_group(entries: Sequence[Mapping[str, Any]], groups: Mapping[str, int], kind: str, title: str) -> Iterator[str]:
    entries = [entry for entry in entries if entry["kind"] != PLAIN]
    yield f"## {title}\n"
    head = ["contestant", *(f"{format_literal(name)} ({counted(count, 'prompt')})" for name, count in groups.items())]
    for figure, heading, unit in (("speedup", "Speedup vs plain", "x"), ("tau", "tau", "")):
        found = [[format_figure(dig(entry[kind].get(name), figure), unit=unit) for name in groups] for entry in entries]
        rows = [[_name(entry), *cells] for entry, cells in zip(entries, found, strict=True) if set(cells) != {NONE}]
        yield f"{heading}:\n"
        yield _table(head, rows)


def _acceptance(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = []
    bounded = any(entry["overall"].get("optimal_alpha") is not None for entry in entries)
    for entry in entries:
        figures = entry["overall"]
        if figures["alpha"]:
            rows.append([
                _name(entry),
                f"{figures['accepted_per_cycle']:.2f}",
                format_alpha(figures["alpha"]),
                *([_best(figures)] if bounded else []),
                format_alpha(figures["alpha_conditional"]),
                format_share(figures["draft_efficiency"]),
                str(figures["cycles"]),
            ])  # fmt: skip
    if rows:
        yield "## Acceptance\n"
        head = ["contestant", "accepted per cycle", "alpha by depth"]
        head += ["best rule, depth 1"] if bounded else []
        yield _table([*head, "conditional", "draft efficiency", "cycles"], rows)


def _best(figures: Mapping[str, Any]) -> str:
    best = figures.get("optimal_alpha")
    return NONE if best is None else format_alpha([best])


def _time(entries: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Latency\n"
    head = [
        "contestant",
        "first token, ms",
        "ms per token, p50",
        "p95",
        "paired ratio vs plain: median (lowest to highest)",
    ]
    rows = []
    for entry in entries:
        figures = entry["overall"]
        pairs = figures["pairs"].get("speedup")
        spread = f"{pairs['median']:.2f}x ({pairs['low']:.2f} to {pairs['high']:.2f})" if pairs else format_figure(None)
        times = [format_milliseconds(seconds) for seconds in figures["token_seconds"]]
        rows.append([_name(entry), format_figure(figures["first_token_seconds"], 1, scale=1000), *times, spread])
    yield _table(head, rows)


def _costs(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if not entries:
        return
    yield "## Where the time goes\n"
    phases = list(next((entry["overall"]["phases"] for entry in entries if entry["overall"]["phases"]), {}))
    rows = []
    for entry in entries:
        figures = entry["overall"]
        forwards = [format_milliseconds(figures["forward_seconds"][model]) for model in ("target", "drafter")]
        rows.append([_name(entry), *(format_share(dig(figures, "phases", phase), 0) for phase in phases), *forwards])
    yield _table(["contestant", *phases, "target forward pass, ms", "drafter forward pass, ms"], rows)
    rows = []
    for entry in entries:
        predicted = entry["overall"].get("predicted")
        if predicted:
            found = [format_factor(predicted[equation]) for equation in ("coral_1", "coral_6")]
            rows.append([_name(entry), format_figure(entry["overall"].get("speedup"), unit="x"), *found])
    if rows:
        yield "What latencies and sizes alone predict (CORAL, Eq. (1) and (6)), next to what was measured:\n"
        yield _table(["contestant", "measured", "Eq. (1), latencies", "Eq. (6), sizes (MBSU)"], rows)


def _setting(results: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[str]:
    provenance = summary["provenance"]
    yield "## Setting\n"
    rows = [[key, _plain(value)] for key, value in summary["settings"].items()]
    rows += [[f"machine: {key}", _plain(value)] for key, value in (provenance.get("hardware") or {}).items()]
    rows += [[key, _plain(value)] for key, value in (provenance.get("versions") or {}).items()]
    rows += [[key, _plain(provenance[key])] for key in ("python", "commit", "made") if provenance.get(key)]
    for worker in summary["workers"]:
        rows.append([f"rounds: {worker['rounds']}", f"{worker['engine']}, {_plain(worker['processor'])}"])
    if summary["bench_overhead"] is not None:
        rows.append(["the bench's own share of the time", format_share(summary["bench_overhead"])])
    yield _table(["", ""], rows)
    yield _table(
        ["contestant", "kind", "recipe", "target"],
        [
            [format_literal(str(e.get(key) or NONE)) for key in ("name", "kind", "recipe", "target")]
            for e in results["contestants"]
        ],
    )
    command = provenance.get("command")
    if command:
        yield _fenced(printable(command if isinstance(command, str) else shlex.join(command)))


def _name(entry: Mapping[str, Any]) -> str:
    name = format_literal(str(entry["name"]))
    return f"**{name}**" if is_suspect(entry) else name


def _plain(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return NONE if value is None else format_literal(str(value))


def _fenced(text: str) -> str:
    """Returns the text as a code block that none of its lines can end."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}bash\n{text}\n{fence}"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    return tabulate(rows, head, tablefmt="github", disable_numparse=True) + "\n"
