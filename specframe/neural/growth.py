"""A drafter's beam searches as one native call each, if native code implements all modules of its network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from specframe.native.draft import DraftParts, NativeDraft, slots_for
from specframe.native.linear import QuantizedLinear
from specframe.native.modules import NativeNorm
from specframe.native.values import NewPairs
from specframe.neural.blocks import Blocks
from specframe.neural.features import KeptFeatures, Pending
from specframe.neural.forward import without_gradients
from specframe.neural.network import DraftSession, Embed, FeatureNetwork, LevelModules
from specframe.neural.session import Carried, FeatureSession

if TYPE_CHECKING:
    from specframe.kernel.interfaces import NeuralTarget
    from specframe.kernel.types import BeamSearch, SearchBeam, TokenTree


@dataclass(frozen=True)
class NativeHead:
    """A head that is a single matrix product: its matrix, the tokens of the logits, and their embeddings."""

    matrix: QuantizedLinear
    support: Tensor | None  # [v] int64; None: the whole vocabulary
    embed: Embed

    @property
    def embeddings(self) -> Tensor:
        """The embeddings of the tokens that it drafts, [v, D]."""
        tokens = torch.arange(self.matrix.out_features) if self.support is None else self.support
        return self.embed(tokens)


def native_draft(modules: LevelModules | None, head: NativeHead) -> NativeDraft | None:
    """The native drafts of a network and a head; None if the native library cannot compute them."""
    if modules is None or modules.layer.packed is None:
        return None
    entry, fusion, norm = modules.entry, modules.fusion, modules.norm
    if fusion is not None and not isinstance(fusion, QuantizedLinear):
        return None
    if norm is not None and not isinstance(norm, NativeNorm):
        return None
    embeddings = head.embeddings
    if embeddings.dtype not in (torch.float32, torch.bfloat16):
        return None
    return NativeDraft(
        DraftParts(
            layers=modules.layer.packed,
            head=head.matrix,
            embeddings=embeddings,
            support=head.support,
            entry=entry if isinstance(entry, QuantizedLinear) else None,
            fusion=fusion,
            cells=modules.cells,
            block=modules.block,
            norm=None if norm is None else norm.weight,
            feeds_normed=modules.feeds_normed,
        )
    )


class NativeSearch:
    """The beam searches of a session, each as one native call that also reads the newly committed pairs.

    `taps` are the features that native code reads directly from the target; empty if PyTorch fuses them. `table` is
    the embedding table of all tokens, [V, D], if embeddings are its rows.
    """

    def __init__(self, session: FeatureSession, draft: NativeDraft, taps: Sequence[str], table: Tensor | None) -> None:
        self._session = session
        self._draft = draft
        self._taps = taps
        self._table = table
        self._written: tuple[object, Tensor, Tensor] | None = None  # the session's carried state in native form

    @without_gradients
    def __call__(self, search: BeamSearch, root: Tensor) -> tuple[TokenTree, int]:
        """The trees below root [B], and the number of the drafter's forward passes."""
        session, parts = self._session, self._draft.parts
        if parts.cells is not None and (session.windowed is not None or session.waiting > parts.cells.longest):
            session.flush()  # along a text, and where a window drops pairs, PyTorch runs the LSTM
        pending, new = session.pending_shape, None
        counts, known, states, tail = session.counts, len(root), None, None
        outputs = torch.empty(len(root), parts.block, parts.layers.shape.width)
        if pending is not None:
            pending, new = self._new(pending)
            known = pending.first
            counts = [*session.counts[:known], *pending.counts]
        if known:
            outputs[:known] = session.draft[0].outputs[:, 0]
        if parts.cells is not None:
            states, tail = self._carried()
        more = 0 if new is None else new.most
        session.reserve(width := parts.block - 1 + slots_for(search, counts, more, parts.block))
        session.cache.aim(0, width)
        entries = session.windowed
        window = None if entries is None else (entries.window.sinks, entries.window.recent)
        grow = self._draft.grow
        tree, passes = grow(search, root.contiguous(), counts, outputs, session.cache, new, states, tail, window)
        if pending is not None:
            assert new is not None
            dtype, rest, carried = new.embeddings.dtype, outputs[known:], session.carried
            if states is not None and tail is not None:
                carried = cache(partial(_in_dtype, states, tail, dtype))
                session.carried = carried
                self._written = carried, states, tail

            def settled() -> Blocks:
                state = (carried() if callable(carried) else carried)[0]
                shown = tuple(part[:, known:] for part in state)
                return Blocks.of_root(rest.to(dtype), shown, torch.tensor(pending.counts))

            session.flushed(pending, settled)
        return tree, passes

    def _carried(self) -> tuple[Tensor, Tensor]:
        """An LSTM's states, [B, L, 2, D], and its outputs for the last pairs, [B, K - 1, D], in native form.

        States that native code wrote last are reused; they are converted to the network's dtype only for PyTorch.
        """
        session = self._session
        if self._written is not None and session.carried is self._written[0]:
            return self._written[1:]
        states = torch.stack(session.state, 2).transpose(0, 1).float().contiguous()
        return states, session.tail.float().contiguous()

    def _new(self, pending: Pending) -> tuple[Pending, NewPairs]:
        """The pending pairs, also in native form; native code itself gathers and fuses those of a single commit."""
        session = self._session
        committed = session.single_commit
        if committed is None or not self._taps:
            whole = session.pending
            assert whole is not None
            tokens, fused = whole.pairs[0].chunk(2, -1)
            return whole, NewPairs(whole.first, tokens.contiguous(), [fused.contiguous()], whole.fresh)
        features = committed.features
        scored, nodes = (features.scored, features.paths) if isinstance(features, KeptFeatures) else (features, None)
        found = [scored[tap].contiguous() for tap in self._taps]
        if self._table is not None:
            return pending, NewPairs(pending.first, self._table, found, pending.fresh, nodes, committed.texts)
        embedded = session.embed(committed.tokens.narrow(1, 0, max(pending.fresh)))
        return pending, NewPairs(pending.first, embedded, found, pending.fresh, nodes)


