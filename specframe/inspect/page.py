"""A trace as one HTML page: nothing is fetched, and without JavaScript every cycle is listed."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from importlib.resources import files
from itertools import groupby

from specframe.inspect.detokenise import escape_controls, probability, visible
from specframe.inspect.drawing import describe, draw_tree
from specframe.inspect.recorder import Trace, TracedCycle, TracedToken

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
COLUMNS = ("node", "parent", "token", "id", "p", "q", "draw", "verdict")


def render(trace: Trace) -> str:
    """The page, whole."""
    folder = files(__package__)
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    name = escape(escape_controls(trace.recipe or "Decoding"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{name}: cycle by cycle</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{name}</h1>
<p class="parts">{_parts(trace)}</p>
<p class="prompt"><span class="label">Prompt</span> {escape(escape_controls(trace.prompt))}</p>
</header>
<main>
{_figures(trace)}
{_text(trace)}
{_cycles(trace)}
</main>
<script>
{script}</script>
</body>
</html>
"""


def _parts(trace: Trace) -> str:
    parts = [f"{kind} <b>{escape(escape_controls(name))}</b>" for kind, name in trace.parts.items()]
    return " · ".join([*parts, f"temperature <b>{trace.temperature:g}</b>"])


def _figures(trace: Trace) -> str:
    """The summary: what a cycle gave, and how deep paths went."""
    drafted = sum(piece.source == "draft" for piece in trace.pieces)
    share = drafted / len(trace.pieces) if trace.pieces else 0.0
    efficiency = trace.accepted / trace.drafted if trace.drafted else 0.0
    cards = [
        ("tau", f"{trace.tau:.2f}", "tokens a cycle, the bonus included"),
        ("cycles", str(len(trace.cycles)), "target forward passes after the prefill"),
        ("tokens", str(len(trace.pieces)), f"{drafted} of them drafted, {share:.0%}"),
        ("efficiency", f"{efficiency:.0%}", f"{trace.accepted} of {trace.drafted} drafted nodes accepted"),
        ("lossless", "yes" if trace.lossless else "no", _promise(trace)),
    ]
    listed = "".join(
        f"<div><dt>{name}</dt><dd>{value}<small>{about}</small></dd></div>" for name, value, about in cards
    )
    depths = "".join(
        f'<li><span>{depth}</span><span class="bar"><span style="width:{100 * share:.1f}%"></span></span>'
        f"<span>{share:.0%} <small>{count} of {len(trace.cycles)}</small></span></li>"
        for depth, (share, count) in enumerate(zip(trace.alpha, trace.reached, strict=True), 1)
    )
    chart = f'<h2>Accepted by depth</h2>\n<ol class="depths">{depths}</ol>' if depths else ""
    return f'<section aria-label="Figures">\n<dl class="cards">{listed}</dl>\n{chart}\n</section>'


def _promise(trace: Trace) -> str:
    return (
        "the verifier keeps the target's distribution"
        if trace.lossless
        else "the verifier changes the target's distribution"
    )


def _text(trace: Trace) -> str:
    """The text in the colours of where its tokens came from; each cycle's part leads to its tree."""
    parts = "".join(_cycle_text(number, list(pieces)) for number, pieces in groupby(trace.pieces, lambda p: p.cycle))
    return f"""<section aria-labelledby="text">
<h2 id="text">Text</h2>
<p class="legend"><span class="draft">drafted, accepted</span> <span class="bonus">the target's own: the bonus</span>
<span class="hint">A part between two bars is one cycle, and leads to its tree.</span></p>
<p class="text" dir="auto">{parts}</p>
</section>"""


def _cycle_text(number: int, pieces: list[TracedToken]) -> str:
    tokens = "".join(f'<span class="{piece.source}">{escape(_lines(piece.text))}</span>' for piece in pieces)
    if not number:
        return f'<span class="part" title="given by the prefill">{tokens}</span>'
    return f'<a class="part" href="#cycle-{number}" title="cycle {number}">{tokens}</a>'


def _lines(text: str) -> str:
    """The text with the ends of its lines marked, so that a token of nothing else is seen."""
    return escape_controls(text).replace("\n", "↵\n").replace("\t", "⇥\t")


def _cycles(trace: Trace) -> str:
    note = (
        "The recipe decodes at temperature 0, where all distributions are one-hot: p and q are read at temperature 1."
        if trace.temperature != trace.read_at
        else "p and q are the distributions of the recipe's own sampling."
    )
    articles = "\n".join(_article(cycle) for cycle in trace.cycles)
    empty = "" if trace.cycles else "<p>The text ended with the prefill's token: there was no cycle.</p>"
    return f"""<section aria-labelledby="trees">
<h2 id="trees">Trees</h2>
<p class="legend"><span class="key root">root</span> <span class="key accepted">accepted</span>
<span class="key rejected">rejected</span> <span class="key bonus">bonus</span>
<span class="key"><i class="p"></i> p, the target's probability</span>
<span class="key"><i class="q"></i> q, the drafter's, where it has one</span></p>
<p class="hint">{note}</p>
<div class="controls" role="group" aria-label="Choose a cycle" hidden>
<button type="button" id="previous" aria-label="Previous cycle">&lsaquo;</button>
<input type="range" id="slider" min="1" max="{max(1, len(trace.cycles))}" value="1" aria-label="Cycle">
<button type="button" id="next" aria-label="Next cycle">&rsaquo;</button>
<output id="shown" for="slider"></output>
<label><input type="checkbox" id="all"> all</label>
</div>
{empty}{articles}
</section>"""


def _article(cycle: TracedCycle) -> str:
    about = describe(cycle).partition(": ")[2]
    ended = f" The text ended here, {cycle.cut} of these tokens cut off." if cycle.cut else ""
    return f"""<article class="cycle" id="cycle-{cycle.number}">
<h3>Cycle {cycle.number} <small>{about}.{ended}</small></h3>
<div class="wide" tabindex="0" role="region" aria-label="Tree of cycle {cycle.number}">{draw_tree(cycle)}</div>
<details><summary>Nodes as a table</summary>
<div class="wide" tabindex="0" role="region" aria-label="Nodes of cycle {cycle.number}">
<table>
<thead><tr>{"".join(f'<th scope="col">{name}</th>' for name in COLUMNS)}</tr></thead>
<tbody>{"".join(_rows(cycle))}</tbody>
</table></div></details>
</article>"""


def _rows(cycle: TracedCycle) -> Iterator[str]:
    for node in cycle.nodes:
        yield _row(
            node.verdict,
            str(node.index),
            str(node.parent) if node.index else "",
            visible(node.text, node.token),
            str(node.token),
            _number(node.p),
            _number(node.q),
            (node.draw or "").replace("_", " "),
            node.verdict,
        )
    bonus = cycle.bonus
    shown = visible(bonus.text, bonus.token)
    end = str(cycle.path[-1] if cycle.path else 0)
    yield _row("bonus", "", end, shown, str(bonus.token), _number(bonus.p), "", "", "bonus")


def _row(kind: str, *cells: str) -> str:
    return f'<tr class="{kind}">' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"


def _number(value: float | None) -> str:
    return "" if value is None else probability(value)
