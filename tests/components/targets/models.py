"""Shapes of tiny models, prompts, random trees and the greedy verdict: what the tests here share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from specframe.kernel.types import Prompts, TokenTree, Verdict

VOCABULARY = 50
MODERN = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
HEADED = MODERN | {"head_dim": 8}
OLD = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 256}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": MODERN,
    "mistral": MODERN,
    "qwen2": MODERN,
    "qwen3": HEADED,
    "gemma": HEADED,
    "gemma2": HEADED,
    "phi3": MODERN,
    "cohere": MODERN,
    "granite": MODERN | {"logits_scaling": 4.0, "embedding_multiplier": 3.0},
    "olmo2": MODERN,
    "starcoder2": MODERN,
    "gpt2": {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 256},
    "gpt_neox": OLD | {"intermediate_size": 64},
    "opt": OLD | {"ffn_dim": 64, "word_embed_proj_dim": 16},
}
PROMPTS = ([5, 6, 7, 8, 9], [11, 12, 13], [21, 22, 23, 24, 25, 26, 27])


def batch(prompts: Any) -> Prompts:
    width = max(map(len, prompts))
    padded = torch.tensor([row + [0] * (width - len(row)) for row in prompts])
    return Prompts(padded, torch.tensor([len(row) for row in prompts]))


def random_tree(root: Tensor, futures: list[list[int]], nodes: int, noise: torch.Generator) -> TokenTree:
    """Random shapes and tokens, a right continuation hidden on a random branch, some padding nodes."""

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=noise))

    tokens = torch.randint(VOCABULARY, (len(root), nodes), generator=noise)
    tokens[:, 0] = root
    parent = torch.full_like(tokens, -1)
    valid = torch.ones_like(tokens, dtype=torch.bool)
    depth = torch.zeros_like(tokens)
    for row, future in enumerate(futures):
        right, step = 0, 0
        for node in range(1, nodes):
            above = draw(node) if draw(3) else right
            parent[row, node], depth[row, node] = above, depth[row, above] + 1
            valid[row, node] = valid[row, above] and draw(10) > 0
            if above == right and valid[row, node] and step < len(future) and draw(3):
                tokens[row, node] = future[step]
                right, step = node, step + 1
    return TokenTree(tokens, parent, valid, torch.zeros_like(tokens), levels=int(depth.max()))


def accept(tree: TokenTree, logits: Tensor) -> Verdict:
    """The greedy verdict, node by node."""
    choice = logits.argmax(-1)
    path = torch.full((len(choice), tree.levels), -1)
    length, bonus = torch.zeros(len(choice), dtype=torch.long), torch.zeros(len(choice), dtype=torch.long)
    for row in range(len(choice)):
        node: int | None = 0
        while node is not None:
            bonus[row] = wanted = int(choice[row, node])
            children = [
                child
                for child in range(tree.tokens.shape[1])
                if tree.parent[row, child] == node and tree.valid[row, child] and tree.tokens[row, child] == wanted
            ]
            node = children[0] if children else None
            if node is not None:
                path[row, length[row]] = node
                length[row] += 1
    return Verdict(path, length, bonus)
