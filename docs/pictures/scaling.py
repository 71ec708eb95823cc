"""Draws the laws of `specframe scaling` from a results file: ``python docs/pictures/scaling.py RESULTS``.

It writes scaling-tokens.svg (tau by training tokens), scaling-parameters.svg (tau by parameters) and scaling-batch.svg
(tokens a second by rows side by side) next to itself.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import wrap

import numpy as np

from specframe_scaling.points import Array, Results
from specframe_scaling.report import ScalingReport, count, words_of
from specframe_scaling.throughput import Knee, predictions

WIDTH, HEIGHT = 520, 380
LEFT, RIGHT, TOP, BOTTOM = 56, 24, 84, 306
"""Pixels: of the plot's edges."""
COLUMNS = 70
"""Characters in a line of the note below the plot."""
COLOURS = ("one", "two", "three", "four", "five", "six")
STYLE = """
  :root { --ground: #fbfbfa; --ink: #1c2024; --quiet: #5f6670; --line: #dfe3e8;
    --one: #2b6fd9; --two: #d9772b; --three: #2a9d6f; --four: #a04bc4; --five: #b0892a; --six: #c43f5e; }
  @media (prefers-color-scheme: dark) {
    :root { --ground: #14161a; --ink: #e7e9ec; --quiet: #a0a7b2; --line: #2b3038;
      --one: #6f9ae0; --two: #f0984f; --three: #4fc795; --four: #c583e0; --five: #d8b65a; --six: #ec7a94; }
  }
  text { fill: var(--ink); font: 13px system-ui, sans-serif; }
  .title { font-size: 16px; font-weight: 650; }
  .note { fill: var(--quiet); }
  .end { text-anchor: end; } .middle { text-anchor: middle; }
  .line { stroke: var(--line); }
  .law { fill: none; stroke-width: 2; }
  .dashed { stroke-dasharray: 5 4; }
"""


@dataclass(frozen=True)
class Series:
    """Points of one kind, and curves through them: the first as a line, the second dashed."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    curves: Sequence[tuple[Array, Array]]


def render(title: str, note: str, ticks: Sequence[tuple[float, str]], series: Sequence[Series], unit: str) -> str:
    """A plot with a logarithmic axis as SVG."""
    places = [x for one in series for x in (*one.x, *(each for xs, _ in one.curves for each in xs))]
    values = [y for one in series for y in (*one.y, *(each for _, ys in one.curves for each in ys))]
    low, high = np.log10(min(places)), np.log10(max(places))
    step = _step(max(values) - min(values))
    bottom, top = step * np.floor(min(values) / step), step * np.ceil(max(values) / step)

    def across(x: float) -> float:
        return float(LEFT + (np.log10(x) - low) / (high - low) * (WIDTH - LEFT - RIGHT))

    def up(y: float) -> float:
        return float(BOTTOM - (y - bottom) / (top - bottom) * (BOTTOM - TOP))

    def body() -> Iterator[str]:
        for y in np.arange(bottom, top + step / 2, step):
            yield f'<line class="line" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{up(y):.1f}" y2="{up(y):.1f}"/>'
            yield f'<text class="note end" x="{LEFT - 8}" y="{up(y) + 4:.1f}">{y:.3g}</text>'
        for x, text in ticks:
            yield f'<text class="note middle" x="{across(x):.1f}" y="{BOTTOM + 20}">{text}</text>'
        yield f'<text class="note" x="16" y="{TOP - 12}">{unit}</text>'
        at = 30.0 + 8 * len(unit)
        for colour, one in zip(COLOURS, series, strict=False):
            ink = f"var(--{colour})"
            yield f'<circle cx="{at:.0f}" cy="{TOP - 16}" r="5" style="fill: {ink}"/>'
            yield f'<text x="{at + 10:.0f}" y="{TOP - 12}">{one.name}</text>'
            at += 26 + 6.9 * len(one.name)
            for kind, (xs, ys) in zip(("law", "law dashed"), one.curves, strict=False):
                path = " ".join(f"{across(x):.1f},{up(y):.1f}" for x, y in zip(xs, ys, strict=True))
                yield f'<polyline class="{kind}" style="stroke: {ink}" points="{path}"/>'
            for x, y in zip(one.x, one.y, strict=True):
                yield f'<circle cx="{across(x):.1f}" cy="{up(y):.1f}" r="4" style="fill: {ink}"/>'

    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} '
    return "\n".join([
        f'{head}{HEIGHT}" aria-label="{title}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" style="fill: var(--ground)"/>',
        f'<text class="title" x="16" y="28">{title}</text>',
        *body(),
        *(
            f'<text class="note" x="16" y="{HEIGHT - 30 + 18 * line}">{text}</text>'
            for line, text in enumerate(wrap(note, COLUMNS))
        ),
        "</svg>\n",
    ])  # fmt: skip


def tokens(report: ScalingReport) -> str:
    """Tau by training tokens, a colour for each size; the law that was chosen, and Scylla's dashed."""
    results = report.results
    low, high = results.tokens.min(), results.tokens.max()
    places = np.geomspace(low, 3 * high, 60)
    series = []
    for size, parameters in results.sizes().items():
        points = [point for point in results.points if point.size == size]
        sizes = np.full(len(places), float(parameters))
        curves = [(places, law.tau(places, sizes)[0]) for law in (report.law, report.named("linear"))]
        series.append(Series(words_of(size), [p.tokens for p in points], [p.tau for p in points], curves))
    ticks = [(place, count(place)) for place in sorted({point.tokens for point in results.points if point.seed == 0})]
    shown = [tick for number, tick in enumerate(ticks) if not number or tick[0] / ticks[number - 1][0] > 1.3]
    note = f"lines: the law {report.law.name}, to three times the most tokens; dashed: a + b log10(tokens)"
    return render("Tau by training tokens", note, shown, series, "tau")


