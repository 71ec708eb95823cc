"""LongSpec's drafter: constant memory of its own, and the target's memory for distant tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import nn

from specframe import CompositionError
from specframe.neural import DraftSession, NeuralDrafter, Quantization, TextWindow, checkpoint, neural_target
from specframe.plugin import LayerChoice, LayeredTarget, Promise
from specframe_self.longspec.memory import LastLayer
from specframe_self.longspec.network import LongNetwork
from specframe_self.longspec.session import LongSession

if TYPE_CHECKING:
    from specframe.plugin import Head, NeuralTarget, Target

MARK = "post_cross_attention_layernorm.weight"
"""Name of a tensor that only LongSpec's drafters have."""


class LongSpec(NeuralDrafter[LongNetwork]):
    """The drafter of Yang et al. 2025 (LongSpec), based on GLIDE's: one block over the embeddings of tokens.

    Its self-attention sees the newest `window` tokens, so its own memory is constant. Its cross-attention reads the
    keys and values of all committed tokens in the target's last layer, without copying them. It never sees those of a
    draft's tokens, and training therefore hides those of the last 0 to 3 tokens. Embedding and LM head are the
    target's, without a norm before the head.

    Args:
        weights: a trained drafter's folder, `zoo://name` or Hub name; none: untrained. Published ones load unchanged
            once they are converted to safetensors.
        head: how its outputs become logits; none: the target's own head.
        window: number of newest tokens that its self-attention sees.
        quantize: its linear layers in 4 or 8 bits while it decodes on a CPU; saved unrounded.
    """

    name = "longspec"

    def __init__(
        self,
        *,
        weights: str | None = None,
        head: Head | None = None,
        window: int = 512,
        quantize: Quantization | None = None,
    ) -> None:
        super().__init__(weights=weights, head=head, quantize=quantize)
        self.window = TextWindow.checked(self.name, window, 0)
        self.promise = Promise(uses_target_layers=True, window=window)

    def build(self, target: NeuralTarget) -> LongNetwork:
        """Returns a new network for the target."""
        assert self.window is not None
        return LongNetwork(target.config, self.window.recent, LastLayer(target))

    def load(self, target: NeuralTarget, weights: str) -> LongNetwork:
        """Loads the network of a checkpoint, ours or a published one."""
        if "format" in checkpoint.read_config(weights):
            return super().load(target, weights)
        names = checkpoint.shapes(weights)
        prefix = next((name.removesuffix(MARK) for name in names if name.endswith(MARK)), "")
        network = self.fresh(target)
        checkpoint.load(published(network, prefix, names), weights)
        return network

    def bind(self, target: Target) -> None:
        """Builds or loads the network. Raises CompositionError for a target whose keys are not available."""
        model = neural_target(target, self.name)
        if not isinstance(model, LayeredTarget):
            raise CompositionError(
                "drafter longspec reads the keys and values of the target's last layer, and this target shows none: "
                "use the target hf"
            )
        layers = model.config.num_hidden_layers
        model.check_layers(LayerChoice.first(layers, layers))
        super().bind(target)
        self._memory = model.memory

    def session(self, slots: int, room: int) -> DraftSession:
        """Returns an empty session for at most `slots` rows of at most `room` positions each."""
        assert self.window is not None
        return LongSession(self.decoding, self.target.embed, self._memory, self.window, slots, room)


def published(network: LongNetwork, prefix: str, names: Any) -> nn.Module:
    """Returns the network under the published names, whose cross-attention has unused maps for keys and values."""
    module, crossed = nn.Module(), nn.Module()
    for name, part in network.named_children():
        module.add_module(name, part)
    for name, part in network.cross_attn.named_children():
        crossed.add_module(name, part)
    for name in ("k_proj", "v_proj"):
        if f"{prefix}cross_attn.{name}.weight" in names:
            own = getattr(network.self_attn, name)
            bias = f"{prefix}cross_attn.{name}.bias" in names
            crossed.add_module(name, nn.Linear(own.in_features, own.out_features, bias=bias))
    module.cross_attn = crossed
    for name in reversed(prefix.rstrip(".").split(".") if prefix else []):
        outer = nn.Module()
        outer.add_module(name, module)
        module = outer
    return module
