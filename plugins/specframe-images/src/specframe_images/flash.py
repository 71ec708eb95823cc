"""FLASH's drafter: an image becomes a few entries, and one entry predicts several levels of a draft."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from specframe import CompositionError, InputError
from specframe.neural import (
    DecoderLayer,
    DraftSession,
    Embed,
    FeatureSession,
    NeuralDrafter,
    PendingCommit,
    Quantization,
    tensor_on,
)
from specframe.plugin import PairSpec, Predicted
from specframe_images.entries import ImageNetwork, Layout, image_tokens, laid_out

if TYPE_CHECKING:
    from transformers import Cache, PretrainedConfig

    from specframe.plugin import Committed, Head, NeuralTarget

WIDER = 4
"""Width of the paper's MLP, in multiples of the target's."""


class MlpInput(nn.Module):
    """A module that replaces a layer's MLP, records its input and adds nothing."""

    read: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Returns zeros, [.., H]."""
        self.read = x
        return torch.zeros_like(x)


class SpreadLayer(DecoderLayer):
    """A decoder layer of the target's type whose MLP gives `levels` concatenated outputs.

    Norms, attention and residuals are the target's. The MLP is a map to `width`, SiLU, and a map to `levels` H; each
    output is the attention's output plus its own part of the result.
    """

    def __init__(self, config: PretrainedConfig, levels: int, width: int) -> None:
        super().__init__(config)
        if not hasattr(self.layer, "mlp"):
            raise CompositionError(
                f"drafter flash knows no MLP in the layers of {config.model_type!r}; use drafter msd"
            )
        if hasattr(self.layer, "input_layernorm"):
            self.layer.input_layernorm = nn.Identity()
        self.mlp_input = self.layer.mlp = MlpInput()
        self.up = nn.Linear(config.hidden_size, width)
        self.down = nn.Linear(width, levels * config.hidden_size)

    def one(self, x: Tensor, positions: Tensor, mask: Tensor | None, cache: Cache | None) -> Tensor:
        """Returns the layer's outputs, [B, T, levels H]; arguments as those of `DecoderLayer`."""
        attended = super().one(x, positions, mask, cache)
        assert self.mlp_input.read is not None  # set when the layer runs
        read, self.mlp_input.read = self.mlp_input.read, None
        parts: Tensor = self.down(nn.functional.silu(self.up(read)))
        return (attended[..., None, :] + parts.unflatten(-1, (-1, attended.shape[-1]))).flatten(-2)

    def pack(self) -> None:
        """Does nothing: native code does not support this MLP."""


