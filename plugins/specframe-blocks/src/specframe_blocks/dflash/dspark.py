"""DSpark's drafter: DFlash's block, whose tokens depend on those drawn above them."""

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

    The backbone runs once a draft. Its output for a level is the same below all nodes of the level above; the bias of a
    node's own token turns it into that node's conditional distribution. So every tree can be grown, and every verifier
    gets the true distribution of the drawn tokens: a level a call, each of them a product of low rank.

    Its confidence is a proposal's, by which the tree `threshold` stops: it is known before a token is drawn, so
    stopping by it changes no distribution. The published scheduler without early stop looks at later confidences
    first, which depend on the tokens drawn, and is lossy.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: the map from predictions to logits; none: the target's own head.
        block_size: rows of a block (published: 7), each of which drafts a token.
        layers: how many decoder layers a new drafter has, Qwen3's (published: 5); a loaded one has its own.
        taps: the target's layers that a new drafter reads, counted from 0; none: as many as it has layers, spread
            from layer 1 to L - 3.
        mask_token: the token whose embedding marks positions to predict; none: the padding token or the last.
        causal: whether a row of a block sees only those before it.
        from_anchor: whether the root's row predicts the first draft; without, a block drafts one token fewer.
        rank: of a new drafter's bias (published: 256).
        markov: the source of a new drafter's bias: the token above (vanilla), weighed by the block (gated), or all
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
        """A network of this layout, whose biases are of the head's tokens."""
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
        """The logits of predictions, [B, n, K, v]: the head's, and the bias."""
        network: Any = self.network
        states, bias = network.split(predicted.hidden)
        return (self.logits(states) if network.lm_head is None else network.lm_head(states)) + bias

    def frozen_head(self, predicted: Predicted) -> None:
        """None: the bias is trained, and no LM head alone gives the logits."""
