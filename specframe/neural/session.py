"""Decoding state of a drafter over its own decoder layers: the committed pairs, and the current draft.

With one attention layer, a position's key and value depend on the layer's input at that position alone. Of several
layers, all but the last are causal, so that keys and values depend on the pairs up to their own. So blocks need no
fixed alignment, and a cycle may commit any number of tokens: the last block is always the one that ends at the newest
pair, and a pair that is queried again has the same keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

from specframe.kernel.types import Frontier, PairSpec, Predicted
from specframe.neural.blocks import Blocks, Queries, State, ends, repeated
from specframe.neural.cache import SlotCache
from specframe.neural.compiled import CompiledLayers, width_of
from specframe.neural.features import Pending
from specframe.neural.layer import DecoderLayer
from specframe.neural.masks import TextWindow, pairs_before
from specframe.neural.rows import RowSession, WindowEntries
from specframe.neural.transfer import tensor_on

Carried = tuple[State, Tensor]
"""The values that a session carries from pair to pair: the network's state, and the inputs of the last pairs."""


class PairNetwork(Protocol):
    """A network of decoder layers over pairs, as its session calls it; `FeatureNetwork` documents each part."""

    spec: PairSpec
    block: int
    levels: int

    @property
    def layer(self) -> DecoderLayer:
        """The decoder layers."""

    @property
    def width(self) -> int:
        """The width of the layer's inputs, D."""

    def fuse(self, features: Tensor) -> Tensor:
        """Fuses the taps' concatenated features: [.., A D] -> [.., D]."""

    def start(self, batch: int) -> State:
        """The state before the first pair: tensors [P, batch, D]."""

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """The layer's inputs for pairs, and the state after them: [B, M, 2D] -> [B, M, D]."""

    def mask(self, pairs: Tensor) -> Tensor:
        """The mask inputs, which query the levels after a pair's first: [.., 2D] -> [.., K - 1, D]."""

    def features(self, outputs: Tensor) -> Tensor:
        """The part of the layer's outputs that is fed back: [.., P] -> [.., D]."""

    def predicted(self, outputs: Tensor) -> Predicted:
        """The layer's outputs as predictions: [B, n, K, P]."""


