"""P-EAGLE's drafter: drafts all levels in one forward pass of EAGLE-3's network."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Self

import torch
from torch import Tensor

from specframe import CompositionError, InputError, WeightsError
from specframe.neural import Export, Quantization, checkpoint, layer_config, seeded
from specframe.plugin import Promise
from specframe_eagle.eagle3 import Eagle3, Published3
from specframe_eagle.layout3 import LM_HEAD, MASK
from specframe_eagle.parallel import engines
from specframe_eagle.parallel.layout import ParallelLayout
from specframe_eagle.parallel.network import Parallel
from specframe_eagle.published import EMBEDDING
from specframe_eagle.wide import Kind, published_taps

if TYPE_CHECKING:
    from pathlib import Path

    from specframe.plugin import Head, NeuralTarget

APART = 0.9
"""Largest relative distance of a further trained embedding from the target's; another model's is at 1.4."""


class PEagle(Eagle3):
    """The parallel drafter of P-EAGLE (arXiv 2602.01469): EAGLE-3's network with mask rows.

    A forward pass reads the pairs committed since the last one, followed by a row of mask token and learnt vector for
    every further level. All levels thus cost one pass, and the distribution of a level is equal below all nodes of the
    level above. A deeper tree is refused. Training by the rollout `cod` keeps fewer rows of deeper levels.

    Taps, fusion, LM head and first decoder layer are those of the drafter `eagle3`; higher layers are ordinary ones.
    Published checkpoints (the authors', vLLM, speculators) load unchanged once they are converted to safetensors, and
    draft any number of levels, because the mask rows of all levels are equal.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how states become logits, and over which tokens; none: the target's own head.
        own_head: whether a new drafter's LM head is a copy to be trained; a loaded one follows its checkpoint.
        levels: number of tokens that a forward pass drafts (published: trained for 8).
        layers: a new drafter's number of decoder layers (published: 4); a loaded drafter follows its checkpoint in this
            and the next options.
        layer: the type of these layers; none: qwen3 for a Qwen3 target, llama for others.
        taps: the target's layers that a new drafter reads, counted from 0; none: 1, L / 2 - 1 and L - 4.
        mask_token: the token whose embedding is the input of mask rows; none: the padding token, or else the last one.
        own_embedding: whether a new drafter's token embedding is a copy to be trained, as published.
        fc_norm: whether each of a new drafter's taps has a norm.
        norm_before_residual: whether the residual starts at the normed state.
        norm_before_fc: whether all taps together pass one norm.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
    """

    name = "peagle"
    forms = engines.FORMS
    bare = ("norm_before_residual",)  # nothing is fed back

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        own_head: bool = True,
        levels: int = 8,
        layers: int = 1,
        layer: Kind | None = None,
        taps: list[int] | None = None,
        mask_token: int | None = None,
        own_embedding: bool = False,
        fc_norm: bool = False,
        norm_before_residual: bool = False,
        norm_before_fc: bool = False,
        quantize: Quantization | None = None,
    ) -> None:
        if levels < 1:
            raise InputError(f"peagle: levels must be at least 1, not {levels}")
        super().__init__(
            weights=weights,
            head=head,
            own_head=own_head,
            layer=layer,
            layers=layers,
            taps=taps,
            fc_norm=fc_norm,
            norm_before_residual=norm_before_residual,
            norm_before_fc=norm_before_fc,
            quantize=quantize,
        )
        self.asked = levels
        self.mask_token = mask_token
        self.own_embedding = own_embedding
        self.promise = Promise(depth=levels, block=levels)

    def untrained(self, vocab: int) -> Self:
        """Returns a copy of this drafter without weights, for a target of `vocab` tokens and any number of layers."""
        drafter = super().untrained(vocab)
        drafter.mask_token = None
        return drafter

    def build(self, target: NeuralTarget) -> Parallel:
        """Returns a new network for the target."""
        config = target.config
        kind: Kind = self.layer or ("qwen3" if config.model_type == "qwen3" else "llama")
        taps = published_taps(config.num_hidden_layers) if self.reads is None else tuple(self.reads)
        head, support = self._copied(target) if self.own_head else (None, None)
        layout = ParallelLayout(
            layer_config(config, kind, self.count),
            taps,
            self.switches,
            support=support,
            rows=None if head is None else len(head),
            mask=self._mask(target),
        )
        self._layout = layout
        table = _table(target) if self.own_embedding else None
        return Parallel(layout, self.asked, _row(target, layout.mask), head, table)

    def load(self, target: NeuralTarget, weights: str) -> Parallel:
        """Loads the network of a published checkpoint, which may differ from a new one's."""
        layout = ParallelLayout.read(weights, target.config)
        self._layout = layout
        self.check_layout(layout, weights)
        if self.own_embedding and EMBEDDING not in layout.names:
            raise WeightsError(f"the drafter in {weights} has no embedding of its own: leave own_embedding out")
        if self.mask_token not in (None, layout.mask):
            raise WeightsError(f"the drafter in {weights} has the mask token {layout.mask}, not {self.mask_token}")
        rows = None if layout.rows is None else torch.zeros(layout.rows, layout.shape.hidden_size)
        ours = _table(target)
        table = torch.zeros_like(ours) if EMBEDDING in layout.names else None
        row = _row(target, layout.mask)
        network = seeded(lambda: Parallel(layout, self.asked, row, rows, table), target)
        checkpoint.load(PublishedParallel(network, layout, target), weights)
        if network.embedding is not None:
            stored = network.embedding.weight.detach().cpu().float()
            if (stored - ours).norm() > APART * ours.norm():
                raise WeightsError(
                    f"the drafter in {weights} was trained on another target: {EMBEDDING} is not the embedding of "
                    "this one, nor one trained from it"
                )
            if torch.equal(stored.to(layout.dtype), ours.to(layout.dtype)):
                network.embedding = None
        return network

    def store(self, folder: Path) -> None:
        """Writes config.json and model.safetensors in the form that vLLM reads.

        A new drafter is stored in bfloat16, a loaded one in its own dtype.
        """
        layout = self.parallel_layout
        checkpoint.save(PublishedParallel(self.drafting, layout, self.target), layout.config, folder, layout.dtype)

    @property
    def parallel_layout(self) -> ParallelLayout:
        """Returns what a checkpoint stores besides the network's values. Raises CompositionError before bind."""
        layout = self.layout
        assert isinstance(layout, ParallelLayout)
        return layout

    @property
    def drafting(self) -> Parallel:
        """Returns the network. Raises CompositionError before bind."""
        network = self.network
        assert isinstance(network, Parallel)
        return network

    def export(self, form: str) -> Export:
        """Returns the drafter in the form of vLLM or speculators. Raises WeightsError with the reason if it cannot."""
        return engines.export(form, self.published(), self.parallel_layout, self.target, self.support, self.levels)

    def published(self) -> dict[str, Tensor]:
        """Returns the tensors that a new drafter stores: the network and the LM head it reads."""
        plain = replace(self.parallel_layout, names=frozenset(), mask_shape=())
        found = PublishedParallel(self.drafting, plain, self.target).state_dict()
        if LM_HEAD not in found:
            found[LM_HEAD] = self.rows()
        return found

    def _mask(self, target: NeuralTarget) -> int:
        """Returns the mask token: the given one, or one that texts do not use."""
        vocab = int(target.config.vocab_size)
        if self.mask_token is not None:
            if not 0 <= self.mask_token < vocab:
                raise CompositionError(
                    f"peagle: mask_token is {self.mask_token}, and the target has tokens 0 to {vocab - 1}"
                )
            return self.mask_token
        padding = getattr(target.config, "pad_token_id", None)
        return padding if isinstance(padding, int) and 0 <= padding < vocab else vocab - 1


class PublishedParallel(Published3):
    """A network under the published names, with the learnt vector of mask rows."""

    numbered = True

    def __init__(self, network: Parallel, layout: ParallelLayout, target: NeuralTarget) -> None:
        super().__init__(network, layout, target)
        vector, shape = network.mask_hidden.detach(), layout.mask_shape
        self.register_buffer(MASK, vector.view(shape) if shape and prod(shape) == vector.numel() else vector)
        if network.embedding is not None:
            self.embed_tokens = network.embedding


@torch.no_grad()
def _table(target: NeuralTarget) -> Tensor:
    """Returns the target's token embedding, [V, H] float32 on the host."""
    found = target.embed(torch.arange(target.config.vocab_size, device=target.device))
    return found.float().cpu().clone()


@torch.no_grad()
def _row(target: NeuralTarget, token: int) -> Tensor:
    """Returns the target's embedding of a token, [H]."""
    return target.embed(torch.tensor([token], device=target.device))[0]
