"""DSpark's network: a block drafter's with a bias for every node, and the session that descends a tree."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specframe.neural import Blocks, DraftSession, Embed, State
from specframe.plugin import Predicted
from specframe_blocks.dflash.backbone import Backbone, BlockSession, too_long
from specframe_blocks.dflash.markov import ConfidenceHead, MarkovHead

if TYPE_CHECKING:
    from specframe.plugin import Frontier
    from specframe_blocks.dflash.layout import BlockLayout


class Spark(Backbone):
    """DFlash's backbone with DSpark's heads.

    The input of a prediction's head concatenates the block's state [H], the embedding of the token above [r], and the
    factors of its bias [r].
    """

    def __init__(self, layout: BlockLayout) -> None:
        super().__init__(layout.shape, layout.plan, layout.own)
        markov = layout.markov
        assert markov is not None
        size, vocab = int(layout.shape.hidden_size), int(layout.shape.vocab_size)
        self.markov_head = MarkovHead(vocab, markov.rows or vocab, markov.rank, size, markov.kind)
        self.confidence_head: ConfidenceHead | None = None
        self.reads_markov = markov.confidence_reads_markov
        if markov.confidence:
            self.confidence_head = ConfidenceHead(size + (markov.rank if self.reads_markov else 0))

    def blocks(self, features: Tensor, tokens: Tensor, embed: Embed, entries: Tensor) -> Predicted:
        """Returns the predictions of blocks, [B, A, K, H + 2 r]; the tokens above are the text's, [B, n + K - 1]."""
        states = self.states(features, tokens, embed, entries)
        state, parts = self.markov_head.first(states[:, :, 0]), []
        for level in range(self.levels):
            inputs = tokens.gather(1, entries + level)
            part, state = self.read(states[:, :, level], inputs, state)
            parts.append(part)
        return self.predicted(torch.stack(parts, 2))

    def read(self, states: Tensor, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        """Returns the heads' inputs below nodes with these tokens, [..] -> [.., H + 2 r], and the state after them."""
        before, factors, state = self.markov_head(states, tokens, state)
        return torch.cat([states, before, factors], -1), state

    def predicted(self, read: Tensor) -> Predicted:
        """Returns predictions for the heads, with their confidence."""
        if self.confidence_head is None:
            return Predicted(read)
        rank = self.markov_head.rank
        seen = read[..., :-rank] if self.reads_markov else read[..., : -2 * rank]
        return Predicted(read, confidence=self.confidence_head(seen))

    def split(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the block's state, and the bias of the next token: [.., H], [.., v]."""
        rank = self.markov_head.rank
        bias: Tensor = self.markov_head.markov_w2(read[..., -rank:])
        return read[..., : -2 * rank], bias

    def open(self, embed: Embed, slots: int, room: int) -> DraftSession:
        """Returns an empty session for at most `slots` rows of at most `room` positions each."""
        return SparkSession(self, embed, slots, room=room)


class SparkSession(BlockSession):
    """A block session that descends a tree level by level: the block is computed once, the bias for every node.

    It keeps the state after the tokens of expanded nodes. The `position` of a block is the level below them.
    """

    network: Spark

    def __init__(self, network: Spark, embed: Embed, slots: int, *, room: int = 0, spare: int = 256) -> None:
        super().__init__(network, embed, slots, room=room, spare=spare)
        self.walked: list[Blocks] = []

    def expand(self, frontier: Frontier) -> Predicted:
        """Returns the prediction below each frontier node. Raises CompositionError below the block's last level."""
        tree, nodes, levels = frontier.tree, frontier.nodes, self.network.levels
        if tree.levels == 0:
            self.flush()
            self.walked = []
        states = self.draft[0].outputs[:, 0]  # [B, K, H]
        level, state = self._parent_state(frontier)
        if tree.levels >= levels and bool((level >= levels).any()):
            raise too_long(levels)
        hidden = states.gather(1, level[..., None].expand(-1, -1, states.shape[2]))  # [B, F, H]
        read, state = self.network.read(hidden, tree.tokens.gather(1, nodes), state)
        self.walked.append(
            Blocks(
                nodes=nodes,
                outputs=read[:, :, None],
                state=tuple(part[None] for part in state),
                position=level + 1,
                sees=level.new_zeros(*level.shape, 0, dtype=torch.bool),
            )
        )
        return self.network.predicted(read[:, :, None])

    def _parent_state(self, frontier: Frontier) -> tuple[Tensor, State]:
        """Returns the depth of each frontier node, [B, F], and the state above it; the root may be repeated."""
        nodes = frontier.nodes
        if not self.walked:
            first = self.draft[0].outputs[:, :, 0].expand(-1, nodes.shape[1], -1)
            return torch.zeros_like(nodes), self.network.markov_head.first(first)
        known = Blocks.joined(self.walked) if len(self.walked) > 1 else self.walked[0]
        drafted = nodes > 0
        origin = known.take(frontier.tree.parent.gather(1, nodes).clamp(min=0))
        state = tuple(torch.where(drafted[..., None], part[0], 0) for part in origin.state)
        return torch.where(drafted, origin.position, 0), state
