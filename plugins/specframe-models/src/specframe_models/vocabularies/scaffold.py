"""The drafter's own tree below a tree of target tokens, each of which may need several of the drafter's."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specframe.plugin import Expand, Frontier, TokenTree


class Scaffold:
    """Nodes of the drafter's tokens, read level by level, each node once."""

    def __init__(self, expand: Expand, root: Tensor) -> None:
        self._expand = expand
        self._root = root
        self._tokens: list[list[int]] = [[token] for token in root.tolist()]
        self._parents: list[list[int]] = [[-1] for _ in self._tokens]
        self._depths: list[list[int]] = [[0] for _ in self._tokens]
        self._real: list[list[bool]] = [[True] for _ in self._tokens]
        self._children: list[dict[tuple[int, int], int]] = [{} for _ in self._tokens]
        self._laws: list[dict[int, Tensor]] = [{} for _ in self._tokens]
        self._confidence: list[dict[int, Tensor]] = [{} for _ in self._tokens]

    def reach(self, row: int, node: int, tokens: Sequence[int]) -> int:
        """Returns the node to which these tokens lead from a row's node."""
        for token in tokens:
            known = self._children[row].get((node, token))
            if known is None:
                known = self._children[row][node, token] = len(self._tokens[row])
                self._append(row, token, node, self._depths[row][node] + 1, True)
            node = known
        return node

    def read(self, wanted: Sequence[Sequence[int]]) -> None:
        """Reads these nodes of each row, after their unread ancestors."""
        while True:
            missing = [self._missing(row, nodes) for row, nodes in enumerate(wanted)]
            width = max(map(len, missing))
            if not width:
                return
            device = self._root.device
            # A row with fewer nodes to read repeats its first one, or its root.
            padded = [[*nodes, *[(nodes or [0])[0]] * (width - len(nodes))] for nodes in missing]
            found = self._expand(Frontier(self._tree(), torch.tensor(padded, device=device))).whole
            laws = found.logits[:, :, 0].softmax(-1, dtype=torch.promote_types(found.logits.dtype, torch.float32))
            for row, nodes in enumerate(missing):
                self._laws[row].update({node: laws[row, place] for place, node in enumerate(nodes)})
                if found.confidence is not None:
                    sure = found.confidence[row, :, 0]
                    self._confidence[row].update({node: sure[place] for place, node in enumerate(nodes)})

    def law(self, row: int, node: int) -> Tensor:
        """Returns the drafter's law after a node that was read, at temperature 1: [Vd]."""
        return self._laws[row][node]

    def confidence(self, wanted: Sequence[Sequence[int]]) -> Tensor | None:
        """Returns the drafter's estimate that tokens after these nodes are accepted, [B, F]; None if it has none."""
        if not any(self._confidence):
            return None
        return torch.stack([torch.stack([self._confidence[row][n] for n in nodes]) for row, nodes in enumerate(wanted)])

    def _missing(self, row: int, nodes: Sequence[int]) -> list[int]:
        """Returns the uppermost unread nodes on the paths to these nodes, each once."""
        found = []
        for node in nodes:
            first = None
            while node not in self._laws[row]:
                first = node
                if (node := self._parents[row][node]) < 0:
                    break
            if first is not None and first not in found:
                found.append(first)
        return found

    def _append(self, row: int, token: int, parent: int, depth: int, real: bool) -> None:
        self._tokens[row].append(token)
        self._parents[row].append(parent)
        self._depths[row].append(depth)
        self._real[row].append(real)

    def _tree(self) -> TokenTree:
        width = max(map(len, self._tokens))
        for row, have in enumerate(self._tokens):
            while len(have) < width:
                self._append(row, 0, 0, 1, False)
        device = self._root.device
        tokens = torch.tensor(self._tokens, device=device)
        return TokenTree(
            tokens=tokens,
            parent=torch.tensor(self._parents, device=device),
            valid=torch.tensor(self._real, device=device),
            draw=torch.zeros_like(tokens),
            levels=max(map(max, self._depths)),
        )
