"""Draws what decoding gains on SmolLM2 and by what, from the bench's results: docs/generate.py writes speedup.svg."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from benches import read_benches

BENCH = "smollm2-avx512"
PLAIN = "plain decoding"
LEFT, UNIT, ROW, TOP, BAR = 138, 39, 24, 94, 15
"""Pixels: of the names, of one time `generate`, of a row, of the head, of a bar."""
WIDTH = 520
"""A phone shows this at 70 %, and the letters remain legible."""
TITLE = "Tokens a second, times transformers' generate"
LEGEND = (("base", "generate"), ("native", "native passes, plain decoding"), ("draft", "speculation"))
STYLE = """
  :root { --ground: #fbfbfa; --ink: #1c2024; --quiet: #5f6670; --line: #c9ced6; --base: #b9c0ca; --native: #6f9ae0; --draft: #d9772b; }
  @media (prefers-color-scheme: dark) {
    :root { --ground: #14161a; --ink: #e7e9ec; --quiet: #a0a7b2; --line: #39404a; --base: #4d5561; --native: #4f7fd0; --draft: #f0984f; }
  }
  text { fill: var(--ink); font: 13px system-ui, sans-serif; }
  .title { font-size: 16px; font-weight: 650; }
  .note { fill: var(--quiet); }
  .end { text-anchor: end; }
  .strong { font-weight: 650; }
  .line { stroke: var(--line); }
  .base { fill: var(--base); } .native { fill: var(--native); } .draft { fill: var(--draft); }
"""  # noqa: E501 - a rule a line


def render_chart() -> str:
    """The chart as SVG: a bar per recipe, the largest gain first, and one for plain decoding."""
    bench = next(bench for bench in read_benches() if bench.name == BENCH)
    prompts = len(bench.results["prompts"])
    gains = {name: entry["overall"] for name, entry in bench.measured.items()}
    plain = gains.pop("plain")
    order = sorted(gains, key=lambda name: -gains[name]["speedup_hf"]["value"])
    rows = [*((name, gains[name]) for name in order), (PLAIN, plain)]
    height = TOP + ROW * len(rows) + 34
    native = plain["speedup_hf"]["value"]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" aria-label="{TITLE}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" rx="12" style="fill: var(--ground)"/>',
        f'<text class="title" x="16" y="28">{TITLE}</text>',
        *_legend(),
        f'<text class="note end" x="{WIDTH - 16}" y="{TOP - 12}">times plain, 95 % interval</text>',
        *_grid(height),
        *(line for index, (name, figures) in enumerate(rows) for line in _bar(index, name, figures, native)),
        f'<text class="note" x="16" y="{height - 10}">SmolLM2-135M-Instruct, bfloat16, two cores, '
        f"{prompts} prompts</text>",
        "</svg>\n",
    ])  # fmt: skip


def _legend() -> Iterator[str]:
    x = 16.0
    for kind, text in LEGEND:
        yield f'<rect class="{kind}" x="{x:.0f}" y="43" width="13" height="13" rx="2"/>'
        yield f'<text x="{x + 19:.0f}" y="54">{text}</text>'
        x += 36 + 6.7 * len(text)


def _grid(height: int) -> Iterator[str]:
    for times in range(6):
        x = LEFT + UNIT * times
        yield f'<line class="line" x1="{x}" x2="{x}" y1="{TOP - 8}" y2="{height - 30}"/>'


def _bar(index: int, name: str, figures: Mapping[str, Any], native: float) -> Iterator[str]:
    """One row: up to 1 it is `generate`, up to plain decoding the native passes, and from there on speculation."""
    y = TOP + ROW * index
    total = figures["speedup_hf"]["value"]
    yield f'<text class="end" x="{LEFT - 8}" y="{y + 12}">{name}</text>'
    for kind, low, high in (("base", 0.0, 1.0), ("native", 1.0, min(native, total)), ("draft", native, total)):
        if high > low:
            at, wide = LEFT + UNIT * low, UNIT * (high - low)
            yield f'<rect class="{kind}" x="{at:.1f}" y="{y}" width="{wide:.1f}" height="{BAR}"/>'
    yield f'<text class="strong" x="{LEFT + UNIT * total + 6:.1f}" y="{y + 12}">{total:.2f}</text>'
    if name != PLAIN:
        gain = figures["speedup"]
        text = f"{gain['value']:.2f} [{gain['low']:.2f}, {gain['high']:.2f}]"
        yield f'<text class="note end" x="{WIDTH - 16}" y="{y + 12}">{text}</text>'


if __name__ == "__main__":
    (Path(__file__).parent / "speedup.svg").write_text(render_chart(), encoding="utf-8")
