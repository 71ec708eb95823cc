"""Drafts without the nodes that a grammar forbids, which the target need not score."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from specframe.decoding.requests import Entry
from specframe.kernel.types import Draw, TokenTree


@runtime_checkable
class Guide(Protocol):
    """A logits processor that knows, without logits, some of the tokens that it bans."""

    def allows(self, text: Sequence[int], tokens: Sequence[int], parents: Sequence[int]) -> list[bool]:
        """Whether each node of a tree behind a text may be reached; the root, node 0, is the text's last token."""
        ...


def pruned(draft: TokenTree, entries: Sequence[Entry]) -> TokenTree:
    """The draft without nodes that the guides of its rows forbid, and all below them.

    The target's law has no mass at such a node, so that no path leads through it. Nodes drawn at random stay: which of
    them are forbidden is known only after they were drawn, and their law has no mass there, either.
    """
    guides = [_guides(entry) for entry in entries]
    if draft.levels == 0 or not any(guides):
        return draft
    parts = zip(*(part.tolist() for part in (draft.tokens, draft.parent, draft.valid, draft.draw)), strict=True)
    kept = list[list[int]]()
    levels = 0
    for entry, own, (tokens, parents, valid, draws) in zip(entries, guides, parts, strict=True):
        allowed = [valid, *(guide.allows(entry.text, tokens, parents) for guide in own)]
        depths = {0: 0}
        for node, parent in enumerate(parents[1:], 1):
            if parent in depths and valid[node] and (draws[node] != Draw.TOP or all(each[node] for each in allowed)):
                depths[node] = depths[parent] + 1
        levels = max(levels, *depths.values())
        kept.append([*depths])
    if all(len(nodes) == sum(valid) for nodes, valid in zip(kept, draft.valid.tolist(), strict=True)):
        return draft
    return _of_nodes(draft, kept, levels)


def _guides(entry: Entry) -> list[Guide]:
    processors: tuple[object, ...] = entry.request.sampling.processors
    return [processor for processor in processors if isinstance(processor, Guide)]


def _of_nodes(draft: TokenTree, kept: Sequence[Sequence[int]], levels: int) -> TokenTree:
    """The draft of these nodes of each row, which are closed upwards; rows with fewer end in invalid nodes."""
    width = max(map(len, kept))
    places = draft.parent.new_tensor([[*nodes, *[0] * (width - len(nodes))] for nodes in kept])  # [B, N]
    moved = [_moved(nodes, parents) for nodes, parents in zip(kept, draft.parent.tolist(), strict=True)]
    real = places.new_tensor([[*[1] * len(nodes), *[0] * (width - len(nodes))] for nodes in kept]).bool()
    return TokenTree(
        tokens=draft.tokens.gather(1, places) * real,
        parent=places.new_tensor([[*parents, *[0] * (width - len(parents))] for parents in moved]),
        valid=real,
        draw=draft.draw.gather(1, places) * real,
        levels=levels,
        q=draft.q,
        q_row=None if draft.q_row is None else draft.q_row.gather(1, places) * real,
    )


def _moved(nodes: Sequence[int], parents: Sequence[int]) -> list[int]:
    """The parents of these nodes, as places among them."""
    places = {node: place for place, node in enumerate(nodes)}
    return [-1, *(places[parents[node]] for node in nodes[1:])]
