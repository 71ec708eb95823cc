"""The report's plots, drawn with matplotlib's objects alone: no global state, no display."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure

from specframe_report.format import is_suspect
from specframe_report.grid import dig
from specframe_report.measures import PHASES
from specframe_report.summary import PLAIN

COLOURS = ("#000000", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
"""Okabe and Ito's palette, distinguishable with every common colour vision."""
MARKERS = "osD^vPX"
STYLE: Any = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.hashsalt": "specframe",
    "text.parse_math": False,  # names are literal, including dollar signs
}
WIDTH = 6.3
"""Inches: the text width of a paper in one column."""
ALL = "all"
BELOW = -0.3  # top of a legend below the plot, in heights of the axes
UNSAFE = re.compile(r"[^\w .,:;=+*()/-]|_")
"""Characters of names that have a meaning in LaTeX."""
LONGEST_NAME, LONGEST_TASK = 72, 30
"""Maximum lengths of names in plots; longer ones leave no room for the data."""

Entry = Mapping[str, Any]


def draw_plots(summary: Mapping[str, Any], folder: Path) -> list[Path]:
    """Draws all plots with data, as PNG, SVG and, with matplot2tikz, pgfplots; returns the files written."""
    entries = [entry | {"look": _look(entry, number)} for number, entry in enumerate(_contestants(summary))]
    drafting = [entry for entry in entries if entry["overall"].get("alpha")]
    faster = [entry for entry in entries if entry["kind"] != PLAIN and entry["overall"].get("speedup")]
    cycling = [entry for entry in entries if entry["overall"].get("phase_token_seconds")]
    tasks = list(summary["tasks"])
    plots: list[tuple[str, Callable[[], Figure], Sequence[Entry]]] = [
        ("speedup_by_task", lambda: draw_by_task(faster, tasks, "speedup", "speedup against plain decoding"), faster),
        (
            "tau_by_task",
            lambda: draw_by_task(drafting, tasks, "tau", "tau (tokens per cycle, bonus included)"),
            drafting,
        ),
        ("alpha_by_depth", lambda: draw_alpha(drafting), drafting),
        ("phases", lambda: draw_phases(cycling), cycling),
        ("quality_against_speedup", lambda: draw_quality(checked), checked := _checked(faster)),
        ("speedup_against_tau", lambda: draw_costs(both), both := [entry for entry in faster if entry in drafting]),
    ]
    written = []
    for name, draw, needed in plots:
        if needed:
            with rc_context(STYLE):
                written += _save(draw(), folder / name)
    return written


