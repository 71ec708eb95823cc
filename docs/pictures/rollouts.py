"""Draws tau of drafted GRPO rollouts, the figures of research/training/rollouts.py: rollouts.svg, next to itself."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "research" / "analysis" / "rollouts.json"
WIDTH, HEIGHT, LEFT, TOP, BOTTOM = 760, 360, 56, 84, 306
"""Pixels: of the picture, and of the plot's edges."""
TITLE = "Tau of each GRPO step's rollouts"
STYLE = """
  :root { --ground: #fbfbfa; --ink: #1c2024; --quiet: #5f6670; --line: #dfe3e8; --one: #2b6fd9; --two: #d9772b; }
  @media (prefers-color-scheme: dark) {
    :root { --ground: #14161a; --ink: #e7e9ec; --quiet: #a0a7b2; --line: #2b3038; --one: #6f9ae0; --two: #f0984f; }
  }
  text { fill: var(--ink); font: 13px system-ui, sans-serif; }
  .title { font-size: 16px; font-weight: 650; }
  .note { fill: var(--quiet); }
  .end { text-anchor: end; } .middle { text-anchor: middle; }
  .line { stroke: var(--line); }
  polyline { fill: none; stroke-width: 2; }
"""


def render_rollouts() -> str:
    """The chart as SVG: a line for each drafter."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    series = [(name, found["tau"]) for name, found in results.items()]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} '
    return "\n".join([
        f'{head}{HEIGHT}" aria-label="{TITLE}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" style="fill: var(--ground)"/>',
        f'<text class="title" x="16" y="28">{TITLE}</text>',
        *_lines(series),
        f'<text class="note" x="16" y="{HEIGHT - 12}">talk-7m, EAGLE, temperature 1, eight rollouts a step; '
        "rollouts and policy are the same for both drafters</text>",
        "</svg>\n",
    ])  # fmt: skip


def _lines(series: Sequence[tuple[str, Sequence[float]]]) -> Iterator[str]:
    """The grid, the names, and a line for each series."""
    steps = max(len(values) for _, values in series)
    top = max(max(values) for _, values in series)

    def across(step: int) -> float:
        return LEFT + (WIDTH - LEFT - 24) * step / (steps - 1)

    def up(tau: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (tau - 1) / (top - 1)

    for tau in range(1, int(top) + 1):
        yield f'<line class="line" x1="{LEFT}" x2="{WIDTH - 24}" y1="{up(tau):.1f}" y2="{up(tau):.1f}"/>'
        yield f'<text class="note end" x="{LEFT - 8}" y="{up(tau) + 4:.1f}">{tau}</text>'
    for step in range(0, steps, 10):
        yield f'<text class="note middle" x="{across(step):.1f}" y="{BOTTOM + 20}">step {step + 1}</text>'
    for number, (ink, (name, values)) in enumerate(zip(("one", "two"), series, strict=True)):
        points = " ".join(f"{across(step):.1f},{up(tau):.1f}" for step, tau in enumerate(values))
        yield f'<polyline style="stroke: var(--{ink})" points="{points}"/>'
        yield f'<circle cx="{LEFT + 180 * number}" cy="54" r="5" style="fill: var(--{ink})"/>'
        yield f'<text x="{LEFT + 10 + 180 * number}" y="58">{name}</text>'


if __name__ == "__main__":
    (HERE / "rollouts.svg").write_text(render_rollouts(), encoding="utf-8")