class FeatureSession(RowSession):
    """The decoding state of a session's rows, for drafters over decoder layers.

    Position i of a row holds the pair (embedding of token i + 1, features i); the network's `inputs` turns it into the
    layer's input, and the output of a block's k positions predicts the k features after it. EAGLE is the case of k = 1
    and no state, Falcon that of any k and an LSTM's state. ParallelSpec has masks: then the first of a block's k
    queries, j = 1, is a pair, and the others are masks after it; without masks j = k.

    Slots of the cache: pair i of a row is at slot i + j - 1. The first j - 1 slots stand for pairs before the
    first, which do not exist: their input is zero, and no query sees them. Only a row with fewer than j pairs predicts
    from there, for positions without a pair, which count as position 0. The draft's pairs follow those of the longest
    row, at the same slots in every row, until the next commit overwrites them. Masks follow all pairs during one
    forward pass; no later pass sees them.

    Args:
        network: the drafter's network.
        embed: the target's token embedding, [..] -> [.., D].
        slots: the most rows.
        room: the most positions of a row, for which the cache has room.
        spare: number of spare slots that the cache gets when it is made or grown.
    """

    def __init__(
        self, network: PairNetwork, embed: Callable[[Tensor], Tensor], slots: int, *, room: int = 0, spare: int = 256
    ) -> None:
        like = next(network.layer.parameters())
        super().__init__(like, network.spec, slots, room, spare, network.layer.count)
        self.network = network
        self.embed = embed
        embed(torch.zeros(1, dtype=torch.int64, device=like.device))  # a target finds its rule once, by a forward pass
        self.masked = network.levels > 1
        self.block = network.levels if self.masked else network.block
        self.asking = 1 if self.masked else self.block  # j, the number of a block's queries that are pairs
        self.compiled: CompiledLayers | None = None
        """The layers by torch.compile, after a call of `compile`."""
        none = network.start(0), like.new_zeros(0, self.asking - 1, network.width)
        self.carried: Carried | Callable[[], Carried] = none
        """The state and inputs after each row's pairs, or a function that makes them on demand."""

    @property
    def deep(self) -> bool:
        """True if there are several layers."""
        return self.network.layer.count > 1

    @property
    def state(self) -> State:
        """The network's state after each row's last pair."""
        if callable(self.carried):
            self.carried = self.carried()
        return self.carried[0]

    @property
    def tail(self) -> Tensor:
        """The inputs of each row's last j - 1 pairs, [B, j - 1, D]."""
        if callable(self.carried):
            self.carried = self.carried()
        return self.carried[1]

    def limit(self, window: TextWindow) -> None:
        """Limits drafts to a window of the committed pairs; called before the first commit."""
        self.windowed = WindowEntries(window)
        self.room = min(self.room, window.most)

    def compile(self, layers: CompiledLayers) -> None:
        """Compiles the layers, with a cache that grows with the written positions; called before the first commit."""
        self.compiled, self.room, self.spare = layers, 0, 0
        self.cache = SlotCache(self.network.layer.count, 0, self.cache.rows, width_of)

    def windowed_pending(self, entries: WindowEntries, pending: Pending) -> Pending:
        """The pending pairs to write within a window; with a state, which needs all pairs, `take` drops some later."""
        if not self.state:
            return super().windowed_pending(entries, pending)
        return replace(pending, counts=entries.cached(pending.first, pending.fresh))

    def prepare(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the network's `inputs` argument, [B, M, 2D]; features are fused only for a draft."""
        tokens, features = entries
        return (self._pairs(tokens, self.network.fuse(features)),)

    def join(self, more: int) -> None:
        """Makes room for new rows."""
        state = tuple(torch.cat(parts, 1) for parts in zip(self.state, self.network.start(more), strict=True))
        self.carried = state, pad(self.tail, (0, 0, 0, 0, 0, more))

    def leave(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        self.carried = tuple(part[:, rows] for part in self.state), self.tail[rows]

    def seen(self, counts: list[int]) -> Tensor:
        """Mask of the slots that hold the rows' `counts` pairs: [B, W] bool, W up to the longest row's end."""
        device = self.tail.device
        pair = torch.arange(1 - self.asking, max(counts, default=0), device=device)  # the one at each slot
        seen = (pair >= 0).expand(len(counts), -1)
        if len(set(counts)) > 1:
            seen = seen & (pair < tensor_on(device, counts)[:, None])
        if self.windowed is not None and (near := self.windowed.window.sees(pair, counts)) is not None:
            seen = seen & near
        return seen

    def expand(self, frontier: Frontier) -> Predicted:
        """The predictions of the k levels below each frontier node; the root starts a draft."""
        return self.network.predicted(self._expand(frontier))

    def _expand(self, frontier: Frontier) -> Tensor:
        """The layer's outputs for the k levels below each frontier node, [B, F, k, P].

        A node's block is the k path nodes that end at it, each paired with the feature predicted at its parent's
        position. The state continues from the node expanded k levels above.
        """
        if frontier.tree.levels == 0:
            self.flush()
            del self.draft[1:]
            return self.draft[0].outputs
        batch, width = frontier.nodes.shape
        k = self.block
        tokens, parents = self._trace(frontier)
        origin = Blocks.among(self.draft, parents)
        pairs = self._pairs(tokens, self.network.features(origin.outputs)).flatten(0, 1)  # [BF, k, 2D]
        state = tuple(part.flatten(1, 2).contiguous() for part in origin.state)
        inputs, state = self.network.inputs(pairs, state)  # [BF, k, D]

        own = torch.eye(width, dtype=torch.bool, device=tokens.device).expand(batch, -1, -1)
        path, sees = self._path(origin.sees, own)
        positions = origin.position[:, :, None]  # [B, F, k]
        if k > 1:
            positions = positions + torch.arange(k, device=tokens.device)
        asked = Queries(inputs.reshape(batch, width * k, -1), positions.flatten(1), repeated(path, k))
        if k > 1 and self.deep:
            asked = asked.causal()
        if self.masked:
            masks = self.network.mask(pairs[:, -1]).unflatten(0, (batch, width))  # [B, F, k - 1, D]
            asked = asked.followed_by(Queries.after(masks, positions[:, :, -1], path))
        outputs = self._ask(asked, path.shape[2] - width * k)
        block = outputs[:, : width * k].unflatten(1, (width, k))  # [B, F, k, P]
        block = self.block_of(block[:, :, -self.asking :])
        if self.masked:
            block = torch.cat([block, outputs[:, width * k :].unflatten(1, (width, k - 1))], 2)
        state = tuple(part.view(-1, batch, width, part.shape[-1]) for part in state)
        self.draft.append(Blocks(frontier.nodes, block, state, origin.position + k, sees))
        if frontier.nodes.is_cpu and not any(0 in row for row in frontier.nodes.tolist()):
            return block
        is_root = (frontier.nodes == 0)[..., None, None]  # it may be expanded again together with deeper nodes
        return torch.where(is_root, self.draft[0].outputs[:, :1], block)

    def block_of(self, outputs: Tensor) -> Tensor:
        """Maps the outputs of a block's pairs, [.., j, P], to those of its levels; masks give the other levels."""
        return outputs

    def take(self, pending: Pending) -> Blocks:
        """Caches pending pairs and advances the state, so that a draft can start; returns the root's block.

        The j - 1 pairs before are queried again, since they belong to the last block; writing their keys and values
        again changes nothing. In the last layer all queries see all pairs, since only the last block's outputs are
        used. A mask also sees the masks before it. Positions given with the pairs replace those implied by the slots.
        """
        first, (pairs, *given), fresh, starts = pending.first, pending.pairs, pending.fresh, pending.starts
        inputs, state = self.network.inputs(pairs, tuple(part[:, first:] for part in self.state), fresh)
        device = pairs.device
        tail = self.tail[first:]
        if self.windowed is not None and self.state:
            self.windowed.instead = written = self.windowed.expanded(pending, inputs)
            (inputs,), fresh, starts = written.pairs, written.fresh, written.starts
            tail = tail * (tensor_on(device, starts) > 0)[:, None, None]  # nothing stands before a row's first pair
        if self.asking > 1:
            inputs = torch.cat([tail, inputs], 1)  # [B, T, D]
        batch, length, _ = inputs.shape

        counts = tensor_on(device, pending.counts)
        visible = self.seen(pending.counts)  # [B, W]
        after = max(starts) + length  # the first slot that no row writes a pair to
        path = pad(visible, (0, max(0, after - visible.shape[1])))[:, None]  # [B, 1, S], S = after
        even = min(starts) == max(starts)
        slots = torch.arange(length, device=device).expand(batch, -1)  # [B, T]
        slots = slots + (starts[0] if even else tensor_on(device, starts)[:, None])
        positions, following = (slots - (self.asking - 1)).clamp(min=0), counts  # no query sees pairs before the first
        if given:
            positions, following = given[0], ends(given[0], 1, fresh)[:, 0] + 1
        before = self._before(slots, counts, after) if self.deep else None
        asked = Queries(inputs, positions, repeated(path, length), before)
        if self.masked:
            masks = self.network.mask(ends(pairs, 1, fresh))  # [B, 1, k - 1, D]
            asked = asked.followed_by(Queries.after(masks, following[:, None] - 1, path))
            following_slots = torch.arange(after, after + masks.shape[2], device=device)
            slots = torch.cat([slots, following_slots.expand(batch, -1)], 1)
        outputs = self._ask(asked, starts[0] if even else slots, first)  # [B, T, P], and the masks'

        carried = tuple(pending.after(old, new, 1) for old, new in zip(self.state, state, strict=True))
        self.carried = carried, pending.after(self.tail, ends(inputs, self.asking - 1, fresh))
        block = self.block_of(ends(outputs[:, :length], self.asking, fresh))
        if self.masked:
            block = torch.cat([block, outputs[:, length:]], 1)  # [B, k, P]
        return Blocks.of_root(block, state, following)

    def _before(self, slots: Tensor, counts: Tensor, width: int) -> Tensor:
        """Mask of the slots, up to their own, that pairs at slots [B, T] see in all layers but the last."""
        window = None if self.windowed is None else self.windowed.window
        return pairs_before(slots, counts, width, self.asking - 1, window)

    def _ask(self, queries: Queries, slots: int | Tensor, first: int = 0) -> Tensor:
        """The layer's outputs, [B, T, P]; keys and values are written at `slots`: see `SlotCache.aim`."""
        width = queries.mask.shape[2]
        self.reserve(width)
        self.cache.aim(slots, width, first)
        if self.compiled is not None:
            return self.compiled.run(self.network.layer, queries, self.cache)
        return queries.run(self.network.layer, self.cache)

    def _pairs(self, tokens: Tensor, features: Tensor) -> Tensor:
        """Returns the network's `inputs` argument: [..], [.., D] -> [.., 2D], embedding first."""
        return torch.cat([self.embed(tokens), features], -1)

    def _trace(self, frontier: Frontier) -> tuple[Tensor, Tensor]:
        """The tokens of the k path nodes that end at each frontier node, [B, F, k], and the parent of the first."""
        parent = frontier.tree.parent.clamp(min=0)  # for padding only, a path may go beyond the root
        path = [frontier.nodes]
        for _ in range(self.block - 1):
            path.append(parent.gather(1, path[-1]))
        tokens = [frontier.tree.tokens.gather(1, step) for step in reversed(path)]
        parents = parent.gather(1, path[-1])
        return tokens[0][:, :, None] if self.block == 1 else torch.stack(tokens, 2), parents

    def _path(self, earlier: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the slots, and the expansions, on the path to each frontier node: [B, F, W + S k] and [B, F, S].

        `earlier` [B, F, S - F] and `own` [B, F, F]: which expansions lie on the path, earlier ones and the frontier's.
        """
        committed = self.visible[:, None].expand(-1, own.shape[1], -1)  # [B, F, W]
        if self.block == 1:  # then the expansions are slots
            path = torch.cat([committed, earlier, own], 2)
            return path, path[:, :, committed.shape[2] :]
        sees = torch.cat([earlier, own], 2)
        drafted = sees[..., None].expand(-1, -1, -1, self.block).flatten(2)  # [B, F, S k]
        return torch.cat([committed, drafted], 2), sees
