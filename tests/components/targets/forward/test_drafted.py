"""Which nodes of a tree the first layers ran over already: fast and slow together, over random trees."""

import random as pyrandom

import pytest
import torch

from specframe.components.targets.forward.resume import Drafted
from specframe.kernel.layers import LayerChoice
from specframe.kernel.types import TokenTree

CHOSEN = LayerChoice.first(1, 3)


def tree_of(chance, rows, count):
    """Trees of two tokens, so that siblings are often alike; rows end in padding of their own length."""
    parents, tokens, valid = [], [], []
    for _ in range(rows):
        size = chance.randint(1, count)
        parents.append([-1, *(chance.randrange(node) for node in range(1, size)), *[0] * (count - size)])
        tokens.append([chance.randrange(2) for _ in range(count)])
        valid.append([True] * size + [False] * (count - size))
    levels = max(depth(row, node) for row in parents for node in range(count))
    return tree_from(tokens, parents, valid, levels)


def tree_from(tokens, parents, valid, levels):
    tokens = torch.tensor(tokens)
    return TokenTree(tokens, torch.tensor(parents), torch.tensor(valid), torch.zeros_like(tokens), levels)


def depth(parents, node):
    return 0 if node == 0 else 1 + depth(parents, parents[node])


def slow_places(drafted, tree, row):
    """The node of the same path for every node of a row, one by one; of alike siblings it is the first."""
    mine, known = drafted.tree, drafted.known[row].tolist()
    places = [0 if known[0] and mine.tokens[row, 0] == tree.tokens[row, 0] else -1]
    for node in range(1, tree.tokens.shape[1]):
        above = places[tree.parent[row, node]] if tree.valid[row, node] else -1
        alike = [
            other
            for other in range(1, len(known))
            if known[other] and mine.parent[row, other] == above and mine.tokens[row, other] == tree.tokens[row, node]
        ]
        places.append(alike[0] if above >= 0 and alike else -1)
    return places


@pytest.mark.parametrize("seed", range(40))
def test_nodes_are_found_by_their_paths(seed):
    chance = pyrandom.Random(seed)
    before = tree_of(chance, 3, chance.randint(1, 7))
    known = torch.rand(before.tokens.shape, generator=torch.Generator().manual_seed(seed)) < 0.8
    drafted = Drafted(CHOSEN, before, {}, known & before.valid)
    tree = tree_of(chance, 3, chance.randint(1, 7))
    assert drafted.places(tree).tolist() == [slow_places(drafted, tree, row) for row in range(3)]


ROOT = tree_from([[0]] * 2, [[-1]] * 2, [[True]] * 2, 0)
WIDE = tree_from([[0, 1, 1]] * 2, [[-1, 0, 0]] * 2, [[True] * 3] * 2, 1)


def features(count, value):
    return {"layer.0": torch.full((2, count, 4), float(value)), "last": torch.zeros(2, count, 4)}


def test_what_comes_in_joins_what_is_known():
    first = Drafted.put(None, CHOSEN, ROOT, torch.zeros(2, 1, dtype=torch.long), features(1, 1))
    second = Drafted.put(first, CHOSEN, WIDE, torch.tensor([[2], [1]]), features(1, 2))
    assert list(second.features) == ["layer.0"]
    assert second.features["layer.0"][..., 0].tolist() == [[1, 0, 2], [1, 2, 0]]
    assert second.known.tolist() == [[True, False, True], [True, True, False]]


def test_other_layers_and_another_draft_begin_anew():
    old = Drafted(CHOSEN, WIDE, {"layer.0": torch.ones(2, 3, 4)}, torch.ones(2, 3, dtype=torch.bool))
    nodes = torch.ones(2, 1, dtype=torch.long)
    other = Drafted.put(old, LayerChoice.first(2, 3), WIDE, nodes, {"layer.1": torch.full((2, 1, 4), 5.0)})
    assert other.known.tolist() == [[False, True, False]] * 2 and list(other.features) == ["layer.1"]
    again = Drafted.put(old, CHOSEN, ROOT, torch.zeros(2, 1, dtype=torch.long), features(1, 7))
    assert again.known.tolist() == [[True]] * 2 and again.features["layer.0"][..., 0].tolist() == [[7], [7]]
