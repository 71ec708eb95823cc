"""EAGLE-3's network: fused taps, a decoder layer of twice the input width, an LM head over a draft vocabulary."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from specframe import CompositionError
from specframe.neural import DecoderLayer, FeatureNetwork, LevelModules, State, TapFusion
from specframe.plugin import PairSpec, Predicted

if TYPE_CHECKING:
    from transformers import PretrainedConfig

    from specframe.neural import Embed

Kind = Literal["llama", "qwen3"]
QUIET = 0.1
"""Factor on the random weights that the regression does not determine (`fitting3`)."""
KINDS: tuple[Kind, ...] = ("llama", "qwen3")
"""Types of decoder layers in published drafters."""


@dataclass(frozen=True)
class Switches:
    """The choices in which published EAGLE-3 drafters differ. EAGLE-3 has none of them, EAGLE-3.1 the first two."""

    fc_norm: bool = False
    """True if each tap passes its own norm before `fc`."""
    norm_output: bool = False
    """True if the state is fed back after the norm that precedes the LM head."""
    norm_before_residual: bool = False
    """True if the residual connection starts at the normed state."""
    norm_before_fc: bool = False
    """True if all taps together pass one norm before `fc`."""

    def __post_init__(self) -> None:
        if self.fc_norm and self.norm_before_fc:
            raise CompositionError("eagle3: fc_norm gives every tap a norm, norm_before_fc all of them one; choose one")


def published_taps(layers: int) -> tuple[int, ...]:
    """Returns the layers of a target of `layers` layers to read: an early, a middle and a late one, counted from 0.

    The published choice is 1, L / 2 - 1 and L - 4; a target of fewer than seven layers gives fewer.
    """
    return tuple(sorted({min(max(layer, 0), layers - 1) for layer in (1, layers // 2 - 1, layers - 4)}))


class WideLayer(DecoderLayer):
    """A decoder layer whose attention reads token and state together, [B, T, 2H] -> [B, T, H] (EAGLE-3, Section 3.1).

    Token and state have separate norms; queries, keys and values read both, and the residual is the state alone. Layers
    after the first, of which the config has the number, are ordinary.
    """

    def __init__(self, config: PretrainedConfig, norm_before_residual: bool) -> None:
        super().__init__(config)
        self.layer = _Wide(self.layer, self.config, norm_before_residual)
        self.extend(config, config.num_hidden_layers)

    def quieten(self) -> None:
        """Scales down the output of layers after the first, so that the states of a fitted first layer pass through."""
        for layer in self.layers[1:]:
            parts: Any = layer
            parts.self_attn.o_proj.weight.mul_(QUIET)
            parts.mlp.down_proj.weight.mul_(QUIET)


class _Wide(nn.Module):
    """The layer under the published names: transformers' parts with attention inputs twice as wide."""

    def __init__(self, plain: nn.Module, config: Any, norm_before_residual: bool) -> None:
        super().__init__()
        parts: Any = plain
        for name in ("q_proj", "k_proj", "v_proj"):
            old = getattr(parts.self_attn, name)
            new = nn.Linear(2 * old.in_features, old.out_features, bias=old.bias is not None)
            nn.init.normal_(new.weight, std=config.initializer_range)
            setattr(parts.self_attn, name, new)
        self.self_attn = parts.self_attn
        self.mlp = parts.mlp
        self.input_layernorm = parts.input_layernorm
        self.hidden_norm = copy.deepcopy(parts.input_layernorm)
        self.post_attention_layernorm = parts.post_attention_layernorm
        self.norm_before_residual = norm_before_residual

    def forward(self, x: Tensor, **attention: Any) -> Tensor:
        """Returns the new states, [B, T, 2H] -> [B, T, H]; `attention` holds the arguments of transformers' layers."""
        token, state = x.chunk(2, -1)
        normed = self.hidden_norm(state)
        mixed, _ = self.self_attn(hidden_states=torch.cat([self.input_layernorm(token), normed], -1), **attention)
        y = (normed if self.norm_before_residual else state) + mixed
        out: Tensor = y + self.mlp(self.post_attention_layernorm(y))
        return out


