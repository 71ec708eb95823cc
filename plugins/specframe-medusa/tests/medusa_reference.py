"""The published modules restated: their structure, their names, one position at a time."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaModel


class PublishedBlock(nn.Module):
    """x + SiLU(W x + b); with conditions, a projection in place of x."""

    def __init__(self, size: int, conditions: int = 0) -> None:
        super().__init__()
        self.linear = nn.Linear(size * (conditions + 1), size)
        self.res_connection = nn.Linear(size * (conditions + 1), size) if conditions else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.res_connection(x) + torch.nn.functional.silu(self.linear(x))


def published_medusa(size: int, vocab: int, heads: int, layers: int, shared: bool = False) -> nn.ModuleList:
    """Medusa's heads; published code repeats one and the same block `layers` times."""
    own = [] if shared else [nn.Linear(size, vocab, bias=False)]
    return nn.ModuleList(
        nn.Sequential(*([PublishedBlock(size)] * layers), *copy.deepcopy(own)) for _ in range(heads)
    ).double()


class PublishedHydra(nn.Module):
    """Hydra's heads: arch `prefix-mlp` (Hydra++) or `mlp`."""

    def __init__(self, config: LlamaConfig, heads: int, layers: int, prefix: bool, embedding: Tensor) -> None:
        super().__init__()
        size, vocab = config.hidden_size, config.vocab_size
        self.input_embed_fn = nn.Embedding.from_pretrained(embedding.clone())
        drop = [nn.Dropout(0.2)] if prefix else []
        self.hydra_mlp = nn.ModuleList(
            nn.Sequential(*drop, PublishedBlock(size, head + 1), *([*drop, PublishedBlock(size)] * (layers - 1)))
            for head in range(heads)
        )
        linears = [nn.Linear(size, vocab) for _ in range(heads)]
        self.hydra_lm_head = nn.ModuleList(nn.Sequential(*drop, linear) if prefix else linear for linear in linears)
        if prefix:
            small = copy.deepcopy(config)
            small.num_hidden_layers = 1
            self.prefix_embeding_layer = LlamaModel(small)
            self.prefix_embeding_layer.embed_tokens.weight.data.copy_(embedding)
        self.double().eval()

    def forward(self, features: Tensor, path: Tensor) -> Tensor:
        """The logits after a path [d] from the root down, given all features [n, D]: [V]."""
        base = features[-1]
        if hasattr(self, "prefix_embeding_layer"):
            base = self.prefix_embeding_layer(inputs_embeds=features[None]).last_hidden_state[0, -1]
        head = len(path) - 1
        inputs = torch.cat([base, *(self.input_embed_fn.weight[token] for token in path)])
        return self.hydra_lm_head[head](self.hydra_mlp[head](inputs))
