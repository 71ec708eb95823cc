"""A cycle's tree as inline SVG, laid out in levels from left to right; the page's style sheet colours it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from unicodedata import east_asian_width

from specframe.plugin import TracedCycle, TracedNode, probability, visible


@dataclass(frozen=True)
class Spot:
    """A node's position: its level, and its row in units of a node's height."""

    level: int
    row: float


def lay_out(parents: Sequence[int]) -> list[Spot]:
    """Returns the position of every node, given each node's parent; node 0 is the root, parents come first.

    A parent is centred on its first and last child. Siblings are in order, neighbours of a level at least one row
    apart, and subtrees as close as that allows; the topmost node is in row 0. O(N * depth).

    Source: Reingold and Tilford (1981), the aesthetics and the contours; trees here are too small for threads.
    """
    count = len(parents)
    children: list[list[int]] = [[] for _ in range(count)]
    level = [0] * count
    for node in range(1, count):
        children[parents[node]].append(node)
        level[node] = level[parents[node]] + 1
    shift = [0.0] * count  # of a subtree relative to its parent
    tops: list[list[float]] = [[] for _ in range(count)]  # by level below the node, first row of its subtree
    bottoms: list[list[float]] = [[] for _ in range(count)]  # and last row
    for node in reversed(range(count)):
        top, bottom = list[float](), list[float]()
        places = []
        for child in children[node]:
            place = max((down + 1 - up for up, down in zip(tops[child], bottom, strict=False)), default=0.0)
            places.append(place)
            top += [row + place for row in tops[child][len(top) :]]
            bottom[: len(bottoms[child])] = [row + place for row in bottoms[child]]
        middle = (places[0] + places[-1]) / 2 if places else 0.0
        for child, place in zip(children[node], places, strict=True):
            shift[child] = place - middle
        tops[node] = [0.0, *(row - middle for row in top)]
        bottoms[node] = [0.0, *(row - middle for row in bottom)]
    rows = [-min(tops[0])] * count
    for node in range(1, count):
        rows[node] = rows[parents[node]] + shift[node]
    return [Spot(level[node], rows[node]) for node in range(count)]


HEIGHT = 44  # of a box, in CSS pixels, like all of these
PITCH = 54  # from row to row
GAP = 40  # between columns, for the edges
PAD = 9  # inside a box
NARROWEST = 104  # width of a box for both numbers
EM = 8.2  # a character of the token's text
LONGEST = 14  # maximum number of token characters shown; all are in the title
MARGIN = 3
SPACES = {visible(space, 0) for space in " \n\t\r"}  # the marks of whitespace


@dataclass(frozen=True)
class Box:
    """Text and numbers drawn in a node's box."""

    kind: str
    """The verdict, or bonus, which is its class in the style sheet."""
    text: str
    title: str
    p: float | None
    q: float | None


def draw_tree(cycle: TracedCycle) -> str:
    """Draws the draft and the bonus as an `<svg>` element of its natural size."""
    boxes, parents = _boxes(cycle)
    spots = lay_out(parents)
    lefts, widths = _columns(boxes, spots)
    width = lefts[-1] + widths[-1] + MARGIN
    height = max(spot.row for spot in spots) * PITCH + HEIGHT + 2 * MARGIN
    rejected_first = sorted(range(1, len(boxes)), key=lambda i: boxes[i].kind != "rejected")
    edges = (_edge(boxes[i].kind, spots[parents[i]], spots[i], lefts, widths) for i in rejected_first)
    nodes = (_node(box, spot, lefts, widths) for box, spot in zip(boxes, spots, strict=True))
    return (
        f'<svg role="img" aria-label="{escape(describe(cycle))}" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}">'
        f"{''.join(edges)}{''.join(nodes)}</svg>"
    )


def describe(cycle: TracedCycle) -> str:
    """Describes the cycle in one sentence."""
    drafted, accepted = len(cycle.nodes) - 1, len(cycle.path)
    if not drafted:
        return f"Cycle {cycle.number}: nothing was drafted, the target gave one token"
    return f"Cycle {cycle.number}: {accepted} of {drafted} drafted tokens accepted, and the bonus"


