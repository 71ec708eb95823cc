"""Committed tokens on the host, for drafters that remember them there."""

from __future__ import annotations

from specframe.kernel.types import Committed


def gained(committed: Committed) -> list[list[int]]:
    """The tokens that each row of a commit gained; of a new row its prompt and the first token after it."""
    counts = committed.count.tolist()
    rows = [row[:count] for row, count in zip(committed.tokens.tolist(), counts, strict=True)]
    if committed.prompt is not None:  # its tokens are the prompt's from the second on, and one more
        firsts = committed.prompt.tokens[:, 0].tolist()
        rows = [[first, *row] for first, row in zip(firsts, rows, strict=True)]
    return rows
