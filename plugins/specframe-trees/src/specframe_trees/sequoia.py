"""Sequoia's tree: the best fixed shape for measured acceptance."""

from __future__ import annotations

import json
from copy import copy
from pathlib import Path

from torch import Tensor

from specframe import InputError
from specframe.plugin import Context, Draw, Expand, TokenTree, fill, optimal_shape


class Sequoia:
    """The tree of `nodes` nodes with the most accepted tokens under a measured acceptance (Chen et al. 2024).

    The shape is computed once by the paper's dynamic program, from a table of the probabilities that a node's first,
    second, third ... child is the accepted one. The table has a row per level; the last row also serves all deeper
    levels. With a single row it is the paper's table, which depends on ranks alone. A path names a JSON file whose
    `acceptance` is such a table, as `specframe profile` writes it; its `off_path`, if present, serves the nodes below a
    choice other than the first.

    Options:
        acceptance: the table, or the file that contains it
        nodes: maximum number of drafted tokens, without the root
        depth: maximum number of drafted levels
        draw: without_replacement (the paper's), iid or top; the one with which the table was measured
    """

    def __init__(
        self,
        *,
        acceptance: list[list[float]] | Path,
        nodes: int = 16,
        depth: int = 4,
        draw: Draw = Draw.WITHOUT_REPLACEMENT,
    ) -> None:
        table, off_path = read_acceptance(acceptance) if isinstance(acceptance, Path) else (acceptance, [])
        self.shape = optimal_shape(table, nodes, depth, off_path)
        self.draw = draw
        self.promise = self.shape.promise(draw)

    def smaller(self) -> Sequoia:
        """Returns a copy of this policy with at most two levels, two children per node and four drafted nodes."""
        small = copy(self)
        small.shape = self.shape.smaller()
        small.promise = small.shape.promise(self.draw)
        return small

    def grow(self, expand: Expand, root: Tensor, context: Context) -> TokenTree:
        """Returns the tree below root [B]: always `nodes` nodes."""
        return fill(self.shape, self.draw, expand, root, context)


def read_acceptance(path: Path) -> tuple[list[list[float]], list[list[float]]]:
    """Reads the acceptance tables of a JSON file, the second empty if missing. Raises InputError without the first."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        tables = found["acceptance"], found.get("off_path", [])
        table, off_path = ([[float(share) for share in row] for row in table] for table in tables)
    except OSError as error:
        raise InputError(f"cannot read the acceptance table {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path} holds no acceptance table: expected an object with `acceptance`, a list of lists"
        ) from error
    return table, off_path
