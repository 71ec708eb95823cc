"""A trace as one HTML page: nothing is fetched, and without JavaScript every cycle is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.resources import files

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from specframe import Trace
from specframe.plugin import TracedCycle, escape_controls, probability, visible
from specframe_report.trace_drawing import describe, draw_tree

POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
COLUMNS = ("node", "parent", "token", "id", "p", "q", "draw", "verdict")


def render(trace: Trace) -> str:
    """Renders the complete page: the template trace.html, which escapes everything except this package's markup."""
    environment = Environment(
        loader=PackageLoader("specframe_report", ""),
        autoescape=True,
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=StrictUndefined,
    )
    filters: dict[str, Callable[..., object]] = {
        "controls": escape_controls,
        "ends": _mark_ends,
        "percent": "{:.0%}".format,
        "about": lambda cycle: describe(cycle).partition(": ")[2],
        "tree": lambda cycle: Markup(draw_tree(cycle)),
        "rows": _rows,
    }
    environment.filters |= filters
    folder = files(__package__)
    style, script = (Markup(folder.joinpath(name).read_text(encoding="utf-8")) for name in ("trace.css", "trace.js"))
    return environment.get_template("trace.html").render(
        trace=trace,
        name=escape_controls(trace.recipe or "Decoding"),
        cards=_cards(trace),
        columns=COLUMNS,
        policy=Markup(POLICY),
        style=style,
        script=script,
    )


def _cards(trace: Trace) -> list[tuple[str, str, str]]:
    """Returns the summary: name, value and meaning of each entry."""
    drafted = sum(piece.source == "draft" for piece in trace.pieces)
    share = drafted / len(trace.pieces) if trace.pieces else 0.0
    efficiency = trace.accepted / trace.drafted if trace.drafted else 0.0
    does = "keeps the target's distribution" if trace.lossless else "or the target's reading changes the distribution"
    return [
        ("tau", f"{trace.tau:.2f}", "tokens a cycle, the bonus included"),
        ("cycles", str(len(trace.cycles)), "target forward passes after the prefill"),
        ("tokens", str(len(trace.pieces)), f"{drafted} of them drafted, {share:.0%}"),
        ("efficiency", f"{efficiency:.0%}", f"{trace.accepted} of {trace.drafted} drafted nodes accepted"),
        ("lossless", "yes" if trace.lossless else "no", f"the verifier {does}"),
    ]


def _mark_ends(text: str) -> str:
    """Marks line ends in the text, so that a token of nothing else is visible."""
    return escape_controls(text).replace("\n", "↵\n").replace("\t", "⇥\t")


def _rows(cycle: TracedCycle) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields the kind and cells of each row of a cycle's table: its nodes, then the bonus token."""
    for node in cycle.nodes:
        yield (
            node.verdict,
            (
                str(node.index),
                str(node.parent) if node.index else "",
                visible(node.text, node.token),
                str(node.token),
                _number(node.p),
                _number(node.q),
                (node.draw or "").replace("_", " "),
                node.verdict,
            ),
        )
    bonus = cycle.bonus
    end = str(cycle.path[-1] if cycle.path else 0)
    shown = visible(bonus.text, bonus.token)
    yield "bonus", ("", end, shown, str(bonus.token), _number(bonus.p), "", "", "bonus")


def _number(value: float | None) -> str:
    return "" if value is None else probability(value)