class FlashNetwork(ImageNetwork):
    """FLASH's network (Wang et al. 2025): compressed images, and `levels` predicted features per entry.

    The features X [n, H] of an image's pairs, those whose token stands for a part of it, become softmax(A X^T) X with a
    learnt A [size, H]: `size` entries, which are the layer's inputs without `fc`. A text's pair goes through `fc`.
    """

    spec = PairSpec(side_by_side=False)

    def __init__(self, config: PretrainedConfig, tokens: frozenset[int], size: int, levels: int, width: int) -> None:
        super().__init__(config.hidden_size, tokens)
        self.levels = levels
        self.queries = nn.Parameter(torch.empty(size, config.hidden_size))
        nn.init.normal_(self.queries, std=config.hidden_size**-0.5)
        self.layer = SpreadLayer(config, levels, width)

    def compressed(self, pairs: Tensor, layout: Layout) -> Tensor:
        """Returns the entries of pairs [B, M, 2H], [B, E, 2H]; those of an image have 0 for the embedding."""
        rows = pairs.flatten(0, 1)
        if layout.runs:
            images = [pairs[row, first:end, pairs.shape[-1] // 2 :] for row, first, end in layout.runs]
            parts = nn.utils.rnn.pad_sequence(images, batch_first=True)  # [R, n, H]
            lengths = tensor_on(parts.device, [len(image) for image in images])
            padding = torch.arange(parts.shape[1], device=parts.device) >= lengths[:, None]
            scores = (self.queries.to(parts.dtype) @ parts.transpose(1, 2)).masked_fill(padding[:, None], -torch.inf)
            wide = torch.promote_types(scores.dtype, torch.float32)
            mixed = (scores.softmax(-1, dtype=wide).to(parts.dtype) @ parts).flatten(0, 1)  # [R m, H]
            rows = torch.cat([rows, torch.cat([torch.zeros_like(mixed), mixed], -1)])
        return rows[layout.sources]

    def unroll(
        self, features: Tensor, tokens: Tensor, embed: Embed, positions: Tensor | None, mask: Tensor | None
    ) -> Predicted:
        """Returns the predictions along texts, of every text's entry; an image's pairs have those of an earlier entry.

        Positions or a mask raise CompositionError, because there are fewer entries than pairs.
        """
        if positions is not None or mask is not None:
            raise CompositionError("drafter flash predicts plain texts only; use the rollout teacher-forced")
        tokens = tokens[:, : features.shape[1]]
        pairs = torch.cat([self.embedded(embed)(tokens), features], -1)
        counts = [pairs.shape[1]] * len(pairs)
        layout = laid_out(self.shown(tokens).tolist(), counts, len(self.queries), pairs.device)
        inputs, _ = self.inputs(self.compressed(pairs, layout), ())
        outputs = self.layer(inputs, layout.positions, None)  # [B, E, K H]
        row = torch.arange(len(outputs), device=outputs.device)[:, None]
        return self.predicted(outputs[row, layout.places].unflatten(-1, (self.levels, -1)))

    def open(self, embed: Embed, slots: int, room: int) -> DraftSession:
        """Returns an empty session for at most `slots` rows of at most `room` positions each."""
        return FlashSession(self, self.embedded(embed), slots, room=room)


class FlashSession(FeatureSession):
    """Decoding state of a session's rows, in which each of a prompt's images is a few entries.

    The arguments are those of `specframe.neural.FeatureSession`.
    """

    network: FlashNetwork

    def __init__(self, network: FlashNetwork, embed: Embed, slots: int, *, room: int = 0) -> None:
        super().__init__(network, embed, slots, room=room)
        self.masked = False  # one output of an entry has all levels
        self.ends: list[int] = []
        """The position after each row's last pair."""

    def prepare(self, entries: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Returns the entries unchanged: an image's are made of all its pairs at once."""
        return entries

    def pending_commit(self, rows: range, committed: Committed) -> PendingCommit:
        """Returns a commit to these rows, with entries and their positions, [B, E, 2H] and [B, E]."""
        pending = super().pending_commit(rows, committed)
        fresh, (values,) = pending.fresh, super().prepare(pending.pairs(self.spec))
        if committed.prompt is None:
            starts = tensor_on(values.device, self.ends)
            self.ends = [end + more for end, more in zip(self.ends, fresh, strict=True)]
            positions = starts[:, None] + torch.arange(values.shape[1], device=values.device)
            return replace(pending, entries=(values, positions))
        self.ends += fresh
        shown = self.network.shown(committed.tokens[:, : values.shape[1]]).tolist()
        for flags, count in zip(shown, fresh, strict=True):
            flags[count - 1] = False  # the root was drawn, so it is text
        layout = laid_out(shown, fresh, len(self.network.queries), values.device)
        return replace(
            pending, fresh=layout.counts, entries=(self.network.compressed(values, layout), layout.positions)
        )

    def leave(self, rows: Tensor) -> None:
        """Keeps these rows, int64 [R], in this order."""
        super().leave(rows)
        self.ends = [self.ends[row] for row in rows.tolist()]

    def block_of(self, outputs: Tensor) -> Tensor:
        """Splits the outputs of the last pair, [.., 1, K H], into those of its levels, [.., K, H]."""
        return outputs[..., -1, :].unflatten(-1, (self.network.levels, -1))


class Flash(NeuralDrafter[FlashNetwork]):
    """The drafter of Wang et al. 2025 (FLASH: Latent-Aware Semi-Autoregressive Speculative Decoding, FLASH).

    It reads an image of a prompt as `entries` mixtures of the target's features with learnt weights, and a text as
    EAGLE's drafter does. One attention and an MLP predict `levels` features from an entry, independently of the tokens
    drawn between them; deeper levels are computed from predicted features and drafted tokens, `levels` at a time. It
    can be used with any tree and verifier. With a target that reads no images it drafts from texts alone. Embedding and
    head are the target's, frozen and not saved.

    Args:
        entries: number of entries of an image; one of fewer parts has as many entries as parts.
        levels: number of levels that one forward pass proposes (the paper's k).
        width: of the MLP; none: four times the target's own width, as in the paper.
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how predicted features become logits; none: the target's own head.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
    """

    name = "flash"

    def __init__(
        self,
        *,
        entries: int = 64,
        levels: int = 5,
        width: int | None = None,
        weights: str | None = None,
        head: Head | None = None,
        quantize: Quantization | None = None,
    ) -> None:
        for option, value in (("entries", entries), ("levels", levels), ("width", width)):
            if value is not None and value < 1:
                raise InputError(f"flash: {option} must be at least 1, got {value}")
        super().__init__(weights=weights, head=head, quantize=quantize)
        self.entries = entries
        self.levels = levels
        self.promise = replace(self.promise, block=levels)
        self.width = width

    def build(self, target: NeuralTarget) -> FlashNetwork:
        """Returns a new network for the target."""
        config = target.config
        return FlashNetwork(config, image_tokens(target), self.entries, self.levels, self._width(config))

    def identity(self, config: Any) -> dict[str, Any]:
        """Returns the fields on which a checkpoint and the drafter must agree."""
        return {"entries": self.entries, "levels": self.levels, "width": self._width(config)}

    def _width(self, config: Any) -> int:
        return self.width or WIDER * int(config.hidden_size)
