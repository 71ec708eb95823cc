"""What a forward pass costs in each precision that a target can have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import median
from time import perf_counter
from typing import Any

import torch

from specframe.components.trees.shapes.optimal import Choice, fastest_shape
from specframe.inspect.profile import Profile
from specframe.kernel.types import Prompts, TokenTree, Verdict

PRECISIONS: Mapping[str, Mapping[str, str]] = {
    "float32": {"dtype": "float32", "quantize": "null"},
    "bfloat16": {"dtype": "bfloat16", "quantize": "null"},
    "int8": {"dtype": "bfloat16", "quantize": "int8"},
    "int4": {"dtype": "bfloat16", "quantize": "int4"},
}
"""The target section's values for each, as overrides say them."""
CONTEXT = 128
REPEATS = 9


def time_forwards(target: Any, sizes: Iterable[int]) -> dict[int, float]:
    """The seconds of a forward pass over so many nodes, behind a text of 128 tokens: medians of 9."""
    seconds = {}
    with torch.inference_mode():
        target.open(1, CONTEXT + 1 + max(sizes))
        text = torch.arange(1, CONTEXT + 1, device=target.device)[None] % target.vocab_size
        tree, _ = target.admit(Prompts(text, torch.tensor([CONTEXT], device=target.device)))
        nothing = torch.zeros(1, dtype=torch.int64, device=target.device)
        target.commit(tree, Verdict(tree.tokens[:, :0], nothing, tree.tokens[:, 0]))
        for size in sorted(sizes):
            chain = _chain(tree.tokens[:, 0], size)
            times = []
            for _ in range(REPEATS + 1):
                start = perf_counter()
                target.score(chain).logits.argmax(-1).tolist()
                times.append(perf_counter() - start)
            seconds[size] = median(times[1:])
    return seconds


def _chain(root: torch.Tensor, nodes: int) -> TokenTree:
    tokens = root[:, None].expand(-1, nodes).contiguous()
    parent = torch.arange(-1, nodes - 1, device=root.device).expand_as(tokens)
    return TokenTree(tokens, parent, torch.ones_like(tokens).bool(), torch.zeros_like(tokens), levels=nodes - 1)


def fastest_tree(found: Profile, forwards: Mapping[int, float], depth: int) -> Choice | None:
    """The tree that such forward passes make fastest, with the acceptance that was measured; None: plain decoding.

    What a cycle costs besides the forward passes is left out.
    """
    sizes = {size: seconds for size, seconds in forwards.items() if size > 1}
    choice = fastest_shape(
        found.ranks.table,
        draft_seconds=found.draft_seconds,
        cycle_seconds=sizes,
        depth=depth,
        block=found.block,
        off_path=found.ranks.off_path.table,
    )
    return choice if choice.tau / choice.seconds > 1 / forwards[1] else None
