"""A multi-token prediction head as a drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from specframe import WeightsError
from specframe.neural import Export, NeuralDrafter, checkpoint
from specframe_blocks.mtp import engines, published
from specframe_blocks.mtp.network import MTPNetwork

if TYPE_CHECKING:
    from pathlib import Path

    from specframe.plugin import NeuralTarget


class MTP(NeuralDrafter[MTPNetwork]):
    """The head for the token after next with which DeepSeek-V3, Qwen3-Next, GLM-4.5, MiMo and others are trained.

    It drafts as EAGLE's drafter does, one level per call, with its own output as the next feature: DeepSeek trained it
    for one level and reuses it. FastMTP (arXiv 2509.18362) trains it further for three levels: with the rollout
    `multi-step`, or `training-time-test` for gradients through its outputs, and the loss `cross-entropy` with `labels:
    text` and `decay: 0.6`.

    `weights` may be the target's own checkpoint, if it contains a head: a folder or Hub name with tensors called mtp.*
    (Qwen) or model.layers.L.eh_proj and so on (DeepSeek), or a folder of the package speculators. Of several heads, the
    first is read.

    Args:
        weights: a folder, `zoo://name` or Hub name; none: an untrained head.
        head: the map from predictions to logits; none: the target's own head.
    """

    name = "mtp"
    forms = engines.FORMS
    dtype: torch.dtype = torch.bfloat16
    """Storage dtype of a new head's weights; a loaded head keeps its own."""

    def build(self, target: NeuralTarget) -> MTPNetwork:
        """Returns a new head for the target."""
        return MTPNetwork(target.config)

    def load(self, target: NeuralTarget, weights: str) -> MTPNetwork:
        """Loads the head of a checkpoint. Raises WeightsError, with all mismatches, if it does not fit."""
        config = checkpoint.read_config(weights)
        self.dtype = published.dtype_of(checkpoint.locate(weights), target.config.num_hidden_layers)
        if not published.is_published(config):
            return super().load(target, weights)
        shape = config.get("transformer_layer_config") or config.get("text_config") or config
        if problems := checkpoint.contradictions(shape, checkpoint.target_shape(target.config)):
            raise WeightsError(f"the head in {weights} does not fit its target: {'; '.join(problems)}")
        network = self.fresh(target)
        published.fill(network, checkpoint.locate(weights), target.config.num_hidden_layers)
        return network

    def store(self, folder: Path) -> None:
        """Writes config.json and model.safetensors: in bfloat16, or in the dtype of a loaded head."""
        config = self.target.config
        stored = self._identity(config) | checkpoint.target_shape(config)
        checkpoint.save(self.network, stored, folder, self.dtype)

    def export(self, form: str) -> Export:
        """Returns the head in the form of speculators or a target's checkpoint. Raises WeightsError if it cannot."""
        return engines.export(form, self.network.state_dict(), self.dtype, self.target, self.support)
