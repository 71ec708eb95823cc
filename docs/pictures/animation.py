"""Some cycles of a run as one animated picture: each draft, then its verdict, over the text so far."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape

from specframe.inspect.recorder import Trace
from specframe_report.trace_drawing import draw_tree

SIZE = re.compile(
    r'<svg role="img" aria-label="[^"]*" width="(\d+)" height="(\d+)" viewBox="[^"]*">(.*)</svg>', re.DOTALL
)
UNKNOWN = re.compile(
    r'<path class="edge bonus"[^>]*/>|<g class="node bonus".*?</g>|'
    r'<text class="number"[^>]*>p [^<]*</text>|<rect class="p"[^>]*/>',
    re.DOTALL,
)
"""Parts of a drawing that are not known before the target has scored the draft."""
TITLE = re.compile(r"<title>.*?</title>", re.DOTALL)
VERDICT = re.compile(r'(class="(?:edge|node) )(?:accepted|rejected)"')
SECONDS = 1.6
"""Time of a frame: two make a cycle."""
HEAD = 74
"""Pixels above the trees, of the caption and the text."""
COLUMNS = 62
"""Characters of the text that are shown, the last ones."""
STYLE = """
.caption { fill: var(--ink); font: 600 15px system-ui, sans-serif; }
.text { fill: var(--quiet); font: 13px ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.text .draft { fill: var(--draft); font-weight: 600; }
.text .bonus { fill: var(--bonus); font-weight: 600; }
.frame { opacity: 0; animation: frame %(all).1fs step-end infinite; }
@keyframes frame { 0%% { opacity: 1; } %(share).3f%%, 100%% { opacity: 0; } }
@media (prefers-reduced-motion: reduce) { .frame { animation: none; } .frame:last-child { opacity: 1; } }"""


def animate(found: Trace, first: int, count: int) -> tuple[str, int, int, str]:
    """The frames of `count` cycles from the first one on: their content, width, height and further style."""
    frames: list[str] = []
    width = height = 0
    cycles = found.cycles[first : first + count]
    for cycle in cycles:
        match = SIZE.search(draw_tree(cycle))
        assert match is not None
        width, height = max(width, int(match[1])), max(height, int(match[2]))
        judged = TITLE.sub("", match[3])
        drafted = VERDICT.sub(r'\1open"', UNKNOWN.sub("", judged))
        for caption, tree, end in (
            (f"Cycle {cycle.number}: the drafter proposes {len(cycle.nodes) - 1} tokens", drafted, cycle.number - 1),
            (f"Cycle {cycle.number}: the target accepts {len(cycle.path)}, and adds the bonus", judged, cycle.number),
        ):
            delay = -SECONDS * (2 * count - len(frames))
            frames.append(
                f'<g class="frame" style="animation-delay: {delay:.1f}s"><text class="caption" x="3" y="18">{caption}'
                f'</text><text class="text" x="3" y="48">{_text(found, cycle.number, end)}</text>'
                f'<g transform="translate(0 {HEAD})">{tree}</g></g>'
            )
    style = STYLE % {"all": SECONDS * len(frames), "share": 100 / len(frames)}
    return "".join(frames), width, height + HEAD, style


def _text(found: Trace, cycle: int, end: int) -> str:
    """The end of the text after a cycle, what the cycle itself gave in colour."""
    tokens = [token for token in found.pieces if token.cycle <= end]
    spans: Sequence[tuple[str, str]] = [
        (token.text.replace("\n", " "), token.source if token.cycle == cycle else "") for token in tokens
    ]
    left = sum(len(text) for text, _ in spans) - COLUMNS
    shown = []
    for text, source in spans:
        part = text[max(0, left) :] if left > 0 else text
        left -= len(text)
        if part:
            shown.append(f'<tspan class="{source}">{escape(part)}</tspan>' if source else escape(part))
    return "".join(shown)
