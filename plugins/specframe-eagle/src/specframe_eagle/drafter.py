"""EAGLE's drafter: predicts the target's next feature, which the target's own head turns into token probabilities."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from specframe import WeightsError
from specframe.neural import Export, NeuralDrafter, Quantization, TextWindow
from specframe_eagle import engines, published
from specframe_eagle.network import EagleNetwork, EagleVariant
from specframe_eagle.published import EagleLayout
from specframe_eagle.width import checked_width, with_width

if TYPE_CHECKING:
    from pathlib import Path

    from specframe.plugin import Head, NeuralTarget

PARTS = {"feature_sampling": "feature_sampling", "partial_alignment": "partial_alignment", "gated": "gated fusion"}
"""Names of the parts of a variant that a checkpoint must have if they are requested."""


class Eagle(NeuralDrafter[EagleNetwork]):
    """The autoregressive drafter of Li et al. 2024 (EAGLE), also used by EAGLE-2, HASS and CORAL.

    From the pairs (f_i, t_(i+1)) up to the root's, it predicts the next feature; the head turns it into a law. Deeper
    levels are computed from predicted features and drafted tokens, for any number of frontier nodes in one forward
    pass, so every tree policy fits: EAGLE's tree is `fixed`, EAGLE-2's is `dynamic`. EAGLE-2, HASS and CORAL differ
    from EAGLE in training and search, and draft with this network.

    Embedding and head are the target's, frozen and not saved. Without `weights`, the network starts from random weights
    that are equal in every run. With `weights`, its shape is that of their config.json; published EAGLE checkpoints
    load unchanged once they are converted to safetensors.

    A head with weights is trained alone, while the drafter is frozen.

    FSPAD (Gui et al. 2024) changes the network's input and its output, with one option for each: see `FeatureSampler`
    and `SplitLayer` in `specframe_eagle.fspad`. Trees, heads, rollouts and losses are unchanged, so HASS and CORAL can
    train this network, too. Dovetail (Zhang et al. 2024) mixes token and feature by a gate and has five layers, also by
    options: see `GatedFusion` in `specframe_eagle.dovetail`. With FSPAD's options or the gate, drafts are searched
    level by level instead of in one native call.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained.
        head: how predicted features become logits; none: the target's own head.
        bias: whether a new drafter's `fc` has a bias; a loaded one follows its checkpoint.
        feature_sampling: whether tokens gate features in a new drafter (FSPAD); a loaded one follows its checkpoint.
        partial_alignment: whether a new drafter's logits and features come from two halves of its output (FSPAD); a
            loaded one follows its checkpoint.
        fusion: a new drafter's map from token and feature to the layer's input: linear, or gated (Dovetail); a loaded
            one follows its checkpoint.
        layers: a new drafter's number of decoder layers; a loaded one follows its checkpoint.
        intermediate_size: inner width of a new drafter's MLPs; none: the target's. A loaded one follows its checkpoint.
        window: number of newest committed tokens that a draft sees, in addition to the first `sinks`: constant memory,
            and positions as in short texts; none: all tokens.
        sinks: the first tokens of a text that stay visible with a window.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
        compile: whether torch.compile computes its decoder layers while it decodes; not with `quantize` on a CPU.
    """

    name = "eagle"
    forms = engines.FORMS

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        bias: bool = True,
        feature_sampling: bool = False,
        partial_alignment: bool = False,
        fusion: Literal["linear", "gated"] = "linear",
        layers: int = 1,
        intermediate_size: int | None = None,
        window: int | None = None,
        sinks: int = 4,
        quantize: Quantization | None = None,
        compile: bool = False,
    ) -> None:
        super().__init__(weights=weights, head=head, quantize=quantize, compile=compile)
        self.window, self.promise = TextWindow.checked(self.name, window, sinks), replace(self.promise, window=window)
        self.variant = EagleVariant(bias, feature_sampling, partial_alignment, fusion == "gated", layers)
        self.inner = checked_width(self.name, intermediate_size)
        self._layout: EagleLayout | None = None

    def build(self, target: NeuralTarget) -> EagleNetwork:
        """Returns a new network for the target."""
        config = with_width(target.config, self.inner)
        self._layout = EagleLayout.of_target(config, self.variant)
        return EagleNetwork(config, self.variant)

    def load(self, target: NeuralTarget, weights: str) -> EagleNetwork:
        """Loads the network of a checkpoint in the published layout, which may differ from a new one's."""
        self._layout = layout = EagleLayout.read(weights, target)
        for name, words in PARTS.items():
            if getattr(self.variant, name) and not getattr(layout.variant, name):
                raise WeightsError(
                    f"the drafter in {weights} has no {words}: train one that has, or leave the option out"
                )
        if self.variant.layers not in (1, stored := layout.variant.layers):
            raise WeightsError(
                f"the drafter in {weights} has {stored} layers, not {self.variant.layers}: leave layers out"
            )
        if self.inner not in (None, stored := layout.shape.intermediate_size):
            raise WeightsError(
                f"the MLP of the drafter in {weights} is {stored} wide, not {self.inner}: leave intermediate_size out"
            )
        return published.load(layout, weights, target)

    @property
    def fusion(self) -> nn.Linear | None:
        """Returns the map from a pair of embedding and feature to the layer's input; None if it is not linear."""
        return fc if isinstance(fc := self.network.fc, nn.Linear) else None

    @property
    def branches(self) -> list[nn.Linear]:
        """Returns the last maps of attention and MLP, whose outputs are added to the output of the fusion."""
        layers: list[Any] = self.network.layer.layers
        found = [
            getattr(part, name, None)
            for layer in layers
            for part, name in ((layer.self_attn, "o_proj"), (layer.mlp, "down_proj"))
        ]
        return [part for part in found if isinstance(part, nn.Linear)]

    def export(self, form: str) -> Export:
        """Returns the drafter in the form of vLLM, SGLang or the authors' code.

        Raises WeightsError if the form has no place for it.
        """
        assert self._layout is not None, "bound"
        own = published.Published(self.network).state_dict()
        return engines.export(form, own, self._layout, self.target, self.support)

    def store(self, folder: Path) -> None:
        """Writes config.json and model.safetensors in the published layout.

        A new drafter is stored in bfloat16. A loaded one keeps its dtype and config, so that weights without further
        training are stored bit for bit.
        """
        network = self.network
        assert self._layout is not None
        published.save(self._layout, network, self.target, folder)