def draw_by_task(entries: Sequence[Entry], tasks: Sequence[str], field: str, label: str) -> Figure:
    """Draws a value with its interval: a row per task and one for all, a dot per contestant."""
    rows = [*tasks, ALL] if len(tasks) > 1 else [ALL]
    figure, axes = _open(1.2 + len(rows) * max(0.3, 0.05 + 0.11 * len(entries)))
    axes.axvline(1, color="0.5", linewidth=0.8, zorder=0.9)
    for number, entry in enumerate(entries):
        offset = (number - (len(entries) - 1) / 2) * 0.8 / max(len(entries), 2)
        found = [dig(entry["overall"] if row == ALL else entry["tasks"].get(row), field) for row in rows]
        points = [(row + offset, figures) for row, figures in enumerate(found) if figures]
        figures = [figures for _, figures in points]
        values, places = [figures["value"] for figures in figures], [place for place, _ in points]
        axes.errorbar(values, places, xerr=_errors(figures), label=_label(entry), **entry["look"] | {"ls": "none"})
    for row in range(1, len(rows)):
        axes.axhline(row - 0.5, color="0.9" if row < len(rows) - 1 else "0.5", linewidth=0.8, zorder=0)
    axes.set_yticks(range(len(rows)), [_cut(row, LONGEST_TASK) for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="0.9")
    axes.set_axisbelow(True)
    axes.set_xlabel(f"{label}, 95 % interval")
    return _legend(figure, axes)


def draw_alpha(entries: Sequence[Entry]) -> Figure:
    """Draws acceptance by depth: of all cycles, and of those that reached the depth above."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, field, title in (
        (left, "alpha", "of all cycles"),
        (right, "alpha_conditional", "once at the depth above"),
    ):
        for entry in entries:
            rates = entry["overall"][field]
            axes.plot(range(1, len(rates) + 1), rates, label=_label(entry), clip_on=False, **entry["look"])
        axes.set_title(title)
        axes.set_xlabel("depth (tokens)")
        axes.set_xticks(range(1, 1 + max(len(entry["overall"][field]) for entry in entries)))
        axes.grid(axis="y", color="0.9")
    left.set_ylim(0, 1)
    left.set_ylabel("alpha (share accepted)")
    return _legend(figure, left)


def draw_phases(entries: Sequence[Entry]) -> Figure:
    """Draws the time of a token, phase by phase."""
    figure, axes = _open(1.2 + 0.34 * len(entries))
    starts = [0.0] * len(entries)
    names = [_label(entry) for entry in entries]
    for number, phase in enumerate(PHASES):
        times = [1000 * entry["overall"]["phase_token_seconds"][phase] for entry in entries]
        colour = COLOURS[1:][number]
        axes.barh(names, times, left=starts, label=phase, color=colour, edgecolor="white", linewidth=0.6, height=0.65)
        starts = [start + time for start, time in zip(starts, times, strict=True)]
    axes.invert_yaxis()
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("milliseconds per token")
    return _legend(figure, axes)


def draw_costs(entries: Sequence[Entry]) -> Figure:
    """Draws speedup against tau over lines of equal cycle cost: a method's gain, and the cost of its cycles."""
    figure, axes = _open(3.8)
    _points(axes, entries, "tau", "speedup")
    axes.autoscale_view()
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    axes.set_xlim(min(left, 1), max(right, 1.5))
    axes.set_ylim(max(min(bottom, 0.9), 0), max(top, 1.1))
    axes.axhline(1, color="0.6", linewidth=0.8, zorder=0)
    for cost in (0.5, 0.75, 1, 1.25, 1.5, 2, 3, 4, 6, 10, 20):
        _iso_line(axes, cost)
    axes.set_xlabel("tau (tokens per cycle, bonus included), 95 % interval")
    axes.set_ylabel("speedup against plain, 95 % interval")
    axes.set_title("grey lines: what a cycle costs, in steps of plain decoding", color="0.4", pad=16)
    return _legend(figure, axes)


def draw_quality(entries: Sequence[Entry]) -> Figure:
    """Draws quality of the answers against speedup: what a lossy rule costs."""
    figure, axes = _open(3.2)
    _points(axes, entries, "speedup", "quality")
    axes.grid(color="0.9")
    axes.set_xlabel("speedup against plain, 95 % interval")
    axes.set_ylabel("share of right answers, 95 % interval")
    return _legend(figure, axes)


def _points(axes: Axes, entries: Sequence[Entry], across: str, up: str) -> None:
    """A point with its intervals for each contestant, at two of its measures."""
    for entry in entries:
        x, y = entry["overall"][across], entry["overall"][up]
        look = entry["look"] | {"ls": "none", "xerr": _errors([x]), "yerr": _errors([y])}
        axes.errorbar([x["value"]], [y["value"]], label=_label(entry), zorder=3, **look)


def _iso_line(axes: Axes, cost: float) -> None:
    """Draws the line speedup = tau / cost, labelled where it leaves the plot."""
    (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
    axes.plot(
        [left, right], [left / cost, right / cost], color="0.82", linewidth=0.8, zorder=0, scalex=False, scaley=False
    )
    if bottom < right / cost <= top:
        _note(axes, f"{cost:g}", (right, right / cost), offset=(3, 0), ha="left", va="center")
    elif left < top * cost < right:
        _note(axes, f"{cost:g}", (top * cost, top), offset=(0, 2), ha="center", va="bottom")


def _note(axes: Axes, text: str, position: tuple[float, float], offset: tuple[int, int], ha: str, va: str) -> None:
    axes.annotate(
        text,
        position,
        xytext=offset,
        textcoords="offset points",
        ha=ha,
        va=va,
        color="0.4",
        fontsize=8,
        annotation_clip=False,
    )


def _errors(figures: Sequence[Mapping[str, Any]]) -> list[list[float]]:
    """Returns the intervals' distances below and above the values; 0 without an interval."""
    lows = [f["value"] - (f["value"] if f["low"] is None else f["low"]) for f in figures]
    highs = [(f["value"] if f["high"] is None else f["high"]) - f["value"] for f in figures]
    return [lows, highs]


def _contestants(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the contestants with values, plain first, so that it gets the palette's black."""
    entries = [entry for entry in summary["contestants"] if entry["overall"] is not None]
    return sorted(entries, key=lambda entry: entry["kind"] != PLAIN)


def _checked(entries: Sequence[Entry]) -> list[Entry]:
    """Returns the contestants with checked answers if one of them is lossy; others answer as plain decoding."""
    found = [entry for entry in entries if entry["overall"].get("quality")]
    return found if any(entry["lossless"] is False for entry in found) else []


def _look(entry: Entry, number: int) -> dict[str, Any]:
    """Returns a contestant's colour and marker, equal in all plots; hollow if it is not a recipe."""
    colour = COLOURS[number % len(COLOURS)]
    face = colour if entry["kind"] == "recipe" else "white"
    marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]  # so that combinations repeat late
    return {"color": colour, "marker": marker, "markerfacecolor": face, "markersize": 5, "linewidth": 1.2}


def _label(entry: Entry) -> str:
    name = _cut(entry["name"], LONGEST_NAME)
    if entry["lossless"] is False:
        return f"{name} (lossy)"
    return f"{name} (output differs)" if is_suspect(entry) else name


def _cut(text: str, length: int) -> str:
    """Returns the text, without its middle if it is too long: variants of a recipe differ at the end."""
    return text if len(text) <= length else f"{text[: length // 2]}…{text[-(length // 2) :]}"


def _open(height: float) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots()


def _legend(figure: Figure, axes: Axes) -> Figure:
    """Returns the figure with its legend below the plot."""
    handles, labels = axes.get_legend_handles_labels()
    columns = max(1, min(len(labels), int(80 / (max(map(len, labels)) + 5))))
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    return figure


def _save(figure: Figure, path: Path) -> list[Path]:
    FigureCanvasAgg(figure)
    files = [path.with_suffix(".png"), path.with_suffix(".svg")]
    figure.savefig(files[0], dpi=200)
    figure.savefig(files[1], metadata={"Date": None})
    if can_export():
        files.append(path.with_suffix(".tex"))
        files[-1].write_text(_export(figure), encoding="utf-8")
    return files


def _export(figure: Figure) -> str:
    """Returns the figure for pgfplots, which only has legends of axes: one below the first axes names all lines."""
    from matplot2tikz import get_tikz_code

    figure.legends.clear()
    for bars in figure.axes[0].containers:
        if isinstance(bars, ErrorbarContainer):
            bars.lines[0].set_label(str(bars.get_label()))
    for number, axes in enumerate(figure.axes):
        for line in axes.lines:
            if not (label := str(line.get_label())).startswith("_"):
                line.set_label("_nolegend_" if number else UNSAFE.sub("-", label))
    figure.axes[0].legend(loc="upper left", bbox_to_anchor=(0.0, BELOW), ncols=3)
    code: str = get_tikz_code(figure)
    return code


def can_export() -> bool:
    """Returns whether matplot2tikz is installed."""
    return importlib.util.find_spec("matplot2tikz") is not None