def _in_dtype(states: Tensor, tail: Tensor, dtype: torch.dtype) -> Carried:
    """A session's carried values from an LSTM's states [B, L, 2, D] and its last outputs, both in float32."""
    hidden, cell = states.to(dtype).transpose(0, 1).unbind(2)  # [L, B, D] each
    return (hidden.contiguous(), cell.contiguous()), tail.to(dtype)


class NativeSearches:
    """Makes the searches of a drafter's sessions; a network's native form is made once."""

    def __init__(self) -> None:
        self._made: tuple[nn.Module, QuantizedLinear | None, NativeDraft | None] | None = None

    def of(
        self,
        session: DraftSession,
        network: nn.Module,
        matrix: QuantizedLinear | None,
        support: Tensor | None,
        target: NeuralTarget,
    ) -> SearchBeam | None:
        """The native search of a network's session, for logits that are the product with a matrix, over a support.

        None if drafts must be searched level by level, since the head or the network has no native form.
        """
        embed = target.embed
        if self._made is None or self._made[0] is not network or self._made[1] is not matrix:
            draft = None
            if isinstance(network, FeatureNetwork) and matrix is not None:
                draft = native_draft(network.native, NativeHead(matrix, support, network.embedded(embed)))
            self._made = network, matrix, draft
        draft = self._made[2]
        if draft is None or not isinstance(session, FeatureSession) or not isinstance(network, FeatureNetwork):
            return None
        fused = network.native is not None and network.native.entry is not None
        reads = network.spec.reads
        taken = draft.parts.entry is not None and len(reads) > 1 if fused else len(reads) == 1
        table = getattr(target, "embedding_table", None) if network.embedded(embed) is embed else None
        return NativeSearch(session, draft, reads if taken else (), table)
