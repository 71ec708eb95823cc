"""Display of a profile: acceptance by level and rank, the best trees, and the accuracy of their forecasts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specframe.components.trees.optimal import Choice
    from specframe.inspect.forecast import Measured
    from specframe.inspect.profile import Profile

NAME, SHARE, VISITS = 10, 7, 10
"""Column widths of the table: a level's name, a rank's share, and the level's number of visits."""
WIDE = 62
"""Width of the trees' table with all its words."""
WORDS = "nodes  levels    tau   ms a cycle  tokens/s   (forecasts)"


def show_table(found: Profile, columns: int | None = None) -> list[str]:
    """Returns acceptance by level and rank as lines of text, and the calibration.

    Nodes below a choice other than the first are listed separately. Ranks that do not fit into the width follow below.
    """
    ranks = max(map(len, found.ranks.top.table), default=0)
    together = ranks if columns is None else max(1, (columns - NAME - VISITS) // SHARE)
    lines: list[str] = []
    for first in range(0, max(ranks, 1), max(together, 1)):
        lines += [*([""] if lines else []), *_ranks(found, first, min(first + together, ranks))]
    powers = "".join(f"{power:7.2f}" for power in found.calibration.powers)
    about = f"calibration{powers}  (powers of the drafter's distribution, by level)"
    return [*lines, "", about]


def _ranks(found: Profile, first: int, last: int) -> Iterator[str]:
    """Yields the table of some ranks."""
    yield "accepted  " + "".join(f"{f'#{rank + 1}':>{SHARE}}" for rank in range(first, last)) + "    visits"
    top, off_path = found.ranks.top, found.ranks.off_path
    for level in range(max(len(top.table), len(off_path.table))):
        for name, shares in ((f"level {level + 1}", top), ("  off-path", off_path)):
            row: Sequence[float] = shares.table[level] if level < len(shares.table) else []
            if row[first:last]:
                figures = "".join(f"{share:{SHARE}.3f}" for share in row[first:last])
                yield f"{name:{NAME}}{figures:{SHARE * (last - first)}}{max(shares.visits[level]):{VISITS}}"


def show_trees(found: Profile, depth: int, columns: int | None = None) -> list[str]:
    """Returns the best tree of every timed size as lines of text, the fastest marked."""
    rows = []  # nodes, levels, tau, seconds
    for size, seconds in sorted(found.cycle_seconds.items()):
        if size == 1:  # plain decoding
            rows.append((1, 0, 1.0, seconds))
            continue
        choice = found.fastest(depth, {size: seconds})
        rows.append((size, choice.shape.depth, choice.tau, choice.seconds))
    best = max(tau / seconds for *_, tau, seconds in rows)
    narrow = columns is not None and columns < WIDE
    head = "nodes levels   tau      ms     t/s" if narrow else WORDS
    sizes, fastest = ((5, 7, 6, 8, 8), " best") if narrow else ((5, 8, 7, 13, 10), "  <- fastest")
    lines = [head]
    for size, levels, tau, seconds in rows:
        mark = fastest if tau / seconds == best else ""
        cells = (f"{size}", f"{levels}", f"{tau:.2f}", f"{1000 * seconds:.2f}", f"{tau / seconds:.1f}")
        lines.append("".join(cell.rjust(width) for cell, width in zip(cells, sizes, strict=True)) + mark)
    return lines


def show_check(choice: Choice, fastest: Measured, own: Measured) -> list[str]:
    """Returns forecast and measured tau as lines of text, for the fastest tree and the recipe's own."""

    def line(name: str, forecast: str, found: Measured) -> str:
        return f"{name:26}{forecast:>9}{found.tau:10.2f} +-{found.error:5.2f}"

    lines = [
        f"{'tau':26} forecast  measured  (+- standard error over prompts)",
        line(f"fastest, {choice.shape.nodes} nodes", f"{choice.tau:.2f}", fastest),
    ]
    if own.expected is None:
        return [*lines, line("the recipe's tree", "", own)]
    shares = [" ".join(f"{share:.2f}" for share in row) for row in (own.expected, own.alpha)]
    return [
        *lines,
        line("the recipe's tree", f"{1 + sum(own.expected):.2f}", own),
        f"  alpha {shares[1]} by depth, by the drafter's calibrated probabilities {shares[0]}",
    ]
