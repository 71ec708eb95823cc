"""DFlash's drafter: drafts a block of tokens in one forward pass, conditioned on features of the target."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Self

import torch
from torch import Tensor

from specframe import CompositionError, WeightsError
from specframe.neural import Export, NeuralDrafter, checkpoint, layer_config, seeded
from specframe.plugin import Promise
from specframe_blocks.dflash import engines
from specframe_blocks.dflash.backbone import Backbone
from specframe_blocks.dflash.layout import BlockLayout
from specframe_blocks.dflash.plan import KIND, BlockPlan, check_plan, published_taps

if TYPE_CHECKING:
    from pathlib import Path

    from specframe.plugin import Head, NeuralTarget


class DFlash(NeuralDrafter[Backbone]):
    """The block drafter of DFlash (arXiv 2602.06036).

    A forward pass reads the root and one mask token for each token to be drafted. They see each other, in both
    directions, and the committed text through fused features of the target. All levels cost one pass, independently of
    the tokens drawn at each, and the distribution of a level is equal below all nodes of the level above. A tree deeper
    than a block is refused.

    Embedding and head are the target's, frozen and not saved. Without `weights`, the network starts from random weights
    that are equal in every run. Published folders (z-lab, vLLM, SGLang, speculators) load unchanged.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: the map from predictions to logits; none: the target's own head.
        block_size: rows of a block, one of which is the root's (published: 16, 10 or 8).
        layers: a new drafter's number of decoder layers, Qwen3's (published: 5); a loaded one follows its checkpoint.
        taps: the target's layers that a new drafter reads, counted from 0; none: as many as it has layers, spread from
            layer 1 to L - 3.
        mask_token: the token whose embedding marks positions to predict; none: the padding token, or else the last one.
        causal: whether a row of a block sees only the rows before it (JetSpec).
        from_anchor: whether the root's row predicts the first draft, so that a block drafts as many tokens as it has
            rows.
    """

    name = "dflash"
    forms = engines.FORMS
    spark: ClassVar[bool] = False

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        block_size: int = 8,
        layers: int = 3,
        taps: list[int] | None = None,
        mask_token: int | None = None,
        causal: bool = False,
        from_anchor: bool = False,
    ) -> None:
        check_plan(self.name, block_size, from_anchor, layers, taps)
        super().__init__(weights=weights, head=head)
        self.reads = taps
        self.count = layers
        self.mask_token = mask_token
        self.size, self.causal, self.from_anchor = block_size, causal, from_anchor
        levels = block_size if from_anchor else block_size - 1
        self.promise = Promise(depth=levels, block=1 if self.spark else levels)
        self._layout: BlockLayout | None = None

    def untrained(self, vocab: int) -> Self:
        """Returns a copy of this drafter without weights, for a target of `vocab` tokens and any number of layers."""
        drafter = super().untrained(vocab)
        drafter.reads, drafter.mask_token, drafter._layout = None, None, None
        return drafter

    def build(self, target: NeuralTarget) -> Backbone:
        """Returns a new network for the target."""
        config = target.config
        plan = BlockPlan(
            taps=published_taps(config.num_hidden_layers, self.count) if self.reads is None else tuple(self.reads),
            size=self.size,
            mask=self._mask(config),
            from_anchor=self.from_anchor,
            causal=self.causal,
        )
        self._layout = BlockLayout(layer_config(config, KIND, self.count), plan)
        return self.network_of(self._layout, target)

    def network_of(self, layout: BlockLayout, target: NeuralTarget) -> Backbone:
        """Returns a network of this layout."""
        return Backbone(layout.shape, layout.plan, layout.own)

    def load(self, target: NeuralTarget, weights: str) -> Backbone:
        """Loads the network of a published checkpoint. Raises WeightsError, with all mismatches, if it does not fit."""
        self._layout = layout = BlockLayout.read(weights, target.config, spark=self.spark)
        layout.require(weights, block_size=self.size, from_anchor=self.from_anchor, causal=self.causal, taps=self.reads)
        if layout.own is not None and self.head is not None:
            raise WeightsError(f"the drafter in {weights} has an LM head of its own: leave drafter.head out")
        network = seeded(lambda: self.network_of(layout, target), target)
        checkpoint.load(network, weights)
        return network

    def store(self, folder: Path) -> None:
        """Writes config.json and model.safetensors as published: in bfloat16, or in the dtype of a loaded drafter."""
        layout = self.layout
        checkpoint.save(self.network, layout.config(self.spark), folder, layout.dtype)

    def export(self, form: str) -> Export:
        """Returns the drafter in the form of vLLM, SGLang or speculators. Raises WeightsError with the reason."""
        own = self.network.state_dict()
        return engines.export(form, own, self.layout, self.target, self.support, self.rows)

    @torch.no_grad()
    def rows(self) -> Tensor:
        """Returns the rows of the LM head that it reads, [v, H], by applying it to unit vectors."""
        target = self.target
        units = torch.eye(target.config.hidden_size, device=target.device, dtype=target.dtype)
        return (self.logits(units) - self.logits(torch.zeros_like(units[:1]))).T

    @property
    def layout(self) -> BlockLayout:
        """Returns what a checkpoint stores besides the network's values. Raises CompositionError before bind."""
        if self._layout is None:
            raise CompositionError(f"drafter {self.name} was used before bind(target)")
        return self._layout

    def _mask(self, config: Any) -> int:
        """Returns the mask token: the given one, or one that texts do not use."""
        vocab = int(config.vocab_size)
        if self.mask_token is not None:
            if not 0 <= self.mask_token < vocab:
                raise CompositionError(
                    f"{self.name}: mask_token is {self.mask_token}, and the target has tokens 0 to {vocab - 1}"
                )
            return self.mask_token
        padding = getattr(config, "pad_token_id", None)
        return padding if isinstance(padding, int) and 0 <= padding < vocab else vocab - 1