def _boxes(cycle: TracedCycle) -> tuple[list[Box], list[int]]:
    """Returns the boxes to draw, the bonus last, and the index of each one's parent."""
    place = {node.index: number for number, node in enumerate(cycle.nodes)}
    boxes = [Box(n.verdict, visible(n.text, n.token), _title(n), n.p, n.q) for n in cycle.nodes]
    parents = [place.get(node.parent, -1) for node in cycle.nodes]
    end = place[cycle.path[-1]] if cycle.path else 0
    bonus = cycle.bonus
    shown = visible(bonus.text, bonus.token)
    title = f"{shown}\ntoken {bonus.token}, the bonus: the target's own\np {bonus.p:.4g}"
    return [*boxes, Box("bonus", shown, title, bonus.p, None)], [*parents, end]


def _title(node: TracedNode) -> str:
    lines = [visible(node.text, node.token), f"token {node.token}, node {node.index}, {node.verdict}"]
    if node.p is not None:
        lines.append(f"p {node.p:.4g}" + (f", q {node.q:.4g}" if node.q is not None else ""))
    if node.draw is not None:
        lines.append(f"drawn: {node.draw.replace('_', ' ')}")
    return "\n".join(lines)


def _columns(boxes: list[Box], spots: list[Spot]) -> tuple[list[float], list[float]]:
    """Returns the left edge and the width of each level's boxes."""
    widths = [0.0] * (1 + max(spot.level for spot in spots))
    for box, spot in zip(boxes, spots, strict=True):
        least = 2 * PAD if box.p is None else NARROWEST if box.q is not None else NARROWEST / 2
        widths[spot.level] = max(widths[spot.level], least, columns(shorten(box.text)) * EM + 2 * PAD)
    lefts = [MARGIN + sum(widths[:level]) + GAP * level for level in range(len(widths))]
    return lefts, widths


def _edge(kind: str, parent: Spot, spot: Spot, lefts: list[float], widths: list[float]) -> str:
    x0, y0 = lefts[parent.level] + widths[parent.level], parent.row * PITCH + HEIGHT / 2 + MARGIN
    x1, y1 = lefts[spot.level], spot.row * PITCH + HEIGHT / 2 + MARGIN
    bend = (x1 - x0) / 2
    curve = f"M{x0:.1f} {y0:.1f}C{x0 + bend:.1f} {y0:.1f} {x1 - bend:.1f} {y1:.1f} {x1:.1f} {y1:.1f}"
    return f'<path class="edge {kind}" d="{curve}"/>'


def _node(box: Box, spot: Spot, lefts: list[float], widths: list[float]) -> str:
    x, y, width = lefts[spot.level], spot.row * PITCH + MARGIN, widths[spot.level]
    middle = HEIGHT / 2 + 5 if box.p is None else 17
    return (
        f'<g class="node {box.kind}" transform="translate({x:.1f} {y:.1f})"><title>{escape(box.title)}</title>'
        f'<rect class="box" width="{width:.1f}" height="{HEIGHT}" rx="7"/>'
        f'<text class="token" x="{PAD}" y="{middle:.0f}">{_marked(shorten(box.text))}</text>'
        f"{''.join(_numbers(box, width - 2 * PAD))}</g>"
    )


def _numbers(box: Box, width: float) -> Iterator[str]:
    """Yields the probabilities as text, over bars of proportional length."""
    known = [(name, value) for name, value in (("p", box.p), ("q", box.q)) if value is not None]
    share = width / max(1, len(known))
    for place, (name, value) in enumerate(known):
        x = PAD + place * share
        length = share - (6 if len(known) > 1 else 0)
        yield f'<text class="number" x="{x:.1f}" y="31">{name} {escape(probability(value))}</text>'
        yield f'<rect class="track" x="{x:.1f}" y="36" width="{length:.1f}" height="3" rx="1.5"/>'
        yield f'<rect class="{name}" x="{x:.1f}" y="36" width="{length * value:.1f}" height="3" rx="1.5"/>'


def _marked(text: str) -> str:
    """Escapes the text, and makes its whitespace marks paler than letters."""
    return "".join(f'<tspan class="space">{c}</tspan>' if c in SPACES else escape(c) for c in text)


def shorten(text: str) -> str:
    """Shortens the text to at most `LONGEST` columns."""
    if columns(text) <= LONGEST:
        return text
    while columns(text) >= LONGEST:
        text = text[:-1]
    return text + "…"


def columns(text: str) -> int:
    """Returns the width of a text, in characters of fixed width."""
    return sum(2 if east_asian_width(c) in "WF" else 1 for c in text)
