"""Display of a trace in a terminal."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from rich.console import Group
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from specframe.cli.render.figures import ALPHA_IS, TAU_IS
from specframe.files.text import counted, open_console, printable
from specframe.inspect.detokenise import probability, visible
from specframe.inspect.recorder import Bonus, Trace, TracedCycle, TracedNode

STYLES = {"root": "bold", "accepted": "bold blue", "rejected": "dim", "draft": "blue", "bonus": "bold yellow"}
MARKS = {"root": "", "accepted": "✓ ", "rejected": "  ", "bonus": "+ "}


def print_trace(trace: Trace, *, cycles: int, page: Path | None) -> None:
    """Prints the first cycles' trees, the text coloured by source, and the measurements."""
    console = open_console()
    console.print(Text(f"\n> {printable(trace.prompt)}\n"))
    for cycle in trace.cycles[:cycles]:
        console.print(draw(cycle))
        console.print()
    left = len(trace.cycles) - cycles
    if cycles and left > 0:
        more = f"{left} more: --cycles {len(trace.cycles)} prints them, --html FILE draws them\n"
        console.print(Text(more, style="dim"), soft_wrap=True)
    console.print(colour(trace, brackets=console.color_system is None), soft_wrap=True)
    console.print()
    console.print(_figures(trace))
    if page is not None:
        console.print(Text(f"\nwritten to {printable(str(page))}", style="dim"), soft_wrap=True)


def draw(cycle: TracedCycle) -> Group:
    """Draws the draft as a tree, with the accepted path and the bonus highlighted."""
    drafted = len(cycle.nodes) - 1
    heading = Text(f"cycle {cycle.number}", style="bold")
    heading.append(
        f"  {len(cycle.path)} of {drafted} accepted" if drafted else "  nothing drafted", style="not bold dim"
    )
    if cycle.cut:
        heading.append(f", {cycle.cut} cut off: the text ended here", style="not bold dim")
    branches: dict[int, Tree] = {}
    for node in cycle.nodes:
        label = _label(node.verdict, node)
        parent = branches.get(node.parent)
        branches[node.index] = Tree(label, guide_style="dim") if parent is None else parent.add(label)
    end = cycle.path[-1] if cycle.path else 0
    branches[end].add(_label("bonus", cycle.bonus))
    return Group(heading, branches[0])


def _label(kind: str, node: TracedNode | Bonus) -> Text:
    label = Text(MARKS[kind] + visible(node.text, node.token), style=STYLES[kind])
    known = [("p", node.p), ("q", node.q if isinstance(node, TracedNode) else None)]
    numbers = "".join(f"  {name} {probability(value)}" for name, value in known if value is not None)
    return label.append(numbers, style="not bold dim" if kind == "rejected" else "not bold")


def colour(trace: Trace, *, brackets: bool) -> Text:
    """Colours drafted tokens in the text; without colours, they are between brackets."""
    text = Text()
    for (_, source), pieces in groupby(trace.pieces, lambda piece: (piece.cycle, piece.source)):
        run = printable("".join(piece.text for piece in pieces))
        text.append(f"[{run}]" if brackets and source == "draft" else run, style=STYLES[source])
    return text


def _figures(trace: Trace) -> Table:
    drafted = sum(piece.source == "draft" for piece in trace.pieces)
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    tokens = Text(f"{len(trace.pieces)}, of them ")
    tokens.append(f"{drafted} drafted", style=STYLES["draft"]).append(" and ", style="not bold")
    tokens.append(f"{len(trace.pieces) - drafted} the target's own", style=STYLES["bonus"])
    depths = " ".join(f"{share:.2f}" for share in trace.alpha)
    table.add_row("tau", f"{trace.tau:.2f} {TAU_IS} ({counted(len(trace.cycles), 'cycle')})")
    table.add_row("alpha", f"{depths}  ({ALPHA_IS})")
    table.add_row("tokens", tokens)
    if trace.read_at != trace.temperature:
        table.add_row("p, q", "read at temperature 1: at 0, where this recipe decodes, every distribution is one-hot")
    return table