class Wide(FeatureNetwork):
    """EAGLE-3's drafter (Li et al. 2025), and EAGLE-3.1's by its switches.

    `fc` maps the concatenated features of the taps to a state. From pairs (embedding of token i + 1, state i) the layer
    computes the next state, which is fed back unchanged; the normed state goes to the LM head. No feature is imitated.

    Args:
        config: of the layer, as `layer_config` returns it.
        taps: the target's layers that are read, counted from 0.
        switches: the network's optional parts.
        head: initial rows of its own LM head, [v, H]; None: it has none.
        support: the tokens of these rows, int64 [v]; None: the whole vocabulary.
    """

    support: Tensor | None

    def __init__(
        self,
        config: PretrainedConfig,
        taps: tuple[int, ...],
        switches: Switches,
        head: Tensor | None,
        support: Tensor | None,
    ) -> None:
        super().__init__()
        size = config.hidden_size
        self.spec = PairSpec(taps=tuple(f"layer.{layer}" for layer in taps), imitates=None)
        self.switches = switches
        self.layer: WideLayer = WideLayer(config, switches.norm_before_residual)
        wide: Any = self.layer.layer
        self.norm: nn.Module = copy.deepcopy(wide.input_layernorm)
        self.fusion = _fusion(len(taps), size, config.rms_norm_eps, switches)
        self.lm_head = None
        if head is not None:
            self.lm_head = nn.Linear(size, len(head), bias=False, device="meta")
            self.lm_head.weight = nn.Parameter(head.detach().float().cpu().contiguous())
        self.register_buffer("support", support, persistent=False)
        self.embedding: nn.Embedding | None = None
        """Its own token embedding; None: the target's is used."""

    def switch(self, switches: Switches) -> None:
        """Changes the switches; those with tensors must stay as they are."""
        wide: Any = self.layer.layer
        self.switches, wide.norm_before_residual = switches, switches.norm_before_residual

    def embedded(self, embed: Embed) -> Embed:
        """Returns the token embedding that it reads. In its own, unknown tokens have the last row."""
        if (own := self.embedding) is None:
            return embed
        return lambda tokens: own(tokens.clamp(max=own.num_embeddings - 1))

    @property
    def native(self) -> LevelModules | None:
        """The modules with which native code can compute it."""
        return LevelModules(self.layer, self.fusion, norm=self.norm, feeds_normed=self.switches.norm_output)

    @property
    def width(self) -> int:
        """Width of a pair: token and state concatenated."""
        return 2 * int(self.layer.config.hidden_size)

    def fuse(self, features: Tensor) -> Tensor:
        """Returns the first state, given the taps' concatenated features: [.., A H] -> [.., H]."""
        fused: Tensor = self.fusion(features)
        return fused

    def inputs(self, pairs: Tensor, state: State, counts: list[int] | None = None) -> tuple[Tensor, State]:
        """Returns the pairs, [B, M, 2H], which are the layer's inputs; the state is not used."""
        return pairs, state

    def hidden(self, outputs: Tensor) -> Tensor:
        """Returns the LM head's input, the normed states: [.., H] -> [.., H]."""
        normed: Tensor = self.norm(outputs)
        return normed

    def features(self, outputs: Tensor) -> Tensor:
        """Returns the states that are fed back, normed if `norm_output`: [.., H] -> [.., H]."""
        return self.hidden(outputs) if self.switches.norm_output else outputs

    def predicted(self, outputs: Tensor) -> Predicted:
        """Returns the states as predictions, with their own LM head, if there is one."""
        return Predicted(self.hidden(outputs), self.features(outputs), self.lm_head)


def _fusion(taps: int, size: int, eps: float, switches: Switches) -> nn.Module:
    """Returns the map from the taps' features to one state, with the norms before it."""
    if switches.fc_norm:
        return TapFusion(taps, size, eps=eps)
    fc = nn.Linear(taps * size, size, bias=False)
    return nn.Sequential(nn.RMSNorm(taps * size, eps=eps), fc) if switches.norm_before_fc else nn.Sequential(fc)
