"""Siblings in waves: every family once, level by level, in whatever order nodes stand."""

import random as pyrandom
from dataclasses import replace

import pytest
import torch

from specframe.components.verifiers.record import Waves
from specframe.kernel.types import TokenTree

COUNT = 12


def forest(seed):
    """Three trees whose families differ in size, from chains to stars, some nodes being padding."""
    chance = pyrandom.Random(seed)
    parents, valid = [], []
    for _ in range(3):
        size, late = chance.randint(1, COUNT), chance.choice([0, 0.5, 0.9])
        row = [-1]
        for node in range(1, size):  # `late` prefers young parents, so that levels without siblings come first
            row.append(max(row[-1], chance.randrange(node)) if chance.random() < late else chance.randrange(node))
        parents.append(row + [0] * (COUNT - size))
        valid.append([True] * size + [False] * (COUNT - size))
    parent = torch.tensor(parents)
    tree = TokenTree(torch.zeros_like(parent), parent, torch.tensor(valid), torch.zeros_like(parent), COUNT - 1)
    return replace(tree, levels=int(tree.depth.max()))


def families(tree):
    """By parent, its valid children in order; nodes are row * N + node."""
    found = {}
    for row, parents in enumerate(tree.parent.tolist()):
        for node, parent in enumerate(parents):
            if parent >= 0 and tree.valid[row, node]:
                found.setdefault(row * COUNT + parent, []).append(row * COUNT + node)
    return found


@pytest.mark.parametrize("seed", range(60))
def test_every_family_is_judged_once_and_in_order(seed):
    tree = forest(seed)
    earlier = (tree.parent[:, :, None] == tree.parent[:, None]) & tree.valid[:, None] & tree.valid[:, :, None]
    waves = Waves.of(tree, earlier.tril(-1).sum(-1))
    wanted = families(tree)
    single = {children[0] for children in wanted.values() if len(children) == 1}
    assert waves.only.flatten().nonzero()[:, 0].tolist() == sorted(single)
    shared = {parent for parent, children in wanted.items() if len(children) > 1}
    assert set(waves.inner.tolist()) == shared
    places = waves.place.flatten().tolist()
    assert [places[node] for node in waves.inner.tolist()] == [*range(len(shared))]
    assert all(places[node] == -1 for node in range(3 * COUNT) if node not in shared)
    depth = tree.depth.flatten()
    assert len(waves.levels) == tree.levels
    for level, (span, siblings) in enumerate(waves.levels):
        parents = waves.inner[span].tolist()
        assert set(parents) == {parent for parent in shared if depth[parent] == level}
        sizes = [len(wanted[parent]) for parent in parents]
        assert sizes == sorted(sizes, reverse=True)
        for rank, wave in enumerate(siblings):
            assert wave.tolist() == [wanted[parent][rank] for parent in parents if len(wanted[parent]) > rank]
        assert len(siblings) == max(sizes, default=0)
