"""The network as it is trained and run in bulk: the Llama architecture in plain PyTorch.

Weights of one kind are fused (query, key and value; gate and up) because a model this narrow is limited by
the number of kernels. :func:`export` undoes the fusion and yields a ``LlamaForCausalLM``; the two agree to
rounding.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Sizes of the network; the defaults are those of ``talk-7m``."""

    vocabulary: int = 4096
    width: int = 192
    layers: int = 14
    heads: int = 6
    inner: int = 512
    context: int = 512
    theta: float = 10000.0
    epsilon: float = 1e-5

    def config(self) -> dict[str, Any]:
        """Return the keyword arguments of the matching ``LlamaConfig``."""
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.width,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.heads,
            "max_position_embeddings": self.context,
            "rope_parameters": {"rope_type": "default", "rope_theta": self.theta},
            "rms_norm_eps": self.epsilon,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "bos_token_id": 0,
            "eos_token_id": 1,
            "pad_token_id": 2,
        }


Cache = tuple[Tensor, Tensor]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply rotary positions to ``x`` of shape [batch, heads, time, head width], halves rotated as in
    Llama."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


class Block(nn.Module):
    """One decoder layer."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.epsilon = shape.heads, shape.epsilon
        self.attention_norm = nn.Parameter(torch.ones(shape.width))
        self.inner_norm = nn.Parameter(torch.ones(shape.width))
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.gate_up = nn.Linear(shape.width, 2 * shape.inner, bias=False)
        self.down = nn.Linear(shape.inner, shape.width, bias=False)

    def forward(
        self,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        cache: Cache | None = None,
        start: int = 0,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Run the layer over ``x`` [batch, time, width].

        With a cache, keys and values are written at ``start`` and attention reads the cache up to the newest
        token under ``mask``; without one, attention is causal over ``x`` itself.
        """
        batch, time, width = x.shape
        hidden = F.rms_norm(x, (width,), self.attention_norm, self.epsilon)
        query, key, value = self.qkv(hidden).view(batch, time, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        if cache is None:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        else:
            end = start + time
            cache[0][:, :, start:end], cache[1][:, :, start:end] = key, value
            mixed = F.scaled_dot_product_attention(query, cache[0][:, :, :end], cache[1][:, :, :end], attn_mask=mask)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        hidden = F.rms_norm(x, (width,), self.inner_norm, self.epsilon)
        gate, up = self.gate_up(hidden).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Net(nn.Module):
    """The whole network, with the input embedding tied to the output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Parameter(torch.empty(shape.vocabulary, shape.width))
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.width))
        half = shape.width // shape.heads // 2
        angles = torch.arange(shape.context)[:, None] * shape.theta ** -(torch.arange(half) / half)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def initialise(self, generator: torch.Generator) -> None:
        """Draw the weights; projections back into the residual stream start smaller the deeper the network
        is."""
        back = 0.02 / math.sqrt(2 * self.shape.layers)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                scale = back if name.endswith(("out.weight", "down.weight")) else 0.02
                with torch.no_grad():
                    parameter.normal_(0.0, scale, generator=generator)

    def compile_parts(self) -> None:
        """Compile the layer and the loss, not the whole: all layers share one compiled body, so it is ready
        in seconds."""
        for block in self.blocks:
            block.compile(dynamic=False)
        self.loss = torch.compile(self.loss, dynamic=False)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Return the final normalised states of whole sequences [batch, time]."""
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[: tokens.shape[1]], self.sin[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return x

    def loss(self, x: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy, in nats a token, of final states against ``labels``."""
        x = F.rms_norm(x, (self.shape.width,), self.norm, self.shape.epsilon)
        logits = F.linear(x, self.embedding)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of predicting ``labels`` from ``tokens``."""
        return self.loss(self.hidden(tokens), labels)

    def caches(self, batch: int, length: int, dtype: torch.dtype) -> list[Cache]:
        """Allocate a key and a value cache for each layer."""
        size = (batch, self.shape.heads, length, self.shape.width // self.shape.heads)
        device = self.embedding.device
        return [
            (torch.zeros(size, dtype=dtype, device=device), torch.zeros(size, dtype=dtype, device=device))
            for _ in self.blocks
        ]

    def step(self, tokens: Tensor, positions: Tensor, caches: list[Cache], start: int, mask: Tensor) -> Tensor:
        """Extend caches by ``tokens`` [batch, time] and return the logits of the last position [batch,
        vocabulary].

        ``positions`` are per row, since rows are padded on the left; ``mask`` [batch, 1, time, cache] is what
        may be read.
        """
        x = F.embedding(tokens, self.embedding)
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        cos, sin = cos.to(x.dtype), sin.to(x.dtype)
        for block, cache in zip(self.blocks, caches, strict=True):
            x = block(x, cos, sin, cache, start, mask)
        x = F.rms_norm(x[:, -1], (self.shape.width,), self.norm, self.shape.epsilon)
        return F.linear(x, self.embedding)


def state_for_llama(net: Net) -> dict[str, Tensor]:
    """Return the weights under the names ``LlamaForCausalLM`` uses."""
    state = {"model.embed_tokens.weight": net.embedding, "model.norm.weight": net.norm}
    for index, block in enumerate(net.blocks):
        prefix = f"model.layers.{index}."
        query, key, value = block.qkv.weight.chunk(3)
        gate, up = block.gate_up.weight.chunk(2)
        state |= {
            prefix + "input_layernorm.weight": block.attention_norm,
            prefix + "post_attention_layernorm.weight": block.inner_norm,
            prefix + "self_attn.q_proj.weight": query,
            prefix + "self_attn.k_proj.weight": key,
            prefix + "self_attn.v_proj.weight": value,
            prefix + "self_attn.o_proj.weight": block.out.weight,
            prefix + "mlp.gate_proj.weight": gate,
            prefix + "mlp.up_proj.weight": up,
            prefix + "mlp.down_proj.weight": block.down.weight,
        }
    return {name: tensor.detach().float().cpu() for name, tensor in state.items()}


def load_from_llama(state: dict[str, Tensor], shape: Shape) -> Net:
    """Build the network from the weights of a ``LlamaForCausalLM`` of the same sizes."""
    net = Net(shape)
    fused = {"embedding": state["model.embed_tokens.weight"], "norm": state["model.norm.weight"]}
    for index in range(shape.layers):
        prefix, own = f"model.layers.{index}.", f"blocks.{index}."
        attention, mlp = prefix + "self_attn.", prefix + "mlp."
        fused |= {
            own + "attention_norm": state[prefix + "input_layernorm.weight"],
            own + "inner_norm": state[prefix + "post_attention_layernorm.weight"],
            own + "qkv.weight": torch.cat([state[attention + f"{part}_proj.weight"] for part in "qkv"]),
            own + "out.weight": state[attention + "o_proj.weight"],
            own + "gate_up.weight": torch.cat([state[mlp + "gate_proj.weight"], state[mlp + "up_proj.weight"]]),
            own + "down.weight": state[mlp + "down_proj.weight"],
        }
    net.load_state_dict({name: tensor.float() for name, tensor in fused.items()})
    return net


def load(folder: Path, device: torch.device) -> Net:
    """Build the network from a saved model, in the precision it is shipped in on a GPU, else in float32."""
    config = json.loads((folder / "config.json").read_text("utf-8"))
    shape = Shape(
        vocabulary=config["vocab_size"],
        width=config["hidden_size"],
        layers=config["num_hidden_layers"],
        heads=config["num_attention_heads"],
        inner=config["intermediate_size"],
        context=config["max_position_embeddings"],
    )
    state: dict[str, Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        state |= load_file(path)
    net = load_from_llama(state, shape).to(device).eval()
    return net.to(torch.bfloat16) if device.type == "cuda" else net
