"""Reading state of a drafting model with recurrent layers, whose states no draft may enter."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.components.drafters.model_session import ModelReading
from specframe.components.targets.hf import HFTarget
from specframe.kernel.types import TokenTree
from specframe.native.sight import Tree
from specframe.neural.forward import Pass
from specframe.neural.recurrent import HybridCache


def reading_of(reader: HFTarget) -> type[ModelReading]:
    """The kind of reading that the layers of a drafting model need."""
    return ModelReading if reader.parts.memory.rewindable else RecurrentReading


class RecurrentReading(ModelReading):
    """The rows of a session, as a drafting model with recurrent layers reads them.

    Newly committed tokens are a tree of one branch, all of which is accepted: so rows may have read unlike numbers of
    tokens. The nodes of a draft are read with all their ancestors and leave nothing, so that no state is kept for a
    node; a level's forward pass grows by the levels above it.
    """

    memory = HybridCache
    rooted = False

    _root = torch.zeros(0, 1, 1)
    """The logits [B, 1, V] behind the rows' committed tokens; rows that joined since have none yet."""

    def read_committed(self) -> Tensor:
        """Reads the tokens committed since the last draft: the logits [B, 1, V] behind the root."""
        text, rows = self.text, self.rows
        fresh = [have - known for known, have in zip(rows.counts, text.lengths, strict=True)]
        self._root = self._roots(len(fresh))
        if width := max(fresh):
            device = text.count.device
            steps = torch.arange(width, device=device)
            slots = rows.count[:, None] + steps  # [B, T]
            count = text.count - rows.count  # [B]
            branch = (steps <= steps[:, None]).expand(len(fresh), -1, -1)  # [B, T, T]
            tokens = text.tokens.gather(1, slots.clamp(max=text.tokens.shape[1] - 1))
            keep = (count[:, None] - 1).clamp(min=0)
            found = self.run(0, Pass(tokens, slots, Tree(branch, rows.count, rows.base, rows.even), keep=keep))
            assert found is not None
            self._root = found if min(fresh) else torch.where((count > 0)[:, None, None], found, self._root)
            rows.move(steps.expand(len(fresh), -1), [range(new) for new in fresh])
            rows.fill(text.count, text.lengths)
        return self._root

    def read_nodes(self, tree: TokenTree, nodes: Tensor) -> Tensor:
        """The logits after nodes [B, F]: [B, F, V]."""
        drafted = nodes > 0
        path = tree.ancestors.gather(1, nodes[..., None].expand(-1, -1, tree.tokens.shape[1]))  # [B, F, N]
        needed = (path & drafted[..., None]).any(1)  # [B, N]
        needed[:, 0] = False  # the root is read
        width = max(1, int(needed.sum(1).max()))
        chosen = needed.int().argsort(dim=1, descending=True, stable=True)[:, :width]  # [B, W], in order
        among = tree.ancestors.gather(1, chosen[..., None].expand(-1, -1, tree.tokens.shape[1]))
        sees = among.gather(2, chosen[:, None].expand(-1, width, -1))  # [B, W, W]
        sees = sees & sees.new_ones(width, width).tril()  # what a row does not need may stand in any order
        positions = (self.text.count[:, None] - 1 + tree.depth).gather(1, chosen)
        keep = (needed.cumsum(1) - 1).gather(1, nodes).clamp(min=0)
        sight = Tree(sees, self.rows.count, self.rows.base, self.rows.even)
        found = self.run(0, Pass(tree.tokens.gather(1, chosen), positions, sight, keep=keep))
        assert found is not None
        return torch.where(drafted[..., None], found, self._root)

    def rewind(self, count: Tensor) -> None:
        """Forgets all but the first `count` [B] committed tokens of each row, at least 1: a commit must follow.

        No token can be taken out of a state, so a row that has read more reads its text again.
        """
        rows = self.rows
        again = rows.count > count
        super().rewind(count)
        assert isinstance(rows.memory, HybridCache)
        rows.memory.states.forget(again)
        known = rows.count.masked_fill(again, 0)
        rows.fill(known, known.tolist())

    def keep(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self._root = self._roots(len(self.rows.counts))[rows]
        super().keep(rows)

    def _roots(self, count: int) -> Tensor:
        """The logits of so many rows, zeros for those that joined since."""
        return pad(self._root, (0, 0, 0, 0, 0, count - len(self._root)))
