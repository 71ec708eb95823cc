"""Attention of the native passes: its numbers are a textbook's, and a node's bits are its own."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from specframe.native.decoder import Mask, PackedLayers, Tree
from tests.native.layers import WIDTH, packed_layers, slots_for, small_model

SHAPES = [(9, 3, 64), (4, 2, 16), (2, 1, 32), (3, 3, 128), (8, 2, 48), (6, 1, 256)]
"""Heads, heads of keys, and a head's numbers; SmolLM2's first."""


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def cache(request):
    """The dtype of keys and values."""
    return request.param


@pytest.fixture(autouse=True)
def one_thread():
    """Leaves the number of threads as it was."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_sees(rows: int, nodes: int, noise: torch.Generator) -> Tensor:
    """Trees [B, N, N]: each node sees itself and what a random earlier one sees."""
    sees = torch.zeros(rows, nodes, nodes, dtype=torch.bool)
    for row in range(rows):
        for node in range(nodes):
            if node:
                sees[row, node] = sees[row, int(torch.randint(node, (1,), generator=noise))]
            sees[row, node, node] = True
    return sees


def run(packed: PackedLayers, hidden: Tensor, visibility: Tree | Mask, positions: Tensor, slots: int = 160) -> Tensor:
    """States after the layers, over a cache that is the same each time."""
    out = hidden.clone()
    packed.run(out, positions, visibility, slots_for(packed, len(hidden), slots))
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_a_nodes_bits_stay_whatever_stands_next_to_it(shape, cache):
    """Nodes 1 to 24, rows of ragged lengths, one thread and two."""
    packed, noise = packed_layers(*shape, cache=cache), torch.Generator().manual_seed(2)
    length, base = torch.tensor([100, 1, 33]), 101
    whole = torch.randn(3, 24, WIDTH, generator=noise)
    sees = random_sees(3, 24, noise)
    positions = length[:, None] + sees.sum(-1) - 1
    wanted = run(packed, whole, Tree(sees, length, base), positions)
    for threads in (1, 2):
        torch.set_num_threads(threads)
        for nodes in range(1, 25):
            found = run(packed, whole[:, :nodes], Tree(sees[:, :nodes, :nodes], length, base), positions[:, :nodes])
            assert torch.equal(found, wanted[:, :nodes]), (threads, nodes)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_path_alone_has_the_bits_of_its_tree(shape, cache):
    packed, noise = packed_layers(*shape, cache=cache), torch.Generator().manual_seed(4)
    length, base = torch.tensor([45]), 45
    whole, sees = torch.randn(1, 16, WIDTH, generator=noise), random_sees(1, 16, noise)
    positions = length[:, None] + sees.sum(-1) - 1
    wanted = run(packed, whole, Tree(sees, length, base), positions)
    for node in range(16):
        path = sees[0, node].nonzero()[:, 0]
        slots = slots_for(packed, 1, 160)
        for depth, step in enumerate(path.tolist()):
            hidden = whole[:, step : step + 1].clone()
            slot = torch.tensor([45 + depth])
            packed.run(hidden, slot[None], Tree(torch.ones(1, 1, 1, dtype=torch.bool), slot, 45 + depth), slots)
        assert torch.equal(hidden[0, 0], wanted[0, node]), node


@pytest.mark.parametrize("nodes", [1, 2, 5])
@pytest.mark.parametrize("shape", SHAPES)
def test_slots_with_holes_have_the_bits_of_slots_without(shape, nodes, cache):
    """A mask of any slots, each node with its own: what a node does not see adds nothing."""
    packed, noise = packed_layers(*shape, cache=cache), torch.Generator().manual_seed(6)
    hidden = torch.randn(1, nodes, WIDTH, generator=noise)
    positions = torch.full((1, nodes), 70)
    visible = torch.rand(1, nodes, 90, generator=noise) < 0.6
    places = torch.arange(80, 80 + nodes)[None]
    visible[:, :, 80:] = False
    for node in range(nodes):
        visible[0, node, 80 + node] = True
    together = run(packed, hidden, Mask(visible, places), positions)
    for node in range(nodes):
        one = slice(node, node + 1)
        alone = run(packed, hidden[:, one], Mask(visible[:, one], places[:, one]), positions[:, one])
        assert torch.equal(alone[:, 0], together[:, node])


@torch.no_grad()
def literal(model, hidden: Tensor, sees: Tensor, length: Tensor, base: int, positions: Tensor, cache: Tensor) -> Tensor:
    """The layers' result, head by head and node by node, after the textbook, over a cache that rounds."""
    config, cache = model.config, cache.clone()
    size, sharing = config.head_dim, config.num_attention_heads // config.num_key_value_heads
    angles = model.rotary_emb(hidden, positions)
    for index, layer in enumerate(model.layers):
        normed, attention = layer.input_layernorm(hidden), layer.self_attn
        queries, keys, values = (
            part(normed).unflatten(-1, (-1, size)).transpose(1, 2)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )  # [B, H, N, D]
        queries, keys = apply_rotary_pos_emb(queries, keys, *angles)
        end = base + hidden.shape[1]
        cache[2 * index, :, :, base:end], cache[2 * index + 1, :, :, base:end] = keys, values
        attended = torch.empty_like(queries)
        for row in range(len(hidden)):
            for node in range(hidden.shape[1]):
                slots = [*range(int(length[row])), *(base + sees[row, node].nonzero()[:, 0]).tolist()]
                for head in range(config.num_attention_heads):
                    seen = cache[2 * index : 2 * index + 2, row, head // sharing, slots].float()  # [2, S, D]
                    shares = (seen[0] @ queries[row, head, node] * size**-0.5).softmax(-1)
                    attended[row, head, node] = shares @ seen[1]
        hidden = hidden + attention.o_proj(attended.transpose(1, 2).flatten(2))
        hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
    return hidden


@pytest.mark.parametrize("nodes", [1, 2, 7])
@pytest.mark.parametrize("shape", SHAPES)
def test_its_numbers_are_a_textbooks(shape, nodes, cache):
    noise = torch.Generator().manual_seed(8)
    hidden = torch.randn(2, nodes, WIDTH, generator=noise)
    sees, length = random_sees(2, nodes, noise), torch.tensor([70, 20])
    positions = length[:, None] + sees.sum(-1) - 1
    model, packed = small_model(*shape), packed_layers(*shape, cache=cache)
    wanted = literal(model, hidden, sees, length, 75, positions, slots_for(packed, 2, 160).tensor)
    found = run(packed, hidden, Tree(sees, length, 75), positions)
    limit = 1e-3 if cache == torch.float32 else 2e-2  # a number may round either way
    torch.testing.assert_close(found, wanted, atol=limit, rtol=limit)


def test_biases_of_an_mlp_are_added(cache):
    noise = torch.Generator().manual_seed(9)
    model = small_model(4, 2, 64)
    for layer in model.layers:
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj):
            part.bias = torch.nn.Parameter(torch.randn(part.out_features, generator=noise))
    packed = PackedLayers(model.config, model.rotary_emb, list(model.layers), cache)
    hidden, sees, length = (
        torch.randn(1, 3, WIDTH, generator=noise),
        torch.ones(1, 3, 3).tril().bool(),
        torch.tensor([5]),
    )
    positions = torch.arange(5, 8)[None]
    wanted = literal(model, hidden, sees, length, 5, positions, slots_for(packed, 1, 160).tensor)
    found = run(packed, hidden, Tree(sees, length, 5), positions)
    limit = 1e-3 if cache == torch.float32 else 2e-2
    torch.testing.assert_close(found, wanted, atol=limit, rtol=limit)
