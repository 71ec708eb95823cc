"""The figures and tables of docs/explanation/coral-analysis.md, from the numbers that coral.py measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from sample import fill, table, with_interval

from specframe_report.plots import COLOURS, MARKERS, STYLE, WIDTH

HERE = Path(__file__).resolve().parent
DOCS = HERE.parents[1] / "docs"
PAGE = DOCS / "explanation" / "coral-analysis.md"
DRAFTERS = ("eagle2", "hass", "coral")
TREES = (("chain", "chain"), ("recipe", "EAGLE-2's tree"))
STEPS = 4
HIDDEN = (512, 1024, 2048)
VOCABULARIES = (4_096, 32_000, 64_000, 128_256)


def show(numbers: dict[str, Any]) -> None:
    """Draws the figures that there are numbers for, and fills the page's tables."""
    draw: dict[str, Callable[[Any], Figure]] = {"acceptance": draw_acceptance, "latency": draw_latency}
    for name, drawn in draw.items():
        if name in numbers:
            with rc_context(STYLE):
                drawn(numbers[name]).savefig(DOCS / "pictures" / f"{name}.svg", metadata={"Date": None})
    page = PAGE.read_text(encoding="utf-8")
    for name, text in write_tables(numbers):
        page = fill(page, name, text)
    PAGE.write_text(page, encoding="utf-8")


def draw_acceptance(figures: dict[str, Any]) -> Figure:
    """A line per drafter: acceptance by position, in a chain and in the recipes' tree."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (tree, title) in zip(panels, TREES, strict=True):
        for number, name in enumerate(DRAFTERS):
            values, lows, highs = zip(*figures[tree][name]["alpha"], strict=True)
            colour = COLOURS[1 + number]
            axes.plot(range(1, 6), values, label=name, color=colour, marker=MARKERS[number], markersize=5)
            axes.fill_between(range(1, 6), lows, highs, color=colour, alpha=0.12, linewidth=0)
        label(axes, "position of the drafted token", title)
    panels[0].set_ylabel("accepted, once reached")
    panels[0].set_ylim(0, 1)
    panels[0].legend()
    return figure


def draw_latency(figures: Sequence[dict[str, Any]]) -> Figure:
    """The LM head's share by vocabulary: measured, and by the weights alone."""
    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axes = figure.subplots()
    for number, hidden in enumerate(HIDDEN):
        some = [entry for entry in figures if entry["hidden"] == hidden]
        sizes = [entry["vocabulary"] for entry in some]
        look: dict[str, Any] = {"color": COLOURS[1 + number], "marker": MARKERS[number], "markersize": 5}
        axes.plot(sizes, [entry["share"] for entry in some], label=f"hidden size {hidden}", **look)
        axes.plot(sizes, [entry["share_of_weights"] for entry in some], color=look["color"], linestyle=":")
    axes.set_xscale("log")
    axes.set_xticks(VOCABULARIES, [f"{size // 1000}k" for size in VOCABULARIES])
    axes.minorticks_off()
    axes.set_ylim(0, 1)
    axes.set_ylabel("LM head's share")
    label(axes, "vocabulary", "of a drafter forward's time; dotted: of its weights")
    axes.legend()
    return figure


def label(axes: Axes, horizontal: str, title: str) -> None:
    """Names what runs along the axis, and the panel."""
    axes.set_xlabel(horizontal)
    axes.set_title(title)
    axes.grid(axis="y", color="0.9")


def write_tables(numbers: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Each table of the page, with its name."""
    if acceptance := numbers.get("acceptance"):
        rows = [
            [
                title,
                name,
                with_interval(acceptance[tree][name]["tau"]),
                *map(with_interval, acceptance[tree][name]["alpha"]),
            ]
            for tree, title in TREES
            for name in DRAFTERS
        ]
        yield "acceptance", table(["tree", "recipe", "tau", *(f"{n}-alpha" for n in range(1, 6))], rows)
    if distances := numbers.get("distances"):
        rows = [
            [name if later == 1 else "", f"step {later}", *(f"{found:.3f}" for found in distances[name][later][:later])]
            for name in DRAFTERS
            for later in range(1, 1 + STEPS)
        ]
        heads = ["recipe", "", "target", *(f"step {step}" for step in range(1, STEPS))]
        yield "distances", table(heads, [row + [""] * (len(heads) - len(row)) for row in rows])
    if router := numbers.get("router"):
        rows = [
            [
                "LM head" if entry["active"] is None else f"{entry['active']} of 16",
                "1" if entry["active"] is None else f"{entry['active'] / 16:.3f}",
                f"{entry['rows']:.2f}",
                f"{entry['weights'] / router[0]['weights']:.2f}",
                with_interval(entry["factored"]) if entry["factored"] else "",
                with_interval(entry["restricted"]),
            ]
            for entry in router
        ]
        reads = ("rows a node reads", "rows a forward reads", "weights a forward reads")
        yield "router", table(["groups", *reads, "tau, `factored`", "tau, `restricted`"], rows)
    if latency := numbers.get("latency"):
        rows = [
            [
                str(entry["hidden"]),
                f"{entry['vocabulary']:,}",
                f"{1000 * entry['layer_seconds']:.2f} ms",
                f"{1000 * entry['head_seconds']:.2f} ms",
                f"{entry['share']:.0%}",
                f"{entry['share_of_weights']:.0%}",
            ]
            for entry in latency
        ]
        yield "latency", table(["hidden size", "vocabulary", "layer", "LM head", "its share", "of the weights"], rows)
