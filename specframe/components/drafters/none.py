"""The empty drafter: plain autoregressive decoding in the speculative loop."""

from __future__ import annotations

from torch import Tensor

from specframe.kernel.capabilities import Promise
from specframe.kernel.interfaces import Target, TreePolicy
from specframe.kernel.types import Committed, Context, Draw, TokenTree


class NoDrafter:
    """Proposes only the root, so that each cycle commits one token: the baseline for speedups."""

    taps: frozenset[str] = frozenset()
    promise = Promise(frozenset({Draw.TOP}), nodes=1, depth=0)

    def bind(self, target: Target) -> None:
        """Needs nothing of the target."""

    def propose(self, root: Tensor, tree: TreePolicy | None, context: Context) -> TokenTree:
        """The root-only tree of root [B]."""
        return TokenTree.root_only(root)

    def open(self, slots: int, room: int) -> None:
        """Does nothing: there is no state."""

    def commit(self, committed: Committed) -> None:
        """Remembers nothing."""

    def keep(self, rows: Tensor) -> None:
        """Does nothing: there are no rows to drop."""