def parameters(report: ScalingReport) -> str:
    """Tau by parameters, a colour for each number of tokens."""
    results = report.results
    sizes = np.array(sorted(results.sizes().values()), dtype=float)
    places = np.geomspace(sizes.min(), sizes.max(), 40)
    marks = sorted({round(np.log10(point.tokens), 1) for point in results.points})
    series = []
    for mark in marks:
        points = [point for point in results.points if round(np.log10(point.tokens), 1) == mark]
        middle = float(np.mean([point.tokens for point in points]))
        law = report.law.tau(np.full(len(places), middle), places)[0]
        found = [p.parameters for p in points], [p.tau for p in points]
        series.append(Series(f"{count(middle)} tokens", *found, [(places, law)]))
    return render(
        "Tau by the drafter's parameters",
        f"lines: the law {report.law.name}, fitted to all points together",
        [(size, count(size)) for size in sizes],
        series,
        "tau",
    )


def batches(report: ScalingReport) -> str:
    """Tokens a second by rows side by side; the law up to a knee, and the times of passes dashed."""
    series = []
    for size in report.results.sizes():
        speeds = [speed for speed in report.results.speeds if (speed.layers, speed.width) == size]
        speeds.sort(key=lambda speed: speed.batch)
        rows = np.array([speed.batch for speed in speeds], dtype=float)
        rates = [speed.tokens_per_second for speed in speeds]
        law = Knee.fit([speed.batch for speed in speeds], rates)
        places = np.geomspace(rows.min(), rows.max(), 60)
        curves = [(places, np.array([law.at(place) for place in places]))]
        if report.results.passes is not None:
            curves.append((rows, np.array(predictions(report.results.passes, speeds))))
        series.append(Series(words_of(size), rows.tolist(), rates, curves))
    ticks = [(row, f"{row:.0f}") for row in series[0].x]
    note = "by rows side by side; lines: a + b log2(batch) up to a knee; dashed: by the times of single passes, no fit"
    return render("Tokens a second by batch", note, ticks, series, "tokens/s")


def _step(span: float) -> float:
    """A round distance of the lines of a grid, some five of which cover the span."""
    unit = 10 ** np.floor(np.log10(span / 5))
    return float(next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= span / 6))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    fitted = ScalingReport(Results.read(parser.parse_args().results))
    for name, draw in {"tokens": tokens, "parameters": parameters, "batch": batches}.items():
        (Path(__file__).parent / f"scaling-{name}.svg").write_text(draw(fitted), encoding="utf-8")
