"""DSpark's drafter: DFlash's block, in which tokens depend on those drawn above them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from specframe import CompositionError, InputError, WeightsError
from specframe.neural import support_of
from specframe.plugin import Trainable
from specframe_blocks.dflash.dflash import DFlash
from specframe_blocks.dflash.layout import BlockLayout, Markov
from specframe_blocks.dflash.markov import KINDS
from specframe_blocks.dflash.spark import Spark

if TYPE_CHECKING:
    from torch import Tensor

    from specframe.plugin import Head, NeuralTarget, Predicted


class DSpark(DFlash):
    """The block drafter of DSpark (DeepSeek, 2026): DFlash's backbone, a Markov head and a confidence head.

    The backbone runs once per draft. Its output for a level is equal below all nodes of the level above; the bias of a
    node's token turns it into that node's conditional distribution. Every tree can therefore be grown, and every
    verifier gets the true distribution of the drawn tokens. Each level is one call with a low-rank product.

    The tree `threshold` can stop at the drafter's confidence. It is known before a token is drawn, so stopping changes
    no distribution. The published scheduler without early stop first looks at later confidences, which depend on the
    drawn tokens, and is lossy.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: the map from predictions to logits; none: the target's own head.
        block_size: rows of a block (published: 7), each of which drafts a token.
        layers: a new drafter's number of decoder layers, Qwen3's (published: 5); a loaded one follows its checkpoint.
        taps: the target's layers that a new drafter reads, counted from 0; none: as many as it has layers, spread from
            layer 1 to L - 3.
        mask_token: the token whose embedding marks positions to predict; none: the padding token, or else the last one.
        causal: whether a row of a block sees only the rows before it.
        from_anchor: whether the root's row predicts the first draft; otherwise a block drafts one token fewer.
        rank: rank of a new drafter's bias (published: 256).
        markov: the source of a new drafter's bias: the token above (vanilla), weighted by the block (gated), or all
            drafted tokens above (rnn).
        confidence: whether a new drafter predicts acceptance.
    """

    name = "dspark"
    spark = True

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        block_size: int = 7,
        layers: int = 3,
        taps: list[int] | None = None,
        mask_token: int | None = None,
        causal: bool = False,
        from_anchor: bool = True,
        rank: int = 64,
        markov: str = "vanilla",
        confidence: bool = True,
    ) -> None:
        if markov not in KINDS:
            raise InputError(f"dspark: markov is one of {', '.join(KINDS)}, not {markov!r}")
        if rank < 1:
            raise InputError(f"dspark: rank must be at least 1, not {rank}")
        if isinstance(head, Trainable):
            raise CompositionError(
                "dspark: a head that is trained by itself has no place for the bias; use `full` or `trimmed` "
                "(confidence is the drafter's own)"
            )
        super().__init__(
            weights=weights,
            head=head,
            block_size=block_size,
            layers=layers,
            taps=taps,
            mask_token=mask_token,
            causal=causal,
            from_anchor=from_anchor,
        )
        self.markov = Markov(rank, markov, confidence)

    def network_of(self, layout: BlockLayout, target: NeuralTarget) -> Spark:
        """Returns a network of this layout, with biases for the head's tokens."""
        if self.head is not None:
            self.head.bind(target)
        support = support_of(self.head)
        rows = None if support is None else len(support)
        if layout.own is not None and layout.own.tokens is not None:
            rows = layout.own.rows
        if layout.markov is None:
            layout = replace(layout, markov=replace(self.markov, rows=rows))
            self._layout = layout
        assert layout.markov is not None
        if layout.markov.rows != rows:
            vocab = target.vocab_size
            raise WeightsError(
                f"the drafter in {self.weights} has biases for {layout.markov.rows or vocab} tokens, and its head has "
                f"{rows or vocab}: give the head that it was trained with"
            )
        return Spark(layout)

    def read(self, predicted: Predicted) -> Tensor:
        """Returns the logits of predictions, [B, n, K, v]: the head's plus the bias."""
        network: Any = self.network
        states, bias = network.split(predicted.hidden)
        return (self.logits(states) if network.lm_head is None else network.lm_head(states)) + bias

    def frozen_head(self, predicted: Predicted) -> None:
        """Returns None: the bias is trained, so no LM head alone gives the logits."""
